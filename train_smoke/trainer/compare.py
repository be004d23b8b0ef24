"""Where trainings diverge, and by how much. Numbers in, numbers out; no torch."""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

Number = float | str
"""Text if JSON has no such number: nan, inf."""


class Curve(TypedDict):
    """A value for each step."""

    losses: list[Number]
    """The loss of a rank's own part of the batch (alone: of the whole batch), before the step."""
    own_norms: list[Number]
    """The norm of the gradient of this part, before ranks exchange it."""
    own_prints: list[Number]
    """The sum of the same gradient's elements, each with a fixed random sign. For two gradients with equal norms it
    shows that a few elements differ."""
    norms: list[Number]
    """The norm of the gradient that the step uses."""
    prints: list[Number]


Quantity = Literal["losses", "own_norms", "own_prints", "norms", "prints"]
QUANTITIES: tuple[Quantity, ...] = ("losses", "own_norms", "own_prints", "norms", "prints")
"""In the order in which a step makes them."""
SCALES: Mapping[Quantity, Quantity] = {"own_prints": "own_norms", "prints": "norms"}
"""The quantity to which a difference is relative, if not the value itself: a print may be near 0."""
WHOLE: tuple[Quantity, ...] = ("norms", "prints")
"""Quantities that do not depend on which part is a rank's own."""


Moment = Literal["start", "gradient", "end", "state"]
MOMENTS: tuple[Moment, ...] = ("start", "gradient", "end", "state")
"""When all tensors are compared: weights before the first step, the first step's gradient, weights after the last step,
and what the optimizer then keeps."""


class Furthest(TypedDict):
    """The tensor that is furthest from its expected value: a parameter, its gradient, or its optimizer state."""

    parameter: str
    """The parameter's name; for an optimizer's tensor "name momentum_buffer"."""
    off: Number
    """How far its worst element is off, relative to the tensor's largest element; at the end relative to the largest
    change that an element should have made."""
    rest: Number
    """The same for the worst tensor of all other parameters."""
    elsewhere: Number
    """The same for those outside the parameter's block (`block_of`)."""


def block_of(parameter: str) -> str:
    """The block that a strategy wraps by itself: "blocks.1" for "blocks.1.up.weight"; "" if it is in none."""
    words = parameter.partition(" ")[0].split(".")
    number = next((place for place, word in enumerate(words) if word.isdigit()), None)
    return "" if number is None else ".".join(words[: number + 1])


class Along(TypedDict):
    """What is wrong with the first step's gradient, as a multiple of this rank's own part in it."""

    times: Number
    """The best-fitting multiple: 0.001 if this rank's part went into the mean 1.001 times."""
    share: Number
    """The share of the (squared) difference that it explains: 1 if the difference is that multiple and nothing else."""


class GradientOff(TypedDict):
    """One parameter's gradient at the first step, compared with the expected one."""

    parameter: str
    error: Number
    """The Frobenius norm of the difference, divided by that of the expected gradient."""
    ratio: Number
    """Its Frobenius norm, divided by that of the expected gradient."""


class GradientsOff(TypedDict):
    worst: list[GradientOff]
    """Those that are furthest off, at most WORST, in that order. A gradient that is negligible compared with the
    model's largest is measured relative to a share of that one."""
    alike: int
    """How many have the same ratio as the first of these, within 1%."""
    count: int
    """The number of all."""


WORST, SAME = 4, 0.01


class Apart(TypedDict):
    """How far two trainings' tensors are apart."""

    whole: dict[str, Furthest]
    """By moment."""
    own: dict[str, Furthest]
    """The same for what this rank itself keeps of them; empty if every rank keeps all."""
    along: Along | None
    """None if nothing is wrong, or the rank has no part in the gradient."""
    like: Number | None
    """Cosine between the first step's gradient, as far as this rank keeps it, and that of its own part alone: 1 if they
    are proportional. None if either is 0."""
    gradients: GradientsOff
    """The first step's gradient, parameter by parameter."""


class Spread(TypedDict):
    """How far sound trainings on this hardware are apart, by quantity and moment: relative."""

    curves: Number
    gradient: Number
    end: Number
    state: Number


@dataclass(frozen=True)
class Limits:
    """How far two sound trainings may be apart, with the fields of `Spread`. Weights at the start must be equal."""

    curves: float
    gradient: float
    end: float
    state: float


