"""What the checks of collectives measure, and the words for it.

Bandwidths are nccl-tests' (its doc/PERFORMANCE.md): algbw = bytes / seconds and busbw = algbw * a factor of the
operation, in GB/s of 10^9 bytes; the slowest rank's seconds count.
"""

from collections.abc import Iterable, Mapping
from typing import NotRequired, TypedDict

from preflight.check import words

KIB, MIB, GIB = 1024, 1024**2, 1024**3
LEFT_OUT = 0.1
BF16_FIRST = MIB
"""Bytes of the message that is measured in bfloat16, too, on every network."""


class Whose(TypedDict):
    """Which contribution explains the wrong elements."""

    what: str
    """"times": `rank`'s was counted `times` times, where once is right. "instead": `other`'s stands in the place of
    `rank`'s. "meant": it is the sum that was meant for `rank`. "sent": it is what `rank` sent, to `other` where each
    receiver is sent something else."""
    rank: int
    other: int | None
    times: float | None


class Wrong(TypedDict):
    """The wrong elements of one result on one rank."""

    elements: int
    of: int
    index: int
    """Of the first."""
    got: float | str
    """Text where it is no JSON number: nan, inf."""
    expected: float
    sender: int | None
    """Whose data all of them should hold; None for sums, and where they are of several senders."""
    whose: Whose | None
    """None where no rank's contribution explains it."""


class Computed(TypedDict):
    dtype: str
    """fp32 or bf16."""
    bytes: int
    """nccl-tests' S: of all-gather and reduce-scatter the total over all ranks."""
    wrong: Wrong | None


class Size(Computed):
    seconds: float
    """Of one operation on this rank, the mean of all timed ones."""
    repeats: int


class SmallerGroup(TypedDict):
    """Some of the ranks, that summed by themselves."""

    ranks: list[int]
    wrong: bool
    """On any of them."""


class Latency(TypedDict):
    bytes: int
    p50_s: float
    p99_s: float
    repeats: int


class Facts(TypedDict):
    sizes: list[Size]
    latency: Latency | None
    planned: int
    """Bytes of the largest message for which a sound network leaves time."""
    second: NotRequired[list[Computed]]
    """What was wrong on any rank, computed once more, as far as there was time. Not there where all was right."""
    groups: NotRequired[list[SmallerGroup]]
    """Of a sum that was wrong twice and did not say whose it was, on the first rank alone: in smaller groups, two a
    round."""


def nominal(size: int) -> str:
    """ "64 KiB", also where a few bytes were left out so that all ranks have equal parts."""
    unit = next((unit for unit in (GIB, MIB, KIB) if size >= 0.9 * unit), 1)
    whole = round(size / unit) * unit
    return words.size(whole if abs(size - whole) < LEFT_OUT * size else size)


def rate(gigabytes: float) -> str:
    """Of GB/s."""
    return words.rate(gigabytes * 1e9)


def slowest(facts: Mapping[int, Facts]) -> dict[tuple[str, int], float]:
    """Seconds of the slowest rank by dtype and bytes, for what all ranks have measured, in the order of measuring."""
    found: dict[tuple[str, int], list[float]] = {}
    for reading in facts.values():
        for size in reading["sizes"]:
            found.setdefault((size["dtype"], size["bytes"]), []).append(size["seconds"])
    return {key: max(seconds) for key, seconds in found.items() if len(seconds) == len(facts)}


def largest(sizes: Iterable[tuple[str, int]], dtype: str) -> int:
    """Bytes of the largest message of this type; 0 without any."""
    return max((size for own, size in sizes if own == dtype), default=0)
