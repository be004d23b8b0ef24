"""What the kernel counts of links and their queues, asked over netlink (rtnetlink(7)).

The answers are of this network namespace, whatever /sys shows, and also there where a container has no /sys.
"""

import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

PATIENCE_S = 2.0
RECEIVE = 1 << 16
HEADER, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
"""struct nlmsghdr (length, type, flags, sequence, port) and struct rtattr (length, type)."""
GET_LINK, GET_QDISC = 18, 38
DUMP = 0x301
"""NLM_F_REQUEST and NLM_F_DUMP."""
ERROR, DONE = 2, 3
LINK, QDISC = struct.Struct("=BxHiII"), struct.Struct("=Bxxxi3I")
"""struct ifinfomsg (family, type, index, flags, change) and struct tcmsg (family, index, handle, parent, info)."""
IFNAME, LOWER, MASTER, INFO, STATS64, ELSEWHERE, WENT_DOWN = 3, 5, 10, 18, 23, 37, 48
"""IFLA_IFNAME, IFLA_LINK, IFLA_MASTER, IFLA_LINKINFO, IFLA_STATS64, IFLA_LINK_NETNSID and IFLA_CARRIER_DOWN_COUNT."""
KIND, ON_ANOTHER = 1, ("vlan", "macvlan", "ipvlan")
"""IFLA_INFO_KIND, and the kinds whose IFLA_LINK is the link that carries their packets: a veth's is its other end."""
STATS = (
    "rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped",
    "multicast", "collisions", "rx_length_errors", "rx_over_errors", "rx_crc_errors", "rx_frame_errors",
    "rx_fifo_errors", "rx_missed_errors", "tx_aborted_errors", "tx_carrier_errors", "tx_fifo_errors",
)  # fmt: skip
"""The first fields of struct rtnl_link_stats64, each of 64 bits."""
QUEUE_STATS = 3
"""TCA_STATS, a struct tc_stats: 64 bits of bytes, then 32 each of packets and of drops."""
ROOT, INGRESS = 0xFFFFFFFF, 0xFFFFFFF1
"""Parents of the queues that count for all below them (TC_H_ROOT, TC_H_INGRESS)."""


class NetworkLink(NamedTuple):
    number: int
    name: str
    kind: str
    """bond, bridge, vlan, veth and the like; "" for a card."""
    lower: int
    """The number of the link that carries its packets (a VLAN's), or 0."""
    master: int
    """The number of the bond or bridge that it is a part of, or 0."""
    counters: dict[str, int]
    """STATS, and `went_down`: how often it lost its carrier. Empty where the kernel does not count."""


def links() -> list[NetworkLink]:
    """All links of this network namespace. Raises OSError where the kernel does not tell."""
    return [_link(message) for message in _dump(GET_LINK, LINK)]


def _link(message: bytes) -> NetworkLink:
    _, _, index, _, _ = LINK.unpack_from(message)
    fields = _attributes(message[LINK.size :])
    stats = fields.get(STATS64, b"")
    counters = dict(zip(STATS, (number for (number,) in struct.iter_unpack("=Q", stats)), strict=False))
    if WENT_DOWN in fields:
        counters["went_down"] = _number(fields[WENT_DOWN])
    kind = _text(_attributes(fields.get(INFO, b"")).get(KIND, b""))
    lower = _number(fields.get(LOWER, b"")) if kind in ON_ANOTHER and ELSEWHERE not in fields else 0
    return NetworkLink(index, _text(fields.get(IFNAME, b"")), kind, lower, _number(fields.get(MASTER, b"")), counters)


def queue_drops() -> dict[int, dict[str, int]]:
    """{index of a link: {"queue_drops": of what it sent, "ingress_drops": of what it received}}, by traffic control
    (tc(8)), where there is any. Raises OSError where the kernel does not tell."""
    found: dict[int, dict[str, int]] = {}
    for message in _dump(GET_QDISC, QDISC):
        _, index, _, parent, _ = QDISC.unpack_from(message)
        stats = _attributes(message[QDISC.size :]).get(QUEUE_STATS, b"")
        if parent in (ROOT, INGRESS) and len(stats) >= 16:
            (drops,) = struct.unpack_from("=I", stats, 12)
            found.setdefault(index, {})["queue_drops" if parent == ROOT else "ingress_drops"] = drops
    return found


def _text(data: bytes) -> str:
    return os.fsdecode(data.rstrip(b"\0"))


def _number(data: bytes) -> int:
    return int(struct.unpack_from("=I", data)[0]) if len(data) >= 4 else 0


def _dump(kind: int, fixed: struct.Struct) -> Iterator[bytes]:
    """The bodies of the kernel's answers: the fixed part and what follows."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(PATIENCE_S)
        kernel.bind((0, 0))
        kernel.send(HEADER.pack(HEADER.size + fixed.size, kind, DUMP, 1, 0) + bytes(fixed.size))
        while True:
            for type_, body in _messages(kernel.recv(RECEIVE)):
                if type_ == DONE:
                    return
                if type_ == ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    raise OSError(code, os.strerror(code))
                yield body


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= HEADER.size:
        length, type_, _, _, _ = HEADER.unpack_from(data)
        yield type_, data[HEADER.size : length]
        data = data[_aligned(max(length, HEADER.size)) :]


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while len(data) >= ATTRIBUTE.size:
        length, type_ = ATTRIBUTE.unpack_from(data)
        found[type_ & 0x3FFF] = data[ATTRIBUTE.size : length]
        data = data[_aligned(max(length, ATTRIBUTE.size)) :]
    return found


def _aligned(length: int) -> int:
    return (length + 3) & ~3
