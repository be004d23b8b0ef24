"""The RDMA devices of this host, as /sys/class/infiniband describes them (the kernel's
Documentation/ABI/stable/sysfs-class-infiniband)."""

import os
import re
from collections.abc import Mapping
from typing import TypedDict

from preflight.checks.net.shared import hca_counters
from preflight.sdk import files

FOLDER = "/sys/class/infiniband"
INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
MELLANOX = "0x15b3"
VIRTUAL = ("0x1012", "0x1014", "0x1016", "0x1018", "0x101a", "0x101c", "0x101e", "0xa2d3")
"""PCI device ids of NVIDIA's virtual functions (the kernel's mlx5_core_pci_table in mlx5/core/main.c): in a guest
nothing else identifies them."""
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


class Gid(TypedDict):
    """An entry of a RoCE port's table, without its address, so that similar nodes have equal facts."""

    index: int
    kind: str
    """ipv4, ipv6, link-local, or default (only a prefix)."""
    version: int | None
    """The RoCE version; None if it cannot be read."""
    interface: str


class Port(TypedDict):
    port: int
    state: str
    """ACTIVE, DOWN, INIT, ARMED, or "" if it cannot be read."""
    physical: str
    """LinkUp, Polling, Disabled ..."""
    layer: str
    """InfiniBand, Ethernet; EFA has Unspecified."""
    rate: float | None
    """Gb/s."""
    gids: list[Gid] | None
    """Only for Ethernet; None for other link layers, and if they cannot be read."""
    more_gids: bool
    """Whether there are more than were kept."""
    counters: dict[str, int]
    """Those of hca_counters.KEPT that are not 0."""


class Hca(TypedDict):
    """ "" and None mean that sysfs does not tell."""

    name: str
    vendor: str
    """The PCI vendor id: "0x15b3"."""
    kind: str
    """The board, or the model if the board is not told."""
    firmware: str
    bus: str
    numa: int | None
    pcie: str
    """The link's current state: "32.0 GT/s x16"."""
    virtual: bool
    """Whether it is a virtual function, whose card belongs to its host."""
    opens: bool | None
    """Whether this process may open it (/dev/infiniband): libibverbs hides others from NCCL."""
    ports: list[Port]


def vendor(name: str, root: str = "") -> str:
    """The PCI vendor id, which can be read even if the card does not answer."""
    return files.read(f"{root}{FOLDER}/{name}/device/vendor")


def names(root: str = "") -> list[str]:
    """The devices' names; mlx5_2 before mlx5_10."""
    return sorted(files.entries(f"{root}{FOLDER}"), key=_natural)


def read(name: str, verbs: Mapping[str, str], most_gids: int, root: str = "") -> Hca:
    """`verbs`: from `verbs_devices`. `most_gids`: how many to keep of a port's table."""
    folder = f"{root}{FOLDER}/{name}"
    device = f"{folder}/device"
    numa = files.read(f"{device}/numa_node")
    model = files.read(f"{device}/device")
    own = f"{files.read(f'{device}/vendor')} {model}".strip()
    path = verbs.get(name)
    ports = sorted((number for number in files.entries(f"{folder}/ports") if number.isdecimal()), key=int)
    return {
        "name": name,
        "vendor": files.read(f"{device}/vendor"),
        "kind": files.read(f"{folder}/board_id") or files.read(f"{folder}/hca_type") or own,
        "firmware": files.read(f"{folder}/fw_ver"),
        "bus": os.path.basename(os.path.realpath(device)) if os.path.exists(device) else "",
        "numa": int(numa) if re.fullmatch(r"\d+", numa) else None,
        "pcie": _pcie(device),
        "virtual": model in VIRTUAL or os.path.exists(f"{device}/physfn"),
        "opens": None if path is None else os.access(f"{root}{path}", os.R_OK | os.W_OK),
        "ports": [_port(f"{folder}/ports/{number}", int(number), most_gids) for number in ports],
    }


def verbs_devices(root: str = "") -> dict[str, str]:
    """{HCA: its device file}; the file may not exist."""
    folder = f"{root}/sys/class/infiniband_verbs"
    found = {files.read(f"{folder}/{name}/ibdev"): f"/dev/infiniband/{name}" for name in files.entries(folder)}
    return {name: path for name, path in found.items() if name}


def watched(name: str, root: str = "") -> dict[str, tuple[str, dict[str, int]]]:
    """{"mlx5_0:1": (state, counters)}: what may change during a run."""
    ports = f"{root}{FOLDER}/{name}/ports"
    return {
        f"{name}:{port}": (_named(f"{ports}/{port}/state"), _counters(f"{ports}/{port}"))
        for port in files.entries(ports)
    }


def _port(folder: str, number: int, most_gids: int) -> Port:
    layer, rate = files.read(f"{folder}/link_layer"), re.match(r"[\d.]+", files.read(f"{folder}/rate"))
    gids = _gids(folder) if layer == ETHERNET else None
    return {
        "port": number,
        "state": _named(f"{folder}/state"),
        "physical": _named(f"{folder}/phys_state"),
        "layer": layer,
        "rate": float(rate[0]) if rate else None,
        "gids": gids[:most_gids] if gids is not None else None,
        "more_gids": len(gids or ()) > most_gids,
        "counters": _counters(folder),
    }


def _gids(folder: str) -> list[Gid] | None:
    """The GIDs of a port without empty ones, which the kernel shows as zeros; None if unreadable."""
    numbers = sorted(int(number) for number in files.entries(f"{folder}/gids") if number.isdecimal())
    read = {index: gid for index in numbers if (gid := files.read(f"{folder}/gids/{index}"))}
    return [_gid(folder, index, gid) for index, gid in read.items() if gid != NO_GID] if read else None


def _gid(folder: str, index: int, gid: str) -> Gid:
    interface = files.read(f"{folder}/gid_attrs/ndevs/{index}")
    version = {"IB/RoCE v1": 1, "RoCE v1": 1, "RoCE v2": 2}.get(files.read(f"{folder}/gid_attrs/types/{index}"))
    return {"index": index, "kind": _kind(gid), "version": version, "interface": interface}


def _kind(gid: str) -> str:
    """A GID's kind as NCCL tells them apart (configuredGid, linkLocalGid and getGidAddrFamily in net_ib/connect.cc)."""
    words = gid.lower().split(":")
    if words[:4] == ["fe80", "0000", "0000", "0000"]:
        return "default" if set(words[4:]) == {"0000"} else "link-local"
    return "ipv4" if words[:6] == ["0000"] * 5 + ["ffff"] else "ipv6"


def _counters(folder: str) -> dict[str, int]:
    texts = {name: files.read(f"{folder}/{of}/{name}") for of, names in hca_counters.KEPT.items() for name in names}
    return {name: int(text) for name, text in texts.items() if text.isdecimal() and int(text)}


def _pcie(device: str) -> str:
    """The PCIe link; "" for a virtual function, which says "Unknown" and 0."""
    speed, width = files.read(f"{device}/current_link_speed"), files.read(f"{device}/current_link_width")
    known = re.match(r"[\d.]+ GT/s", speed)
    return f"{known[0]} x{width}" if known and width.isdecimal() and int(width) else ""


def _named(path: str) -> str:
    """The word in "4: ACTIVE"."""
    return files.read(path).rpartition(":")[2].strip()


def _natural(name: str) -> list[tuple[bool, int, str]]:
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]
