"""The PCIe links from a GPU up to the processor, from sysfs."""

import re
from typing import TypedDict

from preflight.checks.gpu.shared import pci
from preflight.checks.gpu.shared.pci import GIGATRANSFERS

WIDTHS = (1, 2, 4, 8, 12, 16, 32)


class PcieEnd(TypedDict):
    """One end of a link. None if sysfs does not know, as in many virtual machines."""

    bus: str
    kind: str
    """PCI class, vendor and device: "0x030200 0x10de 0x2330"."""
    width: int | None
    width_max: int | None
    generation: int | None
    generation_max: int | None


def path_of(bus: str) -> list[PcieEnd]:
    """The device and the bridges above it, up to the root port. A switch is two bridges: its downstream and upstream
    port."""
    return [_end(device) for device in (bus, *pci.above(bus))]


def _end(bus: str) -> PcieEnd:
    return {
        "bus": bus,
        "kind": " ".join(pci.text(bus, name) for name in ("class", "vendor", "device")),
        "width": _width(bus, "current_link_width"),
        "width_max": _width(bus, "max_link_width"),
        "generation": _generation(bus, "current_link_speed"),
        "generation_max": _generation(bus, "max_link_speed"),
    }


def _width(bus: str, name: str) -> int | None:
    width = pci.number(bus, name)
    return width if width in WIDTHS else None  # 0, 63 and 255 mean no link


def _generation(bus: str, name: str) -> int | None:
    """The generation from "16.0 GT/s PCIe"; older kernels write "8 GT/s"."""
    found = re.match(r"\d+(\.\d+)?", pci.text(bus, name))
    return next((generation for generation, speed in GIGATRANSFERS.items() if found and speed == float(found[0])), None)
