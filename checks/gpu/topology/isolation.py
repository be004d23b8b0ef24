"""What stands between a node's cards with a display (PCI class 0x0300), read from sysfs: see display_cards."""

import re
from typing import TypedDict

from preflight.checks.gpu.shared import pci
from preflight.sdk import pci_isolation

DISPLAY = "0x0300"
BAR1, MIB = 1, 2**20
"""The number of the BAR through which memory is reached (NVML calls it BAR1, too)."""


class Isolation(TypedDict):
    """Of a node's cards with a display."""

    bare_metal: bool
    translated: list[str]
    """Bus ids of cards whose DMA an IOMMU translates."""
    redirecting: list[str] | None
    """Ports of PCIe switches above them that redirect; None if we may not look."""
    above: dict[str, list[str]]
    """The bridges above each card, from the root port down."""
    bar1: dict[str, int]
    """Bytes, by bus id."""
    bar1_able: dict[str, int]
    """The largest that the card offers; without those that cannot change it."""


def read() -> Isolation | None:
    """None without such a card."""
    buses = [bus for bus in pci.gpus() if pci.text(bus, "class").startswith(DISPLAY)]
    if not buses:
        return None
    return {
        "bare_metal": pci_isolation.bare_metal(),
        "translated": pci_isolation.translated(buses),
        "redirecting": pci_isolation.redirecting(buses),
        "above": {bus: [*pci_isolation.above(bus)] for bus in buses},
        "bar1": {bus: size for bus in buses if (size := _bar(bus))},
        "bar1_able": {bus: size for bus in buses if (size := _largest(bus))},
    }


def _bar(bus: str) -> int:
    """Bytes: a line of `resource` is a BAR's first and last address, and its flags."""
    lines = pci.text(bus, "resource").splitlines()
    found = re.match(r"0x([0-9a-f]+) 0x([0-9a-f]+)", lines[BAR1]) if len(lines) > BAR1 else None
    first, last = (int(part, 16) for part in found.groups()) if found else (0, 0)
    return last - first + 1 if last else 0


def _largest(bus: str) -> int:
    """Of the sizes that the card offers: bit n of the file stands for 2^n MiB (the kernel's sysfs-bus-pci)."""
    offered = re.fullmatch(r"[0-9a-f]{1,16}", pci.text(bus, f"resource{BAR1}_resize"))
    return (1 << int(offered[0], 16).bit_length() >> 1) * MIB if offered else 0
