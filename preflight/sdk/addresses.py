"""The interfaces of this host and their addresses, in the C library's order (getifaddrs(3)): NCCL and gloo take the
first suitable one."""

import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

UP, RUNNING = 0x1, 0x40
"""IFF_UP and IFF_RUNNING (netdevice(7)): the interface is enabled; and it has a carrier."""


class Address(NamedTuple):
    """One entry of getifaddrs."""

    interface: str
    flags: int
    family: int
    """AF_INET, AF_INET6 or AF_PACKET; the last is an entry that an interface has even without an address."""
    text: str
    """Without a scope: "10.0.0.1", "fe80::1"; "" for AF_PACKET."""
    prefix: int
    """Length of the subnet prefix in bits."""


def is_address(text: str) -> bool:
    """Whether a text is an address of IPv4 or IPv6, and no name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


ENTRY = struct.Struct("@PPIPPPP")
"""struct ifaddrs: next, name, flags, address, netmask, and two that are not read."""


def listed() -> list[Address]:
    """All addresses of this host. Raises OSError if the kernel does not report them."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    library.freeifaddrs.argtypes = [ctypes.c_void_p]
    first = ctypes.c_void_p()
    if library.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        return list(_read(first.value or 0, ctypes.string_at))
    finally:
        library.freeifaddrs(first)


def _read(place: int, memory: Callable[..., bytes]) -> Iterator[Address]:
    while place:
        place, name_at, flags, address, netmask, _, _ = ENTRY.unpack(memory(place, ENTRY.size))
        if address:
            name = os.fsdecode(memory(name_at))
            (family,) = struct.unpack("H", memory(address, 2))
            offset, size = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}.get(family, (0, 0))
            text = str(ipaddress.ip_address(memory(address + offset, size))) if size else ""
            mask = memory(netmask + offset, size) if netmask else b"\xff" * size
            yield Address(name, flags, family, text, int.from_bytes(mask, "big").bit_count())
