"""What the kernel says about an interface: its state, MTU, speed and kind."""

import fcntl
import os
import re
import socket
import struct
from collections.abc import Sequence
from typing import TypedDict

from preflight.sdk import addresses, files
from preflight.sdk.addresses import Address

CLASS, RDMA = "/sys/class/net", "/sys/class/infiniband"
GET_MTU = 0x8921
"""SIOCGIFMTU (linux/sockios.h)."""
MOST = 64
"""The most interfaces to list: a Kubernetes node has one more for every container."""
INFINIBAND, LOOPBACK = 32, 772
"""Hardware types (linux/if_arp.h)."""


class Interface(TypedDict):
    addresses: list[str]
    """ "10.0.0.1/24"."""
    state: str
    """up, no carrier (enabled, but without a link) or down."""
    mtu: int | None
    speed_mbps: int | None
    """None if unknown, as for virtual interfaces or those without a carrier."""
    kind: str
    """ethernet, infiniband, loopback, another of the kernel's words (bridge, bond, vlan), or virtual; "" if sysfs does
    not show this network namespace."""


def read(
    entries: Sequence[Address], named: Sequence[str] = (), folder: str = CLASS
) -> tuple[dict[str, Interface], int]:
    """(interfaces by name, how many were left out). Leaves out virtual ones without an address, unless `named`: these
    lead to containers."""
    found: dict[str, Interface] = {}
    for entry in entries:
        name = entry.interface.partition(":")[0]  # an address's label follows the colon
        if name not in found:
            found[name] = _interface(name, entry.flags, folder)
        if entry.text:
            found[name]["addresses"].append(f"{entry.text}/{entry.prefix}")
    kept = [name for name, link in found.items() if name in named or not _is_an_end(link)]
    kept = sorted(kept, key=lambda name: name not in named)[:MOST]
    return {name: found[name] for name in found if name in kept}, len(found) - len(kept)


def _is_an_end(link: Interface) -> bool:
    return link["kind"] == "virtual" and all(text.startswith("fe80:") for text in link["addresses"])


def _interface(name: str, flags: int, folder: str) -> Interface:
    state = "down" if not flags & addresses.UP else "up" if flags & addresses.RUNNING else "no carrier"
    place = os.path.join(folder, name)
    is_shown = files.read(f"{place}/ifindex") == str(_index(name))
    speed = files.read(f"{place}/speed") if is_shown else ""
    return {
        "addresses": [],
        "state": state,
        "mtu": mtu(name),
        "speed_mbps": int(speed) if re.fullmatch("[1-9][0-9]{0,8}", speed) else None,
        "kind": _kind(place) if is_shown else "",
    }


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


def mtu(name: str) -> int | None:
    """The MTU in this network namespace, even if /sys shows another; None if the kernel does not say."""
    try:
        with socket.socket(type=socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, GET_MTU, struct.pack("16si12x", os.fsencode(name), 0))
    except OSError:
        return None
    return int(struct.unpack_from("i", answer, 16)[0])


def _kind(place: str) -> str:
    type_ = files.read(f"{place}/type")
    if type_ in (str(INFINIBAND), str(LOOPBACK)):
        return "infiniband" if type_ == str(INFINIBAND) else "loopback"
    pairs = [line.partition("=") for line in files.read(f"{place}/uevent").splitlines()]
    words = {name: value for name, _, value in pairs}
    return words.get("DEVTYPE") or ("ethernet" if os.path.exists(os.path.join(place, "device")) else "virtual")


def towards(family: int, place: tuple[object, ...]) -> str:
    """This host's own address for packets to a place, or "". The kernel looks up its routes; no packet is sent."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((place[0], 9, *place[2:]))
            return str(asking.getsockname()[0]).partition("%")[0]
    except OSError:
        return ""


def host(entries: Sequence[Address]) -> str:
    """An id that is equal only for processes that share a network (a host's or a container's): clones of a virtual
    machine may share a boot id, but then not the list of addresses."""
    import hashlib

    try:
        namespace = os.readlink("/proc/self/ns/net")
    except OSError:
        namespace = ""
    listed = sorted(f"{entry.interface} {entry.text}" for entry in entries)
    text = "\n".join([files.read("/proc/sys/kernel/random/boot_id"), namespace, *listed])
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def has_rdma(folder: str = RDMA) -> bool:
    """Whether there is any InfiniBand, RoCE or EFA device."""
    return bool(files.entries(folder))
