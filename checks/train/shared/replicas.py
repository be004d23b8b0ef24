"""Ranks that keep the same piece of a parameter, and not the same bits of it, though all numbers are near enough."""

import math
from collections.abc import Iterator, Mapping

from preflight.check import ranges
from preflight.checks.train.shared.divergence import CurvePlace, Point, TrainingPair
from preflight.checks.train.shared.variant import Meaning

EQUAL_BITS = "equal bits"


def of(pairs: Mapping[int, TrainingPair]) -> Iterator[Meaning]:
    """The ranks that most others differ from are to blame; nobody, where there are two sides of one size."""
    members = sorted(pairs)
    seen = next((pair.replicas for pair in pairs.values() if pair.replicas), None)
    if seen is None or not seen["differing"]:
        return
    step = max(len(pair.measured["losses"]) for pair in pairs.values()) - 1
    first = seen["differing"][0]
    name = first["parameter"]
    odd, alike = ([members[place] for place in places] for places in (first["odd"], first["alike"]))
    more = f"; so it is with {ranges.count(seen['count'] - 1, 'other parameter')}" if seen["count"] > 1 else ""
    point = Point(CurvePlace(step, "end"), "other bits", EQUAL_BITS, math.inf)
    told = f"after step {step} the bits of {name} on"
    if len(odd) < len(alike):
        for rank in odd:
            text = f"{told} rank {rank} are not those of {ranges.ranks(alike)}, which keep a replica of it, expected"
            yield Meaning("out_of_sync", f"{text} equal bits{more}", point, rank, name, tuple(alike))
        return
    text = f"{told} {ranges.ranks(odd)} are not those on {ranges.ranks(alike)}, expected equal bits in replicas of it"
    yield Meaning("out_of_sync", f"{text}{more}", point, None, name, tuple(sorted((*odd, *alike))))
