"""What keeps GPUs and network cards from reaching each other over PCIe, read from /proc and /sys.

The rules are from NCCL's guide (troubleshooting, GPU Direct) and CUDA's programming guide (IOMMU on Linux).
"""

import os
import re
from collections.abc import Iterable
from typing import TypedDict

from preflight.check import entries, read

NVIDIA, MELLANOX = "0x10de", "0x15b3"
GPU, SWITCH = "0x0302", "0x0680"
"""PCI classes: a 3D controller is a data-center GPU (display GPUs, 0x0300, mostly have no P2P), and a bridge by
NVIDIA is an NVSwitch."""
DMABUF_KERNEL = (5, 12)
PCIE, ACS = 0x10, 0x000D
"""Ids of the PCIe capability and the ACS extended capability (linux/pci_regs.h)."""
DOWNSTREAM_PORT = 6
REDIRECTS = 0x04 | 0x08
"""ACS control bits that redirect peer requests and completions to the root, which slows or breaks P2P."""


class Setup(TypedDict):
    gpus: list[str]
    """Addresses."""
    nics: list[str]
    """PCI addresses of NVIDIA's RDMA devices with an active port: these use peer memory."""
    bare_metal: bool
    """x86 without a hypervisor. Virtual machines and Grace need their IOMMU and ACS settings."""
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
        "bare_metal": os.uname().machine == "x86_64" and not _virtual(root),
        "kernel": read(f"{root}/proc/sys/kernel/osrelease"),
        "driver": _driver(root),
        "peermem": any(os.path.isdir(f"{root}/sys/module/{name}") for name in ("nvidia_peermem", "nv_peer_mem")),
        "redirecting": _redirecting(root, [*gpus, *nics]),
        "translated": [device for device in (*gpus, *nics) if _domain(root, device).startswith("DMA")],
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


def _virtual(root: str) -> bool:
    return re.search(r"^flags\s*:.*\bhypervisor\b", read(f"{root}/proc/cpuinfo"), re.MULTILINE) is not None


def _driver(root: str) -> str:
    version = read(f"{root}/proc/driver/nvidia/version")
    return "" if not version else "open" if "Open Kernel Module" in version else "proprietary"


def _domain(root: str, device: str) -> str:
    """identity (not translated), DMA, DMA-FQ, or "" without an IOMMU."""
    return read(f"{root}/sys/bus/pci/devices/{device}/iommu_group/type")


def _runs(root: str, name: str) -> bool | None:
    """Whether this process runs; None if the host's processes are not visible: only the host has a process 2."""
    if read(f"{root}/proc/2/comm") != "kthreadd":
        return None
    return any(read(f"{root}/proc/{pid}/comm") == name for pid in entries(f"{root}/proc") if pid.isdecimal())


def _redirecting(root: str, devices: Iterable[str]) -> list[str] | None:
    ports = sorted({port for device in devices for port in _above(root, device)})
    controls = {port: acs_control(_config(f"{root}/sys/bus/pci/devices/{port}/config")) for port in ports}
    if any(control is None for control in controls.values()):
        return None
    return [port for port, control in controls.items() if control and control & REDIRECTS]


def _above(root: str, device: str) -> list[str]:
    path = os.path.realpath(f"{root}/sys/bus/pci/devices/{device}")
    return [part for part in path.split("/") if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", part)][:-1]


def _config(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def acs_control(config: bytes) -> int | None:
    """The ACS control register of a PCIe switch's downstream port, from its configuration space; 0 for other devices.
    None if only the first 64 bytes may be read. Root ports do not matter: their traffic goes to the root anyway."""
    if len(config) <= 64:
        return None
    at, hops = config[0x34] & 0xFC, 48
    while at and hops and config[at] != PCIE:
        at, hops = config[at + 1] & 0xFC, hops - 1
    if not at or not hops or (config[at + 2] >> 4) & 0xF != DOWNSTREAM_PORT or len(config) < 4096:
        return 0
    at, hops = 0x100, 960
    while at and hops:
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == ACS:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at, hops = (header >> 20) & 0xFFC, hops - 1
    return 0
