"""Where GPUs and network cards are on the PCI bus, from sysfs, and how near two of them are, in the words of
`nvidia-smi topo -m`."""

import os
import re
from functools import lru_cache
from itertools import takewhile
from typing import TypedDict

from preflight.check import entries, read
from preflight.checks.gpu.shared import pci

RDMA, NODES = "/sys/class/infiniband", "/sys/devices/system/node"
NEARNESS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""What is between two devices: at most one PCIe switch, several, a host bridge, host bridges of a NUMA node, more."""
MOST_NICS = 32
"""The most to draw: a node may have a hundred virtual functions."""


class Device(TypedDict):
    path: list[str]
    """From the host bridge down to the device: "pci0000:15", "0000:15:01.0", ..., "0000:1b:00.0"."""
    numa: int
    """The NUMA node; -1 if the firmware names none."""
    cpus: str
    """The NUMA node's CPUs: "0-55,112-167"."""


class Cpu(TypedDict):
    vendor: str
    """GenuineIntel, AuthenticAMD, or "" if unknown, as on Arm."""
    virtual: bool
    """Whether it is a virtual machine."""


def cpu() -> Cpu:
    text = read("/proc/cpuinfo")
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.MULTILINE)
    return {
        "vendor": vendor[1] if vendor else "",
        "virtual": re.search(r"^flags\s*:.*\bhypervisor\b", text, re.MULTILINE) is not None,
    }


def gpus() -> dict[str, Device]:
    """GPUs by bus id, including those that a container hides."""
    return {bus: found for bus in pci.gpus() if (found := _device(bus))}


def nics() -> dict[str, Device]:
    """The RDMA devices by name, "mlx5_0", in order. Virtual functions only if there is nothing else, as in a virtual
    machine: otherwise they are where their card is."""
    found: dict[str, Device] = {}
    for name in sorted(entries(RDMA), key=_in_order):
        bus = os.path.basename(os.path.realpath(os.path.join(RDMA, name, "device")))
        device = _device(bus)
        if device and not os.path.exists(os.path.join(pci.ROOT, bus, "physfn")) and len(found) < MOST_NICS:
            found[name] = device
    return found


def _in_order(name: str) -> list[tuple[int, str]]:
    """mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _device(bus: str) -> Device | None:
    """None if it is not a PCI device, as RDMA in software."""
    parts = os.path.realpath(os.path.join(pci.ROOT, bus)).split(os.sep)
    start = next((at for at, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", part)), None)
    if start is None:
        return None
    numa = pci.number(bus, "numa_node")
    cpus = read(f"{NODES}/node{numa}/cpulist") if numa is not None and numa >= 0 else ""
    return {"path": parts[start:], "numa": -1 if numa is None else numa, "cpus": cpus}


@lru_cache(maxsize=65536)
def nearness(path: tuple[str, ...], other: tuple[str, ...], same_node: bool) -> str:
    """One of NEARNESS. `path`, `other`: the devices' paths; `same_node`: whether they are on one NUMA node. In a path,
    a switch is two bridges: its upstream and downstream port."""
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, other, strict=False)))
    if shared > 1:
        return "PIX" if max(len(path), len(other)) - shared <= 2 else "PXB"
    return "PHB" if shared else "NODE" if same_node else "SYS"