LEAST = Limits(curves=2e-5, gradient=2e-5, end=1e-3, state=1e-4)
"""Measured over gloo on CPUs, DDP on worlds of 2, 3, 5 and 8 ranks, up to 3 seeds: in float32 it was at most 1.2e-6
from training alone on the curves, 8e-7 in the first gradient, 2.8e-5 in the way of the weights, and 5e-7 in the
momentum. A rank of 8 whose gradient weighs 0.1% too much puts the norm 8e-5 off."""
TIMES = 8
"""The limit of coarser arithmetic (bfloat16, TF32 forced on by NVIDIA_TF32_OVERRIDE), in multiples of its own spread.
Measured on worlds of 1 to 8 ranks, DDP, FSDP1 and FSDP2 in all variants of a CPU, up to 3 seeds: a sound training was
at most 2.7 times the spread off (a signed sum of its own gradient), and 1.7 times in its tensors."""


def limits(spreads: Iterable[Spread]) -> Limits:
    """Limits from each rank's spread: for each number the median rank's, which a sick rank cannot widen."""
    listed = list(spreads)
    return Limits(
        curves=_limit(LEAST.curves, (spread["curves"] for spread in listed)),
        gradient=_limit(LEAST.gradient, (spread["gradient"] for spread in listed)),
        end=_limit(LEAST.end, (spread["end"] for spread in listed)),
        state=max(
            _limit(LEAST.state, (spread["state"] for spread in listed)),
            _limit(0.0, (spread["gradient"] for spread in listed)),  # it is made of gradients
        ),
    )


def _limit(least: float, spreads: Iterable[Number]) -> float:
    return max(least, TIMES * middle(spreads))


def middle(values: Iterable[Number]) -> float:
    """The lower median of those that are numbers; 0 if none is."""
    return statistics.median_low([value for value in values if not isinstance(value, str)] or [0.0])


def difference(measured: Number, expected: Number, scale: Number | None = None) -> float:
    """The difference relative to what was expected, or to the scale; infinite if only one of them is a number."""
    if measured == expected:
        return 0.0
    by = expected if scale is None else scale
    if isinstance(measured, str) or isinstance(expected, str) or isinstance(by, str) or by == 0:
        return math.inf
    return abs(measured - expected) / abs(by)


def way_off(furthest: Furthest) -> float:
    """How far it is off, as a number; infinite if it is not a number."""
    return math.inf if isinstance(furthest["off"], str) else furthest["off"]


def spread(again: Curve, once: Curve, apart: Apart) -> Spread:
    """How far apart two trainings on the same rows are: the norms and prints of their gradients, and their tensors."""
    shared = [
        difference(again[quantity][step], once[quantity][step], once[SCALES.get(quantity, quantity)][step])
        for step, quantity in itertools.product(range(len(once["norms"])), WHOLE)
    ]
    whole = apart["whole"]
    return Spread(
        curves=as_json(max(shared)),
        gradient=whole["gradient"]["off"],
        end=whole["end"]["off"],
        state=whole["state"]["off"],
    )


def wider(spread: Spread, other: Spread) -> Spread:
    def most(a: Number, b: Number) -> Number:
        return a if isinstance(a, str) else b if isinstance(b, str) else max(a, b)

    return Spread(
        curves=most(spread["curves"], other["curves"]),
        gradient=most(spread["gradient"], other["gradient"]),
        end=most(spread["end"], other["end"]),
        state=most(spread["state"], other["state"]),
    )


def as_json(value: float) -> Number:
    """The value to 9 digits, enough to distinguish any two float32; as text if it is not finite."""
    return float(f"{value:.9g}") if math.isfinite(value) else str(value)


NAMES: Mapping[str, str] = {
    "losses": "loss on its own part",
    "own_norms": "norm of its own gradient",
    "own_prints": "signed sum of its own gradient",
    "norms": "gradient norm",
    "prints": "signed sum of the gradient",
}


def text(value: Number, digits: int = 7) -> str:
    """The value as text, to the 7 digits of float32."""
    return value if isinstance(value, str) else f"{value:.{digits}g}"


def places(curves: Iterable[Curve]) -> Iterator[tuple[int, Quantity]]:
    """Yields steps and quantities of trainings on the whole batch, in their order."""
    for step in range(max((len(curve["losses"]) for curve in curves), default=0)):
        yield step, "losses"
        yield step, "norms"


def alike(values: Mapping[int, Number], limit: float) -> dict[int, Number]:
    """By rank, one value (to 7 digits) for all that are within the limit of it, so that a vote counts them as one."""
    chosen: dict[Number, Number] = {}
    least: Number = ""
    for value in sorted(set(values.values()), key=lambda value: (isinstance(value, str), value)):
        if difference(value, least) > limit:
            least = value
        chosen[value] = least if isinstance(least, str) else float(text(least))
    return {rank: chosen[value] for rank, value in values.items()}
