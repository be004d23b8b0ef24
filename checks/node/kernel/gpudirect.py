"""What keeps GPUs and network cards from reaching each other over PCIe, read from /proc and /sys.

The rules are from NCCL's guide (troubleshooting, GPU Direct) and CUDA's programming guide (IOMMU on Linux).
"""

import os
import re
from typing import TypedDict

from preflight.check import entries, read
from preflight.sdk import pci_isolation

NVIDIA, MELLANOX = "0x10de", "0x15b3"
GPU, SWITCH = "0x0302", "0x0680"
"""PCI classes: a 3D controller is a data-center GPU, and a bridge by NVIDIA is an NVSwitch. gpu.topology looks at cards
with a display (0x0300): most of them have no P2P, as only the driver says."""
DMABUF_KERNEL = (5, 12)


class Setup(TypedDict):
    gpus: list[str]
    """Addresses."""
    nics: list[str]
    """PCI addresses of NVIDIA's RDMA devices with an active port: these use peer memory."""
    bare_metal: bool
    kernel: str
    driver: str
    """open, proprietary, or "" if unknown."""
    peermem: bool
    redirecting: list[str] | None
    """Ports of PCIe switches above GPUs and NICs that redirect; None if we may not look."""
    translated: list[str]
    """GPUs and NICs whose DMA an IOMMU translates."""
    nvswitches: int
    fabric_manager: bool | None
    """Whether it runs; None if the host's processes are not visible."""


def setup(root: str = "") -> Setup:
    gpus = _pci(root, NVIDIA, GPU)
    nics = _nics(root)
    turned_off = "NvLinkDisable: 1" in read(f"{root}/proc/driver/nvidia/params")  # the fabric is not used then
    return {
        "gpus": gpus,
        "nics": nics,
        "bare_metal": pci_isolation.bare_metal(root),
        "kernel": read(f"{root}/proc/sys/kernel/osrelease"),
        "driver": _driver(root),
        "peermem": any(os.path.isdir(f"{root}/sys/module/{name}") for name in ("nvidia_peermem", "nv_peer_mem")),
        "redirecting": pci_isolation.redirecting([*gpus, *nics], root),
        "translated": pci_isolation.translated([*gpus, *nics], root),
        "nvswitches": 0 if turned_off else len(_pci(root, NVIDIA, SWITCH)),
        "fabric_manager": _runs(root, "nv-fabricmanage"),  # the kernel keeps 15 letters
    }


def has_dmabuf(setup: Setup) -> bool:
    """Whether the NIC can reach GPU memory without peermem."""
    version = re.match(r"(\d+)\.(\d+)", setup["kernel"])
    return setup["driver"] != "proprietary" and (version is None or (int(version[1]), int(version[2])) >= DMABUF_KERNEL)


def _pci(root: str, vendor: str, kind: str) -> list[str]:
    devices = f"{root}/sys/bus/pci/devices"
    ours = [bus for bus in entries(devices) if read(f"{devices}/{bus}/vendor") == vendor]
    return sorted(bus for bus in ours if read(f"{devices}/{bus}/class").startswith(kind))


def _nics(root: str) -> list[str]:
    folder = f"{root}/sys/class/infiniband"
    found = []
    for name in entries(folder):
        ports = f"{folder}/{name}/ports"
        active = any("ACTIVE" in read(f"{ports}/{port}/state") for port in entries(ports))
        if active and read(f"{folder}/{name}/device/vendor") == MELLANOX:
            found.append(os.path.basename(os.path.realpath(f"{folder}/{name}/device")))
    return sorted(found)


def _driver(root: str) -> str:
    version = read(f"{root}/proc/driver/nvidia/version")
    return "" if not version else "open" if "Open Kernel Module" in version else "proprietary"


def _runs(root: str, name: str) -> bool | None:
    """Whether this process runs; None if the host's processes are not visible: only the host has a process 2."""
    if read(f"{root}/proc/2/comm") != "kthreadd":
        return None
    return any(read(f"{root}/proc/{pid}/comm") == name for pid in entries(f"{root}/proc") if pid.isdecimal())
