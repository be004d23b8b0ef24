"""Ranks that keep the same piece of a parameter but with different bits: the cause, whatever else differs."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from preflight.check import ranges
from preflight.checks.train.shared.parity.divergence import CurvePlace, Point, TrainingPair
from preflight.checks.train.shared.parity.variant import Case, Meaning

EQUAL_BITS = "equal bits"


@dataclass(frozen=True)
class Suspects:
    """Ranks whose replicas differ, and the parameter that shows it first."""

    parameter: str
    step: int
    """The last one: then they are compared."""
    odd: tuple[int, ...]
    """Of that parameter."""
    alike: tuple[int, ...]
    fewer: tuple[int, ...]
    """Ranks that differ, in any parameter, from more ranks that agree; empty if no side is larger."""
    differing: tuple[int, ...]
    """All ranks of all sides: one of them has other bits than it should."""
    more: int
    """Further parameters that differ."""

    def __str__(self) -> str:
        """ "after step 7 the bits of norm.weight on rank 1 differ from those on ranks 0,2-3"."""
        others = f"; the same with {ranges.count(self.more, 'other parameter')}" if self.more else ""
        text = f"after step {self.step} the bits of {self.parameter} on {ranges.ranks(self.odd)} differ from those on"
        return f"{text} {ranges.ranks(self.alike)}{others}"


def suspects(pairs: Mapping[int, TrainingPair]) -> Suspects | None:
    """None if all replicas have equal bits."""
    seen = next((pair.replicas for pair in pairs.values() if pair.replicas), None)
    if seen is None or not seen["differing"]:
        return None
    members = sorted(pairs)

    def ranks(places: Iterable[int]) -> tuple[int, ...]:
        return tuple(members[place] for place in places)

    sides = [(ranks(entry["odd"]), ranks(entry["alike"])) for entry in seen["differing"]]
    fewer = {rank for odd, alike in sides if len(odd) < len(alike) for rank in odd}
    every = {rank for entry in sides for side in entry for rank in side}
    step = max(len(pair.measured["losses"]) for pair in pairs.values()) - 1
    name = seen["differing"][0]["parameter"]
    return Suspects(name, step, *sides[0], tuple(sorted(fewer)), tuple(sorted(every)), seen["count"] - 1)


def of(pairs: Mapping[int, TrainingPair]) -> Iterator[Meaning]:
    """For trainings whose numbers are all close enough. Blames the ranks that differ from most others; none if there
    are two sides of equal size."""
    found = suspects(pairs)
    if found is None:
        return
    point = Point(CurvePlace(found.step, "end"), "different bits", EQUAL_BITS, math.inf)
    told = f"{found}, expected {EQUAL_BITS} in replicas"
    for rank in found.fewer or (None,):
        others = found.alike if found.fewer else ()
        yield Meaning("out_of_sync", told, point, rank, found.parameter, others)


def named(meanings: Iterable[Meaning], case: Case) -> Iterator[Meaning]:
    """The meanings of a training whose numbers differ, as they are if replicas are equal. Else those of suspects; if
    these are none, the ranks that differ from most others get the blame, or those of a pair that differ first. No
    suspect is said to be innocent."""
    given, found = [*meanings], suspects(case.pairs)
    if found is None:
        yield from given
        return
    blamed = {meaning.rank for meaning in given if meaning.rank is not None}
    odd = found.fewer or _first_of(case, found)
    if blamed & {*(odd or found.differing)}:
        yield from (meaning for meaning in given if meaning.rank in (odd or found.differing))
    elif odd:
        yield from (_blamed(given[0], rank, odd, found) for rank in odd)
    elif blamed:
        yield from given
    else:
        yield from (_not_acquitted(meaning, found) for meaning in given)


def _first_of(case: Case, found: Suspects) -> tuple[int, ...]:
    """The suspects whose numbers differ first, if the others' are right: of ranks that share the model, as those of a
    node under HSDP, all have wrong numbers, but only the sick one's replica differs."""
    first = {*case.divergence.first} & {*found.differing} if case.divergence.blamed else set()
    return tuple(sorted(first)) if len(first) < len(found.differing) else ()


def _blamed(meaning: Meaning, rank: int, odd: Sequence[int], found: Suspects) -> Meaning:
    others = _without({*meaning.noticed_by, *found.alike, *found.odd}, odd)
    return replace(meaning, told=f"{meaning.told}; {found}", rank=rank, noticed_by=others)


def _not_acquitted(meaning: Meaning, found: Suspects) -> Meaning:
    others = _without(meaning.noticed_by, found.differing)
    return replace(meaning, told=f"{meaning.told}; {found}, so the cause is there", noticed_by=others)


def _without(ranks: Iterable[int], left_out: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({*ranks} - {*left_out}))
