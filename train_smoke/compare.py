"""Where trainings part, and by how much. Numbers in, numbers out; no torch."""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypedDict

Number = float | str
"""Text where it is no JSON number: nan, inf."""


class Curve(TypedDict):
    """A value for each step."""

    losses: list[Number]
    """Of a rank's own part of the batch (alone: of all of it), before the step."""
    own_norms: list[Number]
    """Of the gradient of this part, before ranks exchange it."""
    own_prints: list[Number]
    """Of the same gradient: its elements, each with a fixed random sign, added up. Of two gradients with one norm it
    shows where a few elements differ."""
    norms: list[Number]
    """Of the gradient that the step takes."""
    prints: list[Number]


Quantity = Literal["losses", "own_norms", "own_prints", "norms", "prints"]
QUANTITIES: tuple[Quantity, ...] = ("losses", "own_norms", "own_prints", "norms", "prints")
"""In the order in which a step makes them."""
SCALES: Mapping[Quantity, Quantity] = {"own_prints": "own_norms", "prints": "norms"}
"""What a difference is measured by, where that is not the value itself: a print may be near 0."""
WHOLE: tuple[Quantity, ...] = ("norms", "prints")
"""What does not depend on which part is a rank's own."""


class Furthest(TypedDict):
    """The parameter that is furthest from what it should be, in its gradient or in itself."""

    parameter: str
    off: Number
    """Of its element that is furthest off: by the largest gradient, or the longest way, of its elements."""


@dataclass(frozen=True)
class Limits:
    """How far two sound trainings may be apart."""

    curves: float
    parameters: float


LEAST = Limits(curves=2e-5, parameters=1e-3)
"""Measured over gloo on CPUs, worlds of 1, 2, 3, 5, 8, 13 and 33 ranks, up to 12 seeds, 1 and 4 threads: DDP and
training alone were at most 1.4e-6 apart on the curves, and 2.7e-5 in the parameters."""
TIMES = 30
"""How many times its own spread is allowed to coarser hardware (TF32 forced on by NVIDIA_TF32_OVERRIDE, bfloat16 by
ONEDNN_DEFAULT_FPMATH_MODE). Measured with products rounded to bfloat16: DDP was at most 8 times the spread off."""


def limits(spreads: Iterable[Limits]) -> Limits:
    """From how far apart each rank's two trainings alone are: the middle one's, which a sick rank cannot widen."""
    finite = [spread for spread in spreads if math.isfinite(spread.curves + spread.parameters)]
    curves = statistics.median_low([spread.curves for spread in finite] or [0.0])
    parameters = statistics.median_low([spread.parameters for spread in finite] or [0.0])
    return Limits(max(LEAST.curves, TIMES * curves), max(LEAST.parameters, TIMES * parameters))


def difference(measured: Number, expected: Number, scale: Number | None = None) -> float:
    """Relative to what was expected, or to the scale; infinite where only one of them is a number."""
    if measured == expected:
        return 0.0
    by = expected if scale is None else scale
    if isinstance(measured, str) or isinstance(expected, str) or isinstance(by, str) or by == 0:
        return math.inf
    return abs(measured - expected) / abs(by)


def way_off(furthest: Furthest) -> float:
    """As a number, infinite where it is none."""
    return math.inf if isinstance(furthest["off"], str) else furthest["off"]


class Point(NamedTuple):
    """One value of a training, beside the one that was expected."""

    step: int
    quantity: Quantity | Literal["parameters"]
    measured: Number
    expected: Number
    over: float
    """Its difference, by the limit: above 1 it is beyond."""


def points(measured: Curve, expected: Curve, furthest: Furthest, limits: Limits) -> list[Point]:
    """All of a training, in the order in which it makes them; the parameters last."""
    found = []
    steps = range(len(expected["losses"]))
    for step, quantity in itertools.product(steps, QUANTITIES):
        pair = measured[quantity][step], expected[quantity][step]
        scale = expected[SCALES.get(quantity, quantity)][step]
        found.append(Point(step, quantity, *pair, difference(*pair, scale) / limits.curves))
    return [*found, Point(steps[-1], "parameters", furthest["off"], 0.0, way_off(furthest) / limits.parameters)]


