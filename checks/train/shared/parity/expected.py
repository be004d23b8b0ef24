"""Whether the trainings alone of a variant's recipe are a valid reference: finite, steady, and the same on all ranks.
`train.alone` only checks the plain recipe; bfloat16 and AdamW use different library code."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from preflight.check import Vote, ranges, vote
from preflight.checks.train.shared.parity.divergence import CurvePlace, Point, TrainingPair
from preflight.checks.train.shared.parity.variant import Kind, Meaning
from preflight.train_smoke.trainer import compare
from preflight.train_smoke.trainer.compare import Limits, Number, Spread

STEADY = 0.1
"""How far roundings alone may move a curve or the first gradient: 8 times that, the limit, is about the value itself.
Sound hardware is below 0.03 in bfloat16, 1e-6 in float32."""
SAID = "nothing can be compared: in training alone, in the same arithmetic,"


def of(
    pairs: Mapping[int, TrainingPair], limits: Limits, spreads: Sequence[Spread], *, is_known: bool
) -> Iterator[Meaning]:
    """Reasons not to compare with them; none if all is well. `is_known`: whether the model trains without NaN on sound
    hardware."""
    norms = {rank: pair.expected["norms"] for rank, pair in pairs.items()}
    losses = {rank: pair.expected["losses"] for rank, pair in pairs.items()}
    first, wide = _first_text(norms, losses), _not_a_number(spreads)
    if wide and (first is None or not is_known):  # a model that may diverge does so at a different step on each rank
        told = f"{SAID} {wide} without bound if the batch is split differently or rounded, expected hardly at all"
        yield Meaning("unsteady", told, Point(CurvePlace(0, "norms"), "inf", 0.0, math.inf))
    elif first is not None:
        yield from _of_text(*first, pairs, "not_finite" if is_known else "unsteady")
    else:
        yield from _differing(norms, limits, "wrong_step" if is_known else "unsteady")


def unsteady(limits: Limits) -> Meaning | None:
    """A meaning if all is within the limits, but these are too wide to prove anything."""
    for kind, limit in (("curves", limits.curves), ("first gradient", limits.gradient)):
        spread = limit / compare.TIMES
        if spread > STEADY:
            told = "all is within the limits, but these prove little: alone, roundings and batch splits move the "
            told += f"{kind} by {spread:.0%}, "
            point = Point(CurvePlace(0, "norms"), spread, STEADY, spread / STEADY)
            return Meaning("unsteady", f"{told}expected at most {STEADY:.0%}", point)
    return None


Listed = Mapping[int, Sequence[Number]]
Told = Literal["norms", "losses"]


def _first_text(norms: Listed, losses: Listed) -> tuple[int, Told, dict[int, Number]] | None:
    named: tuple[tuple[Told, Listed], ...] = (("losses", losses), ("norms", norms))
    for step in range(max(map(len, norms.values()), default=0)):
        for quantity, values in named:
            if texts := {rank: texts_of[step] for rank, texts_of in values.items() if isinstance(texts_of[step], str)}:
                return step, quantity, texts
    return None


def _of_text(
    step: int, quantity: Told, texts: Mapping[int, Number], pairs: Mapping[int, TrainingPair], on_all: Kind
) -> Iterator[Meaning]:
    what = "loss" if quantity == "losses" else "gradient norm"
    for rank, value in texts.items():
        told = f"{SAID} the {what} at step {step} is {value}"
        point = Point(CurvePlace(step, quantity), value, "a number", math.inf)
        if len(texts) == len(pairs):
            yield Meaning(on_all, f"{told} on all ranks, expected a number", point)
            return
        sound = f", expected a number as on {len(pairs) - len(texts):,} of {ranges.count(len(pairs), 'rank')}"
        yield Meaning("not_finite", f"{told}{sound}", point, rank)


def _not_a_number(spreads: Sequence[Spread]) -> str:
    """What roundings move without bound on most ranks, in words; or ""."""
    words = {"curves": "the curves move", "gradient": "the first gradient moves", "end": "the weights move",
             "state": "the optimizer's state moves"}  # fmt: skip
    for kind, told in words.items():
        texts = [spread for spread in spreads if isinstance(spread[kind], str)]  # type: ignore[literal-required]
        if 2 * len(texts) > len(spreads):
            return told
    return ""


def _differing(norms: Listed, limits: Limits, undecided: Kind) -> Iterator[Meaning]:
    """Compares the gradient of all ranks' rows, which should be the same on all, except for roundings."""
    for step in range(min(map(len, norms.values()), default=0)):
        counted = vote(compare.alike({rank: own_norms[step] for rank, own_norms in norms.items()}, limits.curves))
        if not counted.unanimous:
            yield from _parted(step, counted, undecided)
            return


def _parted(step: int, counted: Vote[Number], undecided: Kind) -> Iterator[Meaning]:
    told = f"{SAID} the gradient norm at step {step} is"
    for rank, value in counted.odd():
        point = Point(CurvePlace(step, "norms"), value, counted.usual, math.inf)
        yield Meaning("wrong_step", f"{told} {compare.text(value)}, expected {counted.among()}", point, rank)
    if not counted.decided:
        point = Point(CurvePlace(step, "norms"), "", "", math.inf)
        yield Meaning(undecided, f"{told} {counted.sides()}, expected the same on all", point)
