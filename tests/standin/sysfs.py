"""The /sys and the /proc/driver of a machine, and what its driver has in /dev."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tests.standin.expand import Gpu, Keys, Place, place
from tests.standin.tree import Tree

GIGATRANSFERS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
"""By PCIe generation."""
INTEL, BROADCOM, NVIDIA, MELLANOX = "0x8086", "0x1000", "0x10de", "0x15b3"


def tree(machine: Mapping[str, Any], gpus: Sequence[Gpu], seen: Sequence[int]) -> Tree:
    """`seen`: the numbers of the GPUs that /proc/driver/nvidia lists, those of a container."""
    found = Tree()
    for gpu in () if machine.get("no_pci") else gpus:
        _gpu(found, machine, gpu)
    for row in machine.get("nics", []):
        _nic(found, machine, row)
    for row in machine.get("switches", []):
        device = f"0x{row.get('device', 0x22A3):04x}"
        _device(found, machine, place(row), "nvidia-nvswitch", **{"class": "0x068000"}, vendor=NVIDIA, device=device)
    _nodes(found, machine)
    if machine.get("no_pci"):
        found.folders |= {"/proc/driver", "/dev"}
    else:
        _driver(found, machine, [gpus[number] for number in seen])
    found.folders |= {"/sys/fs/cgroup", "/sys/devices/system/cpu", "/sys/kernel/iommu_groups", "/sys/class/iommu"}
    found.folders |= {"/sys/class/infiniband", *(f"/sys/class/net/{name}" for name in os.listdir("/sys/class/net"))}
    return found


def _number(keys: Keys, name: str, otherwise: int) -> int:
    """A key that a test has made an error, or took away, tells nothing to sysfs."""
    try:
        return int(str(keys.get(name, otherwise)), 0)
    except ValueError:
        return otherwise


# PCI devices


def _folder(at: Place, depth: int | None = None) -> str:
    """The device's, or that of the bridge so deep below the root."""
    return f"/sys/devices/pci{at.path[0]}/" + "/".join(at.path[1:depth])


def _device(tree: Tree, machine: Mapping[str, Any], at: Place, driver: str, **files: object) -> str:
    """The folder of a device, its link in /sys/bus, and the bridges above it."""
    slot = machine["slot"]["generation"]
    for depth, bus in enumerate(at.path[1:-1], 2):
        vendor = INTEL if depth == 2 else BROADCOM
        told = {"class": "0x060400", "vendor": vendor, "device": "0xc030", "numa_node": at.node}
        tree.text(_folder(at, depth), **told, **_link(slot, 16, slot))
        tree.link(f"/sys/bus/pci/devices/{bus}", _folder(at, depth))
    folder = _folder(at)
    cpus = machine["cpus"][max(at.node, 0)]
    tree.text(folder, **_link(slot, 16, slot), numa_node=at.node, local_cpulist=cpus)
    tree.text(folder, **files)
    tree.link(f"/sys/bus/pci/devices/{at.bus}", folder)
    tree.folders.add(f"/sys/bus/pci/drivers/{driver}")
    tree.link(f"{folder}/driver", f"/sys/bus/pci/drivers/{driver}")
    return folder


def _link(generation: int, width: int, max_generation: int) -> dict[str, object]:
    return {
        "current_link_speed": f"{GIGATRANSFERS[generation]} GT/s PCIe",
        "current_link_width": width,
        "max_link_speed": f"{GIGATRANSFERS[max_generation]} GT/s PCIe",
        "max_link_width": 16,
    }


def _gpu(tree: Tree, machine: Mapping[str, Any], gpu: Gpu) -> None:
    identity = _number(gpu.keys, "pci.device_id", 0x233010DE)
    subsystem = _number(gpu.keys, "pci.subsystem_id", 0x10DE)
    slot = machine["slot"]["generation"]
    generation, width = _number(gpu.keys, "pcie.generation", slot), _number(gpu.keys, "pcie.width", 16)
    told = {
        "class": machine.get("class", "0x030200"), "vendor": NVIDIA, "device": f"0x{identity >> 16:04x}",
        "subsystem_vendor": f"0x{subsystem & 0xFFFF:04x}", "subsystem_device": f"0x{subsystem >> 16:04x}",
        **_link(generation, width, _number(gpu.keys, "pcie.gpu_max.generation", slot)),
    }  # fmt: skip
    folder = _device(tree, machine, gpu.place, "nvidia", **told)
    _bars(tree, machine, folder, _number(gpu.keys, "bar1.total", 0))
    tree.text(_folder(gpu.place, -1), **_link(generation, width, slot))  # the port above has the same link


