"""The first place at which a rank's training is not what it should be, and whether the fault lies with the ranks that
differ there. Numbers only."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeVar

from preflight.train_smoke import compare
from preflight.train_smoke.compare import QUANTITIES, SCALES, WHOLE, Apart, Curve, Limits, Moment, Number

T = TypeVar("T")
U = TypeVar("U")
Quantity = compare.Quantity | Literal["start", "gradient", "end", "state"]

CLEARLY = 10
"""The first are blamed if they are few and the others so many times within the limit there: of ranks that drift off
together one is beyond the limit before the others."""


class Pair(NamedTuple):
    """A rank's training under a strategy, and the one that was expected of it."""

    measured: Curve
    expected: Curve
    apart: Apart
    least: Mapping[compare.Quantity, float] = MappingProxyType({})
    """By which a difference is measured at least: see `with_least`."""


OWN: tuple[compare.Quantity, ...] = ("losses", "own_norms")
SMALL = 0.05
"""A rank's own loss or gradient that is smaller than this share of the other ranks' is measured by that share: the loss
of rows that the model fits already, or that changes its sign, is roundings. These are 1e-7 of what they are made of; so
measured they are 2e-6, a tenth of the least limit."""


def with_least(pairs: Mapping[int, Pair]) -> dict[int, Pair]:
    """The same, each with what its own loss and gradient are measured by at least: of the middle rank's largest."""
    least = {quantity: SMALL * compare.middle(each(pairs, _largest(quantity)).values()) for quantity in OWN}
    return each(pairs, lambda pair: pair._replace(least=least))


def _largest(quantity: compare.Quantity) -> Callable[[Pair], float]:
    return lambda pair: max(
        (abs(number) for number in pair.expected[quantity] if not isinstance(number, str)), default=0.0
    )


class Place(NamedTuple):
    """One value of a training."""

    step: int
    quantity: Quantity


class Point(NamedTuple):
    """One value of a training, beside the one that was expected."""

    place: Place
    measured: Number
    expected: Number
    over: float
    """Its difference, by the limit: above 1 it is beyond."""


@functools.cache
def order(steps: int) -> tuple[Place, ...]:
    """All places of a training, in the order in which it makes their values."""
    found = [Place(0, "start")]
    for step in range(steps):
        found += [Place(step, quantity) for quantity in QUANTITIES]
        if step == 0:
            found.append(Place(0, "gradient"))
    return (*found, Place(steps - 1, "end"), Place(steps - 1, "state"))


def points(pair: Pair, limits: Limits) -> Iterator[Point]:
    """All that this training has, in order."""
    for place in order(len(pair.expected["losses"])):
        if point := at(pair, place, limits):
            yield point


def at(pair: Pair, place: Place, limits: Limits) -> Point | None:
    """None where this training has no such value: of two micro-batches' gradients the norm is not known, and a rank
    that joins early takes fewer steps."""
    step, quantity = place
    if quantity == "start" or quantity == "gradient" or quantity == "end" or quantity == "state":
        return _moment(pair.apart, place, limits)
    measured, expected = pair.measured[quantity], pair.expected[quantity]
    taken = len(pair.measured["losses"])
    if step >= taken or len(measured) < taken or step >= len(expected):
        return None
    by = SCALES.get(quantity, quantity)
    scale = pair.expected[by][step]
    if not isinstance(scale, str):
        scale = max(abs(scale), pair.least.get(by, 0.0))
    over = compare.difference(measured[step], expected[step], scale) / limits.curves
    return Point(place, measured[step], expected[step], over)


def _moment(apart: Apart, place: Place, limits: Limits) -> Point | None:
    furthest = apart["whole"].get(place.quantity)
    if furthest is None:
        return None
    return Point(place, furthest["off"], 0.0, over(compare.way_off(furthest), place.quantity, limits))


def over(off: float, moment: Quantity, limits: Limits) -> float:
    """How far a tensor is off, by the limit of its moment. At the start none is allowed."""
    limit: float = getattr(limits, moment, 0.0)
    return off / limit if limit else (float("inf") if off else 0.0)


