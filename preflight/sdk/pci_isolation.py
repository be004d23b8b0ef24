"""What keeps PCIe devices from reaching each other's memory: an IOMMU that translates, switches that redirect (ACS).

The rules are from NCCL's guide (troubleshooting, GPU Direct) and CUDA's programming guide (IOMMU on Linux).
"""

import os
import re
from collections.abc import Iterable, Sequence

from preflight.sdk.files import read

PCIE, ACS = 0x10, 0x000D
"""Ids of the PCIe capability and the ACS extended capability (linux/pci_regs.h)."""
DOWNSTREAM_PORT = 6
REDIRECTS = 0x04 | 0x08
"""ACS control bits that redirect peer requests and completions to the root, which slows or breaks P2P."""


def bare_metal(root: str = "") -> bool:
    """x86 without a hypervisor. Virtual machines and Grace need their IOMMU and ACS settings."""
    return os.uname().machine == "x86_64" and not _virtual(root)


def _virtual(root: str) -> bool:
    return re.search(r"^flags\s*:.*\bhypervisor\b", read(f"{root}/proc/cpuinfo"), re.MULTILINE) is not None


def translated(devices: Iterable[str], root: str = "") -> list[str]:
    """Those of these bus ids whose DMA an IOMMU translates: its domain is DMA or DMA-FQ, not identity."""
    folder = f"{root}/sys/bus/pci/devices"
    return [bus for bus in devices if read(f"{folder}/{bus}/iommu_group/type").startswith("DMA")]


def redirecting(devices: Iterable[str], root: str = "") -> list[str] | None:
    """Ports of PCIe switches above these devices that redirect; None if we may not look."""
    ports = sorted({port for device in devices for port in above(device, root)})
    controls = {port: acs_control(_config(f"{root}/sys/bus/pci/devices/{port}/config")) for port in ports}
    if any(control is None for control in controls.values()):
        return None
    return [port for port, control in controls.items() if control and control & REDIRECTS]


def above(device: str, root: str = "") -> Sequence[str]:
    """Bus ids of the bridges above a device, from the root port down."""
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
