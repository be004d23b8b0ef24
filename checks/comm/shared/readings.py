"""What the checks of collectives measure, and words for it.

Bandwidths are defined as in nccl-tests (doc/PERFORMANCE.md): algbw = bytes / seconds and busbw = algbw * the
operation's factor, in GB/s of 10^9 bytes; the slowest rank's seconds count."""

from collections.abc import Iterable, Mapping
from typing import NotRequired, TypedDict

from preflight.check import words

KIB, MIB, GIB = 1024, 1024**2, 1024**3
LEFT_OUT = 0.1
BF16_FIRST = MIB
"""Bytes of the message that is also measured in bfloat16, on every network."""


class Whose(TypedDict):
    """Which contribution explains the wrong elements."""

    what: str
    """"times": `rank`'s was counted `times` times instead of once. "instead": `other`'s is in the place of `rank`'s.
    "meant": it is the sum meant for `rank`. "sent": it is what `rank` sent, to `other` if each receiver is sent
    different data."""
    rank: int
    other: int | None
    times: float | None


class Wrong(TypedDict):
    """The wrong elements of one result on one rank."""

    elements: int
    of: int
    index: int
    """Position of the first wrong element."""
    got: float | str
    """Text if it is not a JSON number: nan, inf."""
    expected: float
    sender: int | None
    """Whose data all of them should be; None for sums, and if there are several senders."""
    whose: Whose | None
    """None if no rank's contribution explains it."""


class Computed(TypedDict):
    dtype: str
    """fp32 or bf16."""
    bytes: int
    """nccl-tests' S: for all-gather and reduce-scatter the total over all ranks."""
    wrong: Wrong | None


class Size(Computed):
    seconds: float
    """Mean time of the timed operations on this rank."""
    repeats: int


class SmallerGroup(TypedDict):
    """Some of the ranks, which summed by themselves."""

    ranks: list[int]
    wrong: bool
    """Whether the sum was wrong on any of them."""


class Latency(TypedDict):
    bytes: int
    p50_s: float
    p99_s: float
    repeats: int


class Facts(TypedDict):
    sizes: list[Size]
    latency: Latency | None
    planned: int
    """Bytes of the largest message that a sound network has time for."""
    second: NotRequired[list[Computed]]
    """What was wrong on any rank, recomputed as far as there was time. Absent if all was right."""
    groups: NotRequired[list[SmallerGroup]]
    """Sums in smaller groups, two per round, if a sum was wrong twice and did not reveal the source. Only on the first
    rank."""


def nominal(size: int) -> str:
    """ "64 KiB", even if a few bytes were left out to make all ranks' parts equal."""
    unit = next((unit for unit in (GIB, MIB, KIB) if size >= 0.9 * unit), 1)
    whole = round(size / unit) * unit
    return words.size(whole if abs(size - whole) < LEFT_OUT * size else size)


def slowest(facts: Mapping[int, Facts]) -> dict[tuple[str, int], float]:
    """Seconds of the slowest rank by dtype and bytes, for sizes that all ranks measured, in that order."""
    found: dict[tuple[str, int], list[float]] = {}
    for reading in facts.values():
        for size in reading["sizes"]:
            found.setdefault((size["dtype"], size["bytes"]), []).append(size["seconds"])
    return {key: max(seconds) for key, seconds in found.items() if len(seconds) == len(facts)}


def largest(sizes: Iterable[tuple[str, int]], dtype: str) -> int:
    """Bytes of the largest message of this type; 0 if there is none."""
    return max((size for own, size in sizes if own == dtype), default=0)
