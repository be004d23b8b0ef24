"""What the kernel counts of packets: of some interfaces, and of TCP and UDP, in this network namespace."""

from collections.abc import Collection, Mapping
from typing import TypedDict

from preflight.check import read
from preflight.sdk import netlink

CHECKSUMS = ("Tcp InCsumErrors", "Udp InCsumErrors")
KEPT = (
    *CHECKSUMS, "Tcp OutSegs", "Tcp RetransSegs", "TcpExt TCPBacklogDrop", "TcpExt PruneCalled", "TcpExt RcvPruned",
)  # fmt: skip
"""Of /proc/net/snmp and netstat. The last three: what a host itself dropped whose processes did not read in time."""
PROCESSED, BACKLOG = "processed packets", "backlog drops"
"""Received packets of the whole host, and those that found a core's backlog full (softnet_stat of /proc/net)."""
MOST = 64
ENDS = ("veth", "tun", "dummy")
"""Kinds of which a host of containers has hundreds: they come last."""


class Counters(TypedDict):
    """Without zeros."""

    interfaces: dict[str, dict[str, int]]
    """netlink.STATS, `went_down`, `queue_drops` and `ingress_drops`, by interface. An interface that the kernel does
    not count for is left out."""
    host: dict[str, int]
    """"Tcp RetransSegs" and the like, and BACKLOG."""


def counted(names: Collection[str], root: str = "") -> Counters:
    """Of these interfaces and of those that carry their packets: legs of a bond, the card under a VLAN. `root`: where
    tests have a tree with /proc. Raises OSError where the kernel does not list its links."""
    links, drops = netlink.links(), netlink.queue_drops()
    carrying = _with_carriers(names, links)
    found = {link.name: {**link.counters, **drops.get(link.number, {})} for link in carrying if link.counters}
    interfaces = {name: {key: count for key, count in counters.items() if count} for name, counters in found.items()}
    return {"interfaces": interfaces, "host": _of_host(root)}


def of_one(name: str) -> dict[str, int]:
    """Of one interface and of the host; {} where the kernel does not tell."""
    try:
        counters = counted({name})
    except OSError:
        return {}
    return {**counters["interfaces"].get(name, {}), **counters["host"]}


def _with_carriers(names: Collection[str], links: Collection[netlink.NetworkLink]) -> list[netlink.NetworkLink]:
    found = [link for link in links if link.name in names]
    for link in found:
        found += [other for other in links if _carries(other, link) and other not in found]
    return sorted(found, key=lambda link: link.kind in ENDS)[:MOST]


def _carries(other: netlink.NetworkLink, link: netlink.NetworkLink) -> bool:
    return other.number == link.lower or (other.master == link.number and link.kind != "bridge")


def _of_host(root: str) -> dict[str, int]:
    cores = [line.split() for line in read(f"{root}/proc/net/softnet_stat").splitlines()]
    found = {name: sum(int(core[column], 16) for core in cores) for column, name in enumerate((PROCESSED, BACKLOG))}
    for file in ("snmp", "netstat"):
        counts = _by_protocol(f"{root}/proc/net/{file}")
        found |= {name: int(counts[name]) for name in KEPT if counts.get(name, "").isdecimal()}
    return {name: count for name, count in found.items() if count}


def _by_protocol(path: str) -> dict[str, str]:
    """{"Tcp InCsumErrors": "0"}: each protocol has a line of names and one of numbers."""
    lines = [line.split() for line in read(path).splitlines() if line.strip()]
    found: dict[str, str] = {}
    for (protocol, *names), (_, *numbers) in zip(lines[::2], lines[1::2], strict=False):
        found |= {f"{protocol.rstrip(':')} {name}": number for name, number in zip(names, numbers, strict=False)}
    return found


def risen(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """By how much each has risen, without those that have not. One that fell was reset, and proves nothing."""
    return {name: new - before.get(name, 0) for name, new in after.items() if new > before.get(name, 0)}
