"""Compares what a resumed loader yields with what it should have yielded. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, TypedDict

Id = int | str
"""An index or a digest."""
Kind = Literal["restarted", "lost", "repeated", "empty", "order"]
"""Restarts; skips what comes next; yields the last again; ends at once; anything else."""


class ResumeDifference(TypedDict):
    kind: Kind
    shift: int
    """How many consecutive ones are skipped, or come again."""
    first: int
    """The first position that differs, from the start of the epoch."""
    lost: int
    """How many should have come but did not, and an example."""
    lost_example: Id | None
    again: int
    """How many came although they had come before, and an example."""
    again_example: Id | None


def compare(before: Sequence[Id], expected: Sequence[Id], got: Sequence[Id]) -> ResumeDifference | None:
    """`before`: what the epoch had yielded when it was stopped; `expected`: what came next; `got`: what the resumed one
    yields, each as far as it was read. None if they are the same."""
    before, expected, got = list(before), list(expected), list(got)
    if expected == got:
        return None
    both = min(len(expected), len(got))
    first = next((at for at in range(both) if expected[at] != got[at]), both)
    kind, shift = _kind(before, expected, got)
    wanted, seen = Counter(expected), Counter(got)
    lost, again = wanted - seen, seen - wanted
    return ResumeDifference(
        kind=kind,
        shift=shift,
        first=len(before) + first,
        lost=lost.total(),
        lost_example=next(iter(lost), None),
        again=again.total(),
        again_example=next(iter(again), None),
    )


def _kind(before: list[Id], expected: list[Id], got: list[Id]) -> tuple[Kind, int]:
    """The kind of difference, and by how many it is shifted."""
    whole = before + expected
    if not got:
        return "empty", len(expected)
    if before and _begins(got, whole):
        return "restarted", len(before)
    for at in _places(got[0], expected):
        if _begins(got, expected[at:]):
            return "lost", at
    for at in _places(got[0], before):
        if _begins(got, whole[at:]):
            return "repeated", len(before) - at
    return "order", 0


def _places(id_: Id, among: list[Id]) -> Iterator[int]:
    return (at for at, other in enumerate(among) if other == id_)


def _begins(got: list[Id], wanted: list[Id]) -> bool:
    """Whether both are the same as far as both go; a single match may be chance."""
    both = min(len(got), len(wanted))
    return both > 1 and got[:both] == wanted[:both]