def spread(again: Curve, once: Curve, furthest: Furthest) -> Limits:
    """How far apart are two trainings of the whole batch?"""
    shared = [point.over for point in points(again, once, furthest, Limits(1.0, 1.0)) if point.quantity in WHOLE]
    return Limits(max(shared), way_off(furthest))


def first_beyond(points: Iterable[Point]) -> Point | None:
    """The first that is beyond its limit."""
    return next((point for point in points if point.over > 1), None)


NAMES: Mapping[str, str] = {
    "losses": "loss on its own part",
    "own_norms": "norm of its own gradient",
    "own_prints": "signed sum of its own gradient",
    "norms": "gradient norm",
    "prints": "signed sum of the gradient",
}


def told(point: Point, furthest: Furthest, limits: Limits) -> str:
    """In words, with the measured and the expected value."""
    if point.quantity == "parameters":
        most = f"expected at most {limits.parameters:.1%}"
        return f"{furthest['parameter']} ends {way_off(furthest):.3%} of its way from where it should, {most}"
    to = f"{limits.curves:.0e}{' of the norm' if point.quantity in SCALES else ''}"
    value = f"{NAMES[point.quantity]} at step {point.step} is {text(point.measured)}"
    return f"the {value}, expected {text(point.expected)} (to {to})"


def text(value: Number, digits: int = 7) -> str:
    """To the 7 digits that float32 has."""
    return value if isinstance(value, str) else f"{value:.{digits}g}"


@dataclass(frozen=True)
class Parting:
    """The first place at which any rank's training differs from the one expected."""

    first: Mapping[int, Point]
    """Of the ranks that differ there."""
    later: tuple[int, ...]
    """Ranks that differ at a later place."""
    blamed: bool
    """Whether the fault lies with the first."""


CLEARLY = 10
"""The first are blamed if they are few and the others so many times within the limit there: of ranks that drift off
together one is beyond the limit before the others."""


def parting(points: Mapping[int, Sequence[Point]]) -> Parting | None:
    """Of all ranks' points, which lie in the same order. None where none is beyond its limit."""
    beyond = {rank: own.index(point) for rank, own in points.items() if (point := first_beyond(own))}
    if not beyond:
        return None
    start = min(beyond.values())
    first = {rank: points[rank][start] for rank, place in beyond.items() if place == start}
    others = [own[start] for rank, own in points.items() if rank not in first]
    blamed = len(first) <= len(others) and all(point.over * CLEARLY < 1 for point in others)
    return Parting(first, tuple(rank for rank in beyond if rank not in first), blamed)


def in_sync(ends: Sequence[Furthest], limits: Limits) -> bool:
    """Whether all ranks ended alike, rightly or wrongly."""
    off = [way_off(end) for end in ends]
    return min(off) == max(off) or max(off) - min(off) <= limits.parameters


def places(curves: Iterable[Curve]) -> Iterator[tuple[int, Quantity]]:
    """Steps and quantities of trainings on the whole batch, in their order."""
    for step in range(max((len(curve["losses"]) for curve in curves), default=0)):
        yield step, "losses"
        yield step, "norms"


def alike(values: Mapping[int, Number], limit: float) -> dict[int, Number]:
    """By rank, one value (to 7 digits) for all that are within the limit of it: so that a vote counts them as one."""
    chosen: dict[Number, Number] = {}
    least: Number = ""
    for value in sorted(set(values.values()), key=lambda value: (isinstance(value, str), value)):
        if difference(value, least) > limit:
            least = value
        chosen[value] = least if isinstance(least, str) else float(text(least))
    return {rank: chosen[value] for rank, value in values.items()}
