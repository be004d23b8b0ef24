"""What the kernel says of the segments that it sent on a connection: how many, and how many it sent again.

A segment sent again was lost, or came late: the receiver then has it twice and says so (DSACK, RFC 2883), as happens on
hosts whose cores are busy. Only what the receiver did not have twice counts as lost. Where the receiver's window was
full nothing is resent: the kernel probes it, and does not count the probes.
"""

import socket
import struct
from typing import NamedTuple

SND_MSS, RTT_VAR, TOTAL_RETRANS, DATA_SEGS_OUT, DSACK_DUPS = 16, 72, 100, 156, 216
"""Offsets in struct tcp_info (linux/tcp.h), each of an unsigned int. The last came with Linux 4.19."""
SIZE = 256
SURE = 3
"""So many lost packets of few thousands are no accident."""
LEAST_LOST, SUSPECT_SHARE = 2, 0.00025
"""From here on a partner is looked at again: a quarter of the check's own limit. Links of data centers that are in use
and sound lose 0.001 to 0.01 percent (Guo et al., Pingmesh, SIGCOMM 2015)."""


class Sent(NamedTuple):
    """Segments with data that this node sent to one partner."""

    segments: int = 0
    """All of them, also those sent again."""
    resent: int = 0
    twice: int = 0
    """The partner had them twice: they had been resent needlessly, or something on the way had copied them."""

    @property
    def lost(self) -> int:
        """At least so many were lost."""
        return max(0, self.resent - self.twice)

    @property
    def copied(self) -> int:
        """At least so many were copied on the way: the partner had more twice than this node has resent."""
        return max(0, self.twice - self.resent)

    def __add__(self, other: "Sent") -> "Sent":  # type: ignore[override]  # a sum, not a longer tuple
        return Sent(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def since(self, before: "Sent") -> "Sent":
        return Sent(*(now - then for now, then in zip(self, before, strict=True)))


def is_suspect(sent: Sent | None) -> bool:
    """Whether so much was lost that it is worth a second look."""
    return sent is not None and sent.lost >= LEAST_LOST and sent.lost >= SUSPECT_SHARE * sent.segments


def sent(sock: socket.socket) -> Sent | None:
    """What was sent so far; None where the kernel does not say what arrived twice."""
    segments, resent, twice = (_field(sock, place) for place in (DATA_SEGS_OUT, TOTAL_RETRANS, DSACK_DUPS))
    if segments is None or resent is None or twice is None:
        return None
    return Sent(segments, resent, twice)


def segment_bytes(sock: socket.socket) -> int:
    """The most data in one packet to the partner."""
    return _field(sock, SND_MSS) or 0


def rtt_variation_s(sock: socket.socket) -> float:
    """How much round trips vary, in seconds, as the kernel smooths it (rttvar of RFC 6298); 0 if it does not say."""
    return (_field(sock, RTT_VAR) or 0) / 1e6


def _field(sock: socket.socket, place: int) -> int | None:
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SIZE)
        return int(struct.unpack_from("I", info, place)[0])
    except (OSError, struct.error):  # an older kernel's structure is shorter
        return None
