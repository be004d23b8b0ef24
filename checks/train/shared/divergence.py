"""The first place at which a rank's training is not what it should be, and whether the fault lies with the ranks that
differ there. Numbers only."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from preflight.train_smoke import compare
from preflight.train_smoke.compare import QUANTITIES, SCALES, WHOLE, Apart, Curve, Limits, Moment, Number

if TYPE_CHECKING:
    from preflight.train_smoke.collectives import Made
    from preflight.train_smoke.replicas import Replicas

T = TypeVar("T")
U = TypeVar("U")
Quantity = compare.Quantity | Literal["start", "gradient", "clipped", "end", "state"]
"""clipped: the norm of the gradient as clipping has found it."""

CLEARLY = 10
"""The first are blamed if they are few and the others so many times within the limit there: of ranks that drift off
together one is beyond the limit before the others."""


class TrainingPair(NamedTuple):
    """A rank's training under a strategy, and the one that was expected of it."""

    measured: Curve
    expected: Curve
    apart: Apart
    least: Mapping[compare.Quantity, float] = MappingProxyType({})
    """By which a difference is measured at least: see `with_least`."""
    clipped: Sequence[Number] = ()
    """The gradient's norm as clipping has found it, by step."""
    sizes: Mapping[str, int] = MappingProxyType({})
    """What a gradient may be a multiple of by mistake, in words."""
    made: Sequence["Made"] = ()
    """The collectives that the strategy needs, as this rank has made them."""
    replicas: "Replicas | None" = None


OWN: tuple[compare.Quantity, ...] = ("losses", "own_norms")
SMALL = 0.05
"""A rank's own loss or gradient that is smaller than this share of the other ranks' is measured by that share: the loss
of rows that the model fits already, or that changes its sign, is roundings. These are 1e-7 of what they are made of; so
measured they are 2e-6, a tenth of the least limit."""


def with_least(pairs: Mapping[int, TrainingPair]) -> dict[int, TrainingPair]:
    """The same, each with what its own loss and gradient are measured by at least: of the middle rank's largest."""
    least = {quantity: SMALL * compare.middle(each(pairs, _largest(quantity)).values()) for quantity in OWN}
    return each(pairs, lambda pair: pair._replace(least=least))


def _largest(quantity: compare.Quantity) -> Callable[[TrainingPair], float]:
    return lambda pair: max(
        (abs(number) for number in pair.expected[quantity] if not isinstance(number, str)), default=0.0
    )


class CurvePlace(NamedTuple):
    step: int
    quantity: Quantity


class Point(NamedTuple):
    """One value of a training, beside the one that was expected."""

    place: CurvePlace
    measured: Number
    expected: Number
    over: float
    """Its difference, by the limit: above 1 it is beyond."""


@functools.cache
def order(steps: int) -> tuple[CurvePlace, ...]:
    """All places of a training, in the order in which it makes their values."""
    found = [CurvePlace(0, "start")]
    for step in range(steps):
        found += [CurvePlace(step, quantity) for quantity in QUANTITIES]
        if step == 0:
            found.append(CurvePlace(0, "gradient"))
        found.append(CurvePlace(step, "clipped"))
    return (*found, CurvePlace(steps - 1, "end"), CurvePlace(steps - 1, "state"))


def points(pair: TrainingPair, limits: Limits) -> Iterator[Point]:
    """All that this training has, in order."""
    for place in order(len(pair.expected["losses"])):
        if point := at(pair, place, limits):
            yield point


def at(pair: TrainingPair, place: CurvePlace, limits: Limits) -> Point | None:
    """None where this training has no such value: of two micro-batches' gradients the norm is not known, and a rank
    that joins early takes fewer steps."""
    step, quantity = place
    if quantity == "start" or quantity == "gradient" or quantity == "end" or quantity == "state":
        return _moment(pair.apart, place, limits)
    if quantity == "clipped":
        return _clipped(pair, step, limits)
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


def _clipped(pair: TrainingPair, step: int, limits: Limits) -> Point | None:
    if step >= min(len(pair.clipped), len(pair.expected["norms"])):
        return None
    measured, expected = pair.clipped[step], pair.expected["norms"][step]
    over = compare.difference(measured, expected) / limits.curves
    return Point(CurvePlace(step, "clipped"), measured, expected, over)


def _moment(apart: Apart, place: CurvePlace, limits: Limits) -> Point | None:
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

    place: CurvePlace
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


def of(pairs: Mapping[int, TrainingPair], limits: Limits) -> Divergence | None:
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


def _first_beyond(pair: TrainingPair, limits: Limits) -> Point | None:
    return next((point for point in points(pair, limits) if point.over > 1), None)


def each(values: Mapping[int, T], make: Callable[[T], U]) -> dict[int, U]:
    """By rank. Ranks with equal facts share one object, and what is made of it."""
    made = {id(value): make(value) for value in {id(value): value for value in values.values()}.values()}
    return {rank: made[id(value)] for rank, value in values.items()}


def worst(pairs: Iterable[TrainingPair], step: int, limits: Limits) -> float:
    """The furthest that any value of any rank's curve is beyond at this step, by the limit."""
    found = (at(pair, CurvePlace(step, quantity), limits) for pair in pairs for quantity in QUANTITIES)
    return max((point.over for point in found if point), default=0.0)


def odd_pieces(pairs: Mapping[int, TrainingPair], moment: Moment, limits: Limits) -> list[int]:
    """Ranks to blame where each keeps a piece of the tensors: only theirs are off."""
    offs = {rank: over(compare.way_off(own), moment, limits) for rank, own in _own(pairs, moment).items()}
    off = [rank for rank, off_by in offs.items() if off_by > 1]
    return off if off and few_are_off(len(off), [off_by for rank, off_by in offs.items() if rank not in off]) else []


def furthest_piece(pairs: Mapping[int, TrainingPair], moment: Moment, limits: Limits) -> int | None:
    """The rank whose piece is clearly further off than any other's, where a fault has spread to all pieces."""
    offs = {rank: over(compare.way_off(own), moment, limits) for rank, own in _own(pairs, moment).items()}
    if len(offs) < 2:
        return None
    *_, second, most = sorted(offs, key=lambda rank: offs[rank])
    return most if offs[most] > 1 and offs[second] * CLEARLY < offs[most] else None


def _own(pairs: Mapping[int, TrainingPair], moment: Moment) -> dict[int, compare.Furthest]:
    """Empty where some rank keeps all of it."""
    found = {rank: own for rank, pair in pairs.items() if (own := pair.apart["own"].get(moment))}
    return found if len(found) == len(pairs) else {}


def in_sync(pairs: Iterable[TrainingPair], limits: Limits) -> bool:
    """Whether all ranks ended alike, rightly or wrongly."""
    off = [compare.way_off(end) for pair in pairs if (end := pair.apart["whole"].get("end"))]
    return not off or min(off) == max(off) or max(off) - min(off) <= limits.end


def is_whole(quantity: Quantity) -> bool:
    return quantity in WHOLE or quantity == "gradient"
