"""Which addresses a backend will listen on: the rules of NCCL and of gloo for choosing a network interface.

NCCL: ncclFindInterfaces (src/misc/socket.cc), ncclOsFindInterfaces and ncclFindInterfaceMatchSubnet (src/os/linux.cc),
parseStringList and matchIf (src/misc/utils.cc), bootstrapNetInit (src/bootstrap.cc), as in 2.30.7. Before 2.28.3 NCCL
left out neither virbr* nor an interface that is down or has no carrier (findInterfaces in src/misc/socket.cc).

gloo: the constructor in torch/csrc/distributed/c10d/init.cpp, createDefaultDevice in ProcessGroupGloo.cpp, and
lookupAddrForIface and lookupAddrForHostname in gloo/transport/tcp/device.cc, as in torch 2.13.
"""

import ipaddress
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypedDict

from preflight.nccl import config_files
from preflight.nccl import version as nccl_version
from preflight.sdk import addresses, tcp
from preflight.sdk.addresses import Address, is_address

Resolver = Callable[[str], str | None]
"""The first address of a name; None if it has none or is not resolved in time."""

PATIENCE_S = 4.0
"""The system's resolver gives up by itself after 5 s (resolv.conf(5)), and then asks again."""
ORDER, ORDER_BEFORE_2_28 = ("^docker,lo,virbr", "docker", "lo", "virbr"), ("^docker,lo", "docker", "lo")
"""The order in which NCCL looks for interfaces by default."""
MOST = 16
"""The most interfaces that NCCL takes (MAX_IFS)."""


class Chosen(TypedDict):
    """One address that a backend listens on."""

    interface: str
    address: str
    """Without a scope: "10.0.0.1", "fd00::1"."""


def by(backend: str, environ: Mapping[str, str]) -> list[Chosen]:
    """The addresses that `backend` ("nccl" or "gloo") will use on this host; the first is that of its bootstrap. Empty
    if it finds none. May take PATIENCE_S if a name must be looked up. Raises OSError if the kernel does not list
    the interfaces."""
    entries = addresses.listed()
    if backend == "gloo":
        own_name = partial(tcp.gloo_address, socket.gethostname())
        return by_gloo(entries, environ, lambda: tcp.in_time({"": own_name}, PATIENCE_S).get(""))
    return by_nccl(entries, config_files.with_files(environ), _first_address, nccl_version.installed())


def _first_address(name: str) -> str | None:
    _, found, _ = tcp.in_time({"": partial(tcp.resolve, name, 0)}, PATIENCE_S).get("", (0.0, {}, ""))
    return next(iter(found), None)


# NCCL


def by_nccl(
    entries: Sequence[Address], settings: Mapping[str, str], resolver: Resolver, version: str = ""
) -> list[Chosen]:
    """`settings`: the environment with what NCCL's files add. `version`: NCCL's, such as "2.27.5"; "" is the newest."""
    is_old = nccl_version.is_before(version, 2, 28)
    able = [entry for entry in entries if is_old or entry.flags & addresses.RUNNING]
    names, meeting = settings.get("NCCL_SOCKET_IFNAME", ""), settings.get("NCCL_COMM_ID")
    near = _in_subnet(entries, meeting, resolver) if meeting else []
    order = ORDER_BEFORE_2_28 if is_old else ORDER
    taken = matching(able, names, settings) if len(names) > 1 else _by_default(able, settings, near, order)
    if meeting is None:
        return taken
    return (
        [*near, *(chosen for chosen in taken if chosen not in near)] if near else []
    )  # whatever NCCL_SOCKET_IFNAME says


def _by_default(
    able: Sequence[Address], settings: Mapping[str, str], near: list[Chosen], order: Sequence[str]
) -> list[Chosen]:
    """InfiniBand first, then what is near NCCL_COMM_ID, then anything but docker, loopback and the like, then those."""
    if taken := matching(able, "ib", settings) or near:
        return taken
    return next((taken for names in order if (taken := matching(able, names, settings))), [])


def matching(entries: Sequence[Address], names: str, settings: Mapping[str, str]) -> list[Chosen]:
    """The first address of each interface that the list selects. NCCL_SOCKET_FAMILY allows one family only."""
    family = {"AF_INET": socket.AF_INET, "AF_INET6": socket.AF_INET6}.get(settings.get("NCCL_SOCKET_FAMILY", ""))
    taken: dict[str, Chosen] = {}
    for entry in entries:
        if entry.family not in (socket.AF_INET, socket.AF_INET6) or family not in (None, entry.family):
            continue
        if entry.text != "::1" and takes(names, entry.interface):
            taken.setdefault(entry.interface, {"interface": entry.interface, "address": entry.text})
    return list(taken.values())[:MOST]


def takes(names: str, interface: str) -> bool:
    """Whether the list selects the interface. `^` (not these) and `=` (whole names, not prefixes) precede the list."""
    rest = names.removeprefix("^")
    words = [word.partition(":")[0] for word in rest.removeprefix("=").split(",")]
    words = [word for word in words if word][:MOST]
    exactly = rest.startswith("=")
    is_listed = not words or any(interface == word if exactly else interface.startswith(word) for word in words)
    return is_listed != names.startswith("^")


def _in_subnet(entries: Sequence[Address], meeting: str, resolver: Resolver) -> list[Chosen]:
    """The first address in the subnet of NCCL_COMM_ID, even of an interface that is down."""
    name = meeting[1:].partition("]")[0] if meeting.startswith("[") else meeting.partition(":")[0]
    text = name if is_address(name) else resolver(name)
    if not text or not is_address(text):
        return []
    there = ipaddress.ip_address(text.partition("%")[0])
    for entry in entries:
        if entry.text and there in ipaddress.ip_network((entry.text, entry.prefix), strict=False):
            return [{"interface": entry.interface, "address": entry.text}]
    return []


# gloo


def by_gloo(
    entries: Sequence[Address], environ: Mapping[str, str], own_address: Callable[[], str | None]
) -> list[Chosen]:
    """The first address of each interface in GLOO_SOCKET_IFNAME, even if it is down; one without an address is left out
    (gloo gives up). `own_address`: the host name's, as gloo chooses it; None if it is not known."""
    names = environ.get("GLOO_SOCKET_IFNAME", "")
    if len(names) > 1:
        first: dict[str, Chosen] = {}
        for entry in entries:
            if entry.text:
                first.setdefault(entry.interface, {"interface": entry.interface, "address": entry.text})
        return [first[name] for name in names.split(",") if name in first]
    address = own_address()
    if address is None:
        return []
    return [{"interface": interface_of(entries, address), "address": address.partition("%")[0]}]


def interface_of(entries: Sequence[Address], address: str) -> str:
    """The interface with this address, or "". All of 127.0.0.0/8 belongs to loopback."""
    plain = address.partition("%")[0]
    for entry in entries:
        if entry.text == plain or (plain.startswith("127.") and entry.text.startswith("127.")):
            return entry.interface
    return ""
