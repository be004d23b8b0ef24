"""Ranks that keep the same piece of a parameter but with different bits, though all numbers are close enough."""

import math
from collections.abc import Iterator, Mapping

from preflight.check import ranges
from preflight.checks.train.shared.parity.divergence import CurvePlace, Point, TrainingPair
from preflight.checks.train.shared.parity.variant import Meaning

EQUAL_BITS = "equal bits"


def of(pairs: Mapping[int, TrainingPair]) -> Iterator[Meaning]:
    """Blames the ranks that differ from most others; none if there are two sides of equal size."""
    members = sorted(pairs)
    seen = next((pair.replicas for pair in pairs.values() if pair.replicas), None)
    if seen is None or not seen["differing"]:
        return
    step = max(len(pair.measured["losses"]) for pair in pairs.values()) - 1
    first = seen["differing"][0]
    name = first["parameter"]
    odd, alike = ([members[place] for place in places] for places in (first["odd"], first["alike"]))
    more = f"; the same with {ranges.count(seen['count'] - 1, 'other parameter')}" if seen["count"] > 1 else ""
    point = Point(CurvePlace(step, "end"), "different bits", EQUAL_BITS, math.inf)
    told = f"after step {step} the bits of {name} on"
    if len(odd) < len(alike):
        for rank in odd:
            text = f"{told} rank {rank} differ from those of {ranges.ranks(alike)}, which keep a replica, expected"
            yield Meaning("out_of_sync", f"{text} equal bits{more}", point, rank, name, tuple(alike))
        return
    text = f"{told} {ranges.ranks(odd)} differ from those on {ranges.ranks(alike)}, expected equal bits in replicas"
    yield Meaning("out_of_sync", f"{text}{more}", point, None, name, tuple(sorted((*odd, *alike))))
