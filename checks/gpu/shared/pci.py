"""What sysfs says of PCI devices: which NVIDIA GPUs there are, and the links above them. No driver is asked. And how
often a link may repeat a packet."""

import itertools
import os
import re
from collections.abc import Iterator

from preflight.checks.gpu.shared.readings import Pcie
from preflight.sdk import files

ROOT = "/sys/bus/pci/devices"
NVIDIA = 0x10DE
_DISPLAY = 0x03
"""PCI's base class of display controllers: 0300 is VGA, 0302 is 3D. The audio function of a card is 0403, NVSwitches
are bridges, 0680."""
_OTHER_BRIDGE = 0x0680


def gpus() -> list[str]:
    """Bus ids ("0000:1b:00.0") of the node's NVIDIA GPUs, in order; also of those that a container hides."""
    return [bus for bus in files.entries(ROOT) if number(bus, "vendor") == NVIDIA and _class(bus) >> 8 == _DISPLAY]


def switches() -> list[str]:
    """Bus ids of the node's NVSwitches, in order; those of NVLink 5 are no PCI devices of the host."""
    return [bus for bus in files.entries(ROOT) if number(bus, "vendor") == NVIDIA and _class(bus) == _OTHER_BRIDGE]


def _class(bus: str) -> int:
    return (number(bus, "class") or 0) >> 8


def text(bus: str, name: str) -> str:
    """A file of a device, or ""."""
    return files.read(os.path.join(ROOT, bus, name))


def driver(bus: str) -> str:
    """The name of the kernel's driver that holds a device, or ""."""
    try:
        return os.path.basename(os.readlink(os.path.join(ROOT, bus, "driver")))
    except OSError:
        return ""


def number(bus: str, name: str) -> int | None:
    """A file that holds a number, "0x10de" or "16"."""
    found = re.fullmatch(r"(0x[0-9a-fA-F]+|-?\d+)", text(bus, name))
    return int(found[1], 0) if found else None


def above(bus: str) -> Iterator[str]:
    """Bus ids of the bridges above a device, the nearest first, up to the root port."""
    path = os.path.realpath(os.path.join(ROOT, bus)).split(os.sep)
    return itertools.takewhile(_BUS_ID.fullmatch, reversed(path[:-1]))


_BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""A second and lane, by generation (PCI Express Base Specification 6.0)."""
ERROR_RATE = 1e-12
"""Of bits: the most that the specification allows a lane. NVIDIA's DCGM has the same limits: 0.48 a minute and lane at
generation 3, 0.96 at 4, 1.92 at 5, 3.84 at 6."""


def most_a_minute(link: Pcie) -> float | None:
    """Where every wrong bit costs a replay. At the generation that the link may run at, since it counts at all."""
    width, generation = link["width"], link["generation_max"] or link["generation"]
    if not width or generation not in GIGATRANSFERS:
        return None
    return width * GIGATRANSFERS[generation] * 1e9 * 60 * ERROR_RATE
