"""PCI devices from sysfs, without asking a driver: which NVIDIA GPUs there are, and the links above them. And how often
a link may replay a packet."""

import itertools
import os
import re
from collections.abc import Collection, Iterator

from preflight.checks.gpu.shared.readings import Pcie
from preflight.sdk import files

ROOT = "/sys/bus/pci/devices"
NVIDIA = 0x10DE
_DISPLAY = 0x03
"""PCI base class of display controllers: 0300 is VGA, 0302 is 3D. A card's audio function is 0403; NVSwitches are
bridges, 0680."""
_OTHER_BRIDGE = 0x0680


def gpus() -> list[str]:
    """Bus ids ("0000:1b:00.0") of the node's NVIDIA GPUs, in order, including those that a container hides."""
    return of_vendor(NVIDIA, (_DISPLAY,))


def of_vendor(vendor: int, base_classes: Collection[int]) -> list[str]:
    """Bus ids of a vendor's devices of these base classes, in order."""
    return [bus for bus in files.entries(ROOT) if number(bus, "vendor") == vendor and _class(bus) >> 8 in base_classes]


def switches() -> list[str]:
    """Bus ids of the node's NVSwitches, in order; those of NVLink 5 are not PCI devices of the host."""
    return [bus for bus in files.entries(ROOT) if number(bus, "vendor") == NVIDIA and _class(bus) == _OTHER_BRIDGE]


def _class(bus: str) -> int:
    return (number(bus, "class") or 0) >> 8


def text(bus: str, name: str) -> str:
    """The content of a device's file, or ""."""
    return files.read(os.path.join(ROOT, bus, name))


def driver(bus: str) -> str:
    """The name of the kernel driver that holds a device, or ""."""
    try:
        return os.path.basename(os.readlink(os.path.join(ROOT, bus, "driver")))
    except OSError:
        return ""


def number(bus: str, name: str) -> int | None:
    """The number in a device's file, "0x10de" or "16"; None if there is none."""
    found = re.fullmatch(r"(0x[0-9a-fA-F]+|-?\d+)", text(bus, name))
    return int(found[1], 0) if found else None


def above(bus: str) -> Iterator[str]:
    """Bus ids of the bridges above a device, the nearest first, up to the root port."""
    path = os.path.realpath(os.path.join(ROOT, bus)).split(os.sep)
    return itertools.takewhile(_BUS_ID.fullmatch, reversed(path[:-1]))


_BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""Per second and lane, by generation (PCI Express Base Specification 6.0)."""
ERROR_RATE = 1e-12
"""Per bit: the specification's limit for a lane. NVIDIA's DCGM has the same limits: 0.48 per minute and lane at
generation 3, 0.96 at 4, 1.92 at 5, 3.84 at 6."""


def most_a_minute(link: Pcie) -> float | None:
    """The most replays per minute, at one per wrong bit, at the link's highest generation; None if unknown."""
    width, generation = link["width"], link["generation_max"] or link["generation"]
    if not width or generation not in GIGATRANSFERS:
        return None
    return width * GIGATRANSFERS[generation] * 1e9 * 60 * ERROR_RATE