@dataclass(frozen=True)
class Divergence:
    """The first place at which any rank's training differs from the one expected."""

    place: Place
    first: Mapping[int, Point]
    """Of the ranks that differ there."""
    later: tuple[int, ...]
    """Ranks that differ at a later place."""
    blamed: bool
    """Whether the fault lies with the first."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """All that differ anywhere."""
        return tuple(sorted({*self.first, *self.later}))


def of(pairs: Mapping[int, Pair], limits: Limits) -> Divergence | None:
    """Given by rank. None where nothing is beyond its limit."""
    beyond = {rank: point for rank, point in each(pairs, lambda pair: _first_beyond(pair, limits)).items() if point}
    if not beyond:
        return None
    steps = max(len(pair.expected["losses"]) for pair in pairs.values())
    number = {place: where for where, place in enumerate(order(steps))}
    start = min((point.place for point in beyond.values()), key=lambda place: number[place])
    first = {rank: point for rank, point in beyond.items() if point.place == start}
    others = [point.over for rank, pair in pairs.items() if rank not in first and (point := at(pair, start, limits))]
    return Divergence(
        start, first, tuple(rank for rank in beyond if rank not in first), few_are_off(len(first), others)
    )


def few_are_off(off: int, others: list[float]) -> bool:
    """Whether the ranks that are off are to blame: at least as many others, and those clearly right."""
    return off <= len(others) and all(other * CLEARLY < 1 for other in others)


def _first_beyond(pair: Pair, limits: Limits) -> Point | None:
    return next((point for point in points(pair, limits) if point.over > 1), None)


def each(values: Mapping[int, T], make: Callable[[T], U]) -> dict[int, U]:
    """By rank. Ranks with equal facts share one object, and what is made of it."""
    made = {id(value): make(value) for value in {id(value): value for value in values.values()}.values()}
    return {rank: made[id(value)] for rank, value in values.items()}


def worst(pairs: Iterable[Pair], step: int, limits: Limits) -> float:
    """The furthest that any value of any rank's curve is beyond at this step, by the limit."""
    found = (at(pair, Place(step, quantity), limits) for pair in pairs for quantity in QUANTITIES)
    return max((point.over for point in found if point), default=0.0)


def odd_pieces(pairs: Mapping[int, Pair], moment: Moment, limits: Limits) -> list[int]:
    """Ranks to blame where each keeps a piece of the tensors: only theirs are off."""
    offs = {rank: over(compare.way_off(own), moment, limits) for rank, own in _own(pairs, moment).items()}
    off = [rank for rank, off_by in offs.items() if off_by > 1]
    return off if off and few_are_off(len(off), [off_by for rank, off_by in offs.items() if rank not in off]) else []


def furthest_piece(pairs: Mapping[int, Pair], moment: Moment, limits: Limits) -> int | None:
    """The rank whose piece is clearly further off than any other's, where a fault has spread to all pieces."""
    offs = {rank: over(compare.way_off(own), moment, limits) for rank, own in _own(pairs, moment).items()}
    if len(offs) < 2:
        return None
    *_, second, most = sorted(offs, key=lambda rank: offs[rank])
    return most if offs[most] > 1 and offs[second] * CLEARLY < offs[most] else None


def _own(pairs: Mapping[int, Pair], moment: Moment) -> dict[int, compare.Furthest]:
    """Empty where some rank keeps all of it."""
    found = {rank: own for rank, pair in pairs.items() if (own := pair.apart["own"].get(moment))}
    return found if len(found) == len(pairs) else {}


def in_sync(pairs: Iterable[Pair], limits: Limits) -> bool:
    """Whether all ranks ended alike, rightly or wrongly."""
    off = [compare.way_off(end) for pair in pairs if (end := pair.apart["whole"].get("end"))]
    return not off or min(off) == max(off) or max(off) - min(off) <= limits.end


def is_whole(quantity: Quantity) -> bool:
    """Whether it is of the gradient after ranks have exchanged it."""
    return quantity in WHOLE or quantity == "gradient"