def _bars(tree: Tree, machine: Mapping[str, Any], folder: str, bar1: int) -> None:
    """The card's BARs; `bar1_able` of a machine is the largest BAR1 that its cards offer."""
    first = 0x20_0000_0000
    bars = [(0xF400_0000, 0xF4FF_FFFF, 0x40200), (first, first + bar1 - 1, 0x14220C), (0, 0, 0)]
    tree.text(folder, resource="\n".join(f"0x{a:016x} 0x{b:016x} 0x{flags:016x}" for a, b, flags in bars))
    if able := machine.get("bar1_able"):
        offered = sum(1 << bit for bit in range(6, 40) if 2**bit * 2**20 <= able)
        tree.text(folder, resource1_resize=f"{offered:016x}")


def _nic(tree: Tree, machine: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    at, is_ethernet = place(row), row.get("ethernet", False)
    slot = machine["slot"]
    told = {"class": "0x020000" if is_ethernet else "0x020700", "device": f"0x{slot['nic_device']:04x}"}
    folder = _device(tree, machine, at, "mlx5_core", **told, vendor=MELLANOX)
    rdma, net = f"{folder}/infiniband/{row['name']}", f"{folder}/net/{row['net']}"
    layer = "Ethernet" if is_ethernet else "InfiniBand"
    tree.text(rdma, node_type="1: CA", fw_ver="28.39.2048", hca_type="MT4129")
    tree.text(f"{rdma}/ports/1", state="4: ACTIVE", phys_state="5: LinkUp", rate=f"{slot['nic']} Gb/sec (4X)")
    tree.text(f"{rdma}/ports/1", link_layer=layer)
    tree.text(net, operstate="up", mtu=4092, carrier=1, type=1 if is_ethernet else 32)
    for of_rank, class_ in ((rdma, "infiniband"), (net, "net")):
        tree.link(f"{of_rank}/device", folder)
        tree.link(f"/sys/class/{class_}/{of_rank.rsplit('/', 1)[1]}", of_rank)


# NUMA nodes, and what the driver shows


def _nodes(tree: Tree, machine: Mapping[str, Any]) -> None:
    folder = "/sys/devices/system/node"
    count = len(machine["cpus"])
    listed = f"0-{count - 1}" if count > 1 else "0"
    tree.text(folder, online=listed, possible=listed, has_cpu=listed)
    for number, cpus in enumerate(machine["cpus"]):
        distance = " ".join("10" if number == other else "21" for other in range(count))
        tree.text(f"{folder}/node{number}", cpulist=cpus, distance=distance)


def _driver(tree: Tree, machine: Mapping[str, Any], gpus: Sequence[Gpu]) -> None:
    version = machine["system"]["driver"]
    title = "Open Kernel Module for x86_64" if machine.get("open") else "x86_64 Kernel Module"
    compiler = "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)"
    told = f"NVRM version: NVIDIA UNIX {title}  {version}  Thu Feb  1 00:00:00 UTC 2024\n{compiler}"
    tree.text("/proc/driver/nvidia", version=told)
    tree.text("/dev", nvidiactl="")
    for gpu in gpus:
        about = {
            "Model: \t\t": gpu.keys.get("name", ""), "GPU UUID: \t": gpu.keys.get("uuid", ""),
            "Video BIOS: \t": str(gpu.keys.get("vbios", "")).lower(), "Bus Type: \t": "PCIe",
            "Bus Location: \t": gpu.place.bus, "Device Minor: \t": gpu.keys.get("minor", 0),
            "GPU Firmware: \t": version, "GPU Excluded:\t": "No",
        }  # fmt: skip
        lines = "\n".join(f"{name} {value}" for name, value in about.items())
        tree.text(f"/proc/driver/nvidia/gpus/{gpu.place.bus}", information=lines)
    for module in ("nvidia", "nvidia_uvm", *(["nvidia_peermem"] if machine.get("nics") else [])):
        tree.text(f"/sys/module/{module}", version=version)
