"""Counters of an HCA port that show a bad link or lost packets, and which of them rose.

Their meanings: the kernel's Documentation/ABI/stable/sysfs-class-infiniband, and for those of PortCounters the
InfiniBand specification, volume 1, 16.1.3.5.
"""

from collections.abc import Mapping
from typing import NamedTuple

WENT_DOWN = "link_downed"
BROKEN = (WENT_DOWN, "link_error_recovery", "local_link_integrity_errors", "excessive_buffer_overrun_errors")
"""On a good link none of these rises: it went down, was retrained, or had too many errors at once."""
WRONG_BITS = ("symbol_error", "port_rcv_errors")
"""Even a good link has a few of these."""
LOST = ("local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err", "rnr_nak_retry_err")
"""hw_counters of mlx5 and others: resent packets. They were lost on the way, or the other end was slow or has ended, so
this port may not be at fault. `out_of_sequence` is left out, since adaptive routing, which NCCL enables on InfiniBand,
reorders packets; so are congestion counters (np_cnp_sent and the like), which rise on every RoCE network under
load."""
KEPT = {"counters": (*BROKEN, *WRONG_BITS), "hw_counters": LOST}
"""Counter names by sysfs folder."""
FULL = {
    "symbol_error": 0xFFFF, "port_rcv_errors": 0xFFFF, "link_error_recovery": 0xFF, WENT_DOWN: 0xFF,
    "local_link_integrity_errors": 0xF, "excessive_buffer_overrun_errors": 0xF,
}  # fmt: skip
"""Where the counters of PortCounters saturate. Drivers with wider counters exceed it."""
BIT_ERROR_RATE = 1e-12
"""The InfiniBand specification's limit for a link (volume 2, 6.4). With error correction good links have far fewer."""


class Rise(NamedTuple):
    name: str
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.name} {self.before:,} to {self.after:,}"


def risen(before: Mapping[str, int], after: Mapping[str, int]) -> list[Rise]:
    """Counters that rose; neither mapping has zeros. One that fell was reset or wrapped around, and proves nothing."""
    return [Rise(name, before.get(name, 0), new) for name, new in after.items() if new > before.get(name, 0)]


def bad(rises: list[Rise], gigabits: float, seconds: float) -> list[Rise]:
    """Rises too large for a good link of this rate in this time; at least a minute's worth of errors is allowed."""
    allowed = BIT_ERROR_RATE * gigabits * 1e9 * max(60.0, seconds)
    return [
        rise
        for rise in rises
        if rise.name in BROKEN or (rise.name in WRONG_BITS and rise.after - rise.before > allowed)
    ]


def full(counters: Mapping[str, int]) -> list[str]:
    """Counters that are saturated."""
    return [name for name, count in counters.items() if FULL.get(name) == count]
