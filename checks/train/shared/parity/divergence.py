"""The first point at which a rank's training is wrong, and whether the ranks that differ there are at fault. Only
numbers."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from preflight.train_smoke.trainer import compare
from preflight.train_smoke.trainer.compare import QUANTITIES, SCALES, WHOLE, Apart, Curve, Limits, Moment, Number

if TYPE_CHECKING:
    from preflight.train_smoke.trainer.collectives import Made
    from preflight.train_smoke.trainer.layer_products import OwnProduct
    from preflight.train_smoke.trainer.replicas import Replicas

T = TypeVar("T")
U = TypeVar("U")
Quantity = compare.Quantity | Literal["start", "gradient", "clipped", "end", "state"]
"""clipped: the gradient's norm as computed by clipping."""

CLEARLY = 10
"""The first are blamed if they are few, and the others are within the limit by this factor: if ranks drift off
together, one exceeds the limit before the others."""


class TrainingPair(NamedTuple):
    """A rank's training under a strategy, and the expected one."""

    measured: Curve
    expected: Curve
    apart: Apart
    least: Mapping[compare.Quantity, float] = MappingProxyType({})
    """The smallest unit for a difference: see `with_least`."""
    clipped: Sequence[Number] = ()
    """The gradient's norm as computed by clipping, by step."""
    sizes: Mapping[str, int] = MappingProxyType({})
    """Numbers that a gradient may be multiplied by by mistake, by name."""
    made: Sequence["Made"] = ()
    """The collectives that the strategy needs, as this rank made them."""
    replicas: "Replicas | None" = None
    product: "OwnProduct | None" = None
    """The first of the rank's own parts of layers' products that is wrong."""


OWN: tuple[compare.Quantity, ...] = ("losses", "own_norms")
SMALL = 0.05
"""If a rank's own loss or gradient is smaller than this share of the other ranks', differences are relative to that
share: the loss of rows that the model already fits, or that changes sign, is only roundings. These are 1e-7 of their
terms; relative to the share they are 2e-6, a tenth of the lowest limit."""


def with_least(pairs: Mapping[int, TrainingPair]) -> dict[int, TrainingPair]:
    """The same, each with the smallest unit for its own loss and gradient: a share of the median rank's largest."""
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
    """A value of a training, and the expected one."""

    place: CurvePlace
    measured: Number
    expected: Number
    over: float
    """The difference divided by the limit: above 1 is too far."""


@functools.cache
def order(steps: int) -> tuple[CurvePlace, ...]:
    """All places of a training, in the order of computation."""
    found = [CurvePlace(0, "start")]
    for step in range(steps):
        found += [CurvePlace(step, quantity) for quantity in QUANTITIES]
        if step == 0:
            found.append(CurvePlace(0, "gradient"))
        found.append(CurvePlace(step, "clipped"))
    return (*found, CurvePlace(steps - 1, "end"), CurvePlace(steps - 1, "state"))


def points(pair: TrainingPair, limits: Limits) -> Iterator[Point]:
    """All points of this training, in order."""
    for place in order(len(pair.expected["losses"])):
        if point := at(pair, place, limits):
            yield point


def at(pair: TrainingPair, place: CurvePlace, limits: Limits) -> Point | None:
    """None if this training has no such value: the norm of two micro-batches' gradients is unknown, and a rank that
    joins early takes fewer steps."""
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
    """How far a tensor is off, divided by its moment's limit. No difference is allowed at the start."""
    limit: float = getattr(limits, moment, 0.0)
    return off / limit if limit else (float("inf") if off else 0.0)


@dataclass(frozen=True)
class Divergence:
    """The first place at which any rank's training differs from the one expected."""

    place: CurvePlace
    first: Mapping[int, Point]
    """The points of the ranks that differ there."""
    later: tuple[int, ...]
    """Ranks that differ at a later place."""
    blamed: bool
    """Whether the first are at fault."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that differ anywhere."""
        return tuple(sorted({*self.first, *self.later}))


def of(pairs: Mapping[int, TrainingPair], limits: Limits) -> Divergence | None:
    """`pairs`: by rank. None if nothing exceeds its limit."""
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
    """Whether the ranks that are off are to blame: there are at least as many others, which are clearly right."""
    return off <= len(others) and all(other * CLEARLY < 1 for other in others)


def _first_beyond(pair: TrainingPair, limits: Limits) -> Point | None:
    return next((point for point in points(pair, limits) if point.over > 1), None)


def each(values: Mapping[int, T], make: Callable[[T], U]) -> dict[int, U]:
    """Applies `make` by rank, once per distinct object: ranks with equal facts share one."""
    made = {id(value): make(value) for value in {id(value): value for value in values.values()}.values()}
    return {rank: made[id(value)] for rank, value in values.items()}


def worst(pairs: Iterable[TrainingPair], step: int, limits: Limits) -> float:
    """The largest difference of any rank's curves at this step, divided by the limit."""
    found = (at(pair, CurvePlace(step, quantity), limits) for pair in pairs for quantity in QUANTITIES)
    return max((point.over for point in found if point), default=0.0)


def odd_pieces(pairs: Mapping[int, TrainingPair], moment: Moment, limits: Limits) -> list[int]:
    """Ranks to blame if each keeps a piece of the tensors: those whose pieces alone are off."""
    offs = {rank: over(compare.way_off(own), moment, limits) for rank, own in _own(pairs, moment).items()}
    off = [rank for rank, off_by in offs.items() if off_by > 1]
    return off if off and few_are_off(len(off), [off_by for rank, off_by in offs.items() if rank not in off]) else []


def furthest_piece(pairs: Mapping[int, TrainingPair], moment: Moment, limits: Limits) -> int | None:
    """The rank whose piece is clearly further off than any other's, if a fault has spread to all pieces; or None."""
    offs = {rank: over(compare.way_off(own), moment, limits) for rank, own in _own(pairs, moment).items()}
    if len(offs) < 2:
        return None
    *_, second, most = sorted(offs, key=lambda rank: offs[rank])
    return most if offs[most] > 1 and offs[second] * CLEARLY < offs[most] else None


def _own(pairs: Mapping[int, TrainingPair], moment: Moment) -> dict[int, compare.Furthest]:
    """Each rank's own piece; empty if some rank keeps everything."""
    found = {rank: own for rank, pair in pairs.items() if (own := pair.apart["own"].get(moment))}
    return found if len(found) == len(pairs) else {}


def in_sync(pairs: Iterable[TrainingPair], limits: Limits) -> bool:
    """Whether all ranks ended with the same weights, right or wrong."""
    off = [compare.way_off(end) for pair in pairs if (end := pair.apart["whole"].get("end"))]
    return not off or min(off) == max(off) or max(off) - min(off) <= limits.end


def is_whole(quantity: Quantity) -> bool:
    return quantity in WHOLE or quantity == "gradient"
