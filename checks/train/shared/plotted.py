"""Plots of trainings in report.html: the loss, the distance from training alone in units of the spread."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from preflight.check import Run, plots
from preflight.checks.train.shared import curves
from preflight.checks.train.shared.curves import OFF
from preflight.checks.train.shared.parity import variants_in
from preflight.train_smoke.trainer import compare
from preflight.train_smoke.trainer.compare import Curve, Number

if TYPE_CHECKING:
    from preflight.train_smoke.strategies.training import Facts

Pair = tuple[Curve, Curve]
"""(measured, alone)."""


def plot(facts: Mapping[int, "Facts"], _run: Run, screen: str = "quiet") -> Iterator[plots.Plot]:
    """`screen`: of the table."""
    yield from curves.table(facts, screen)
    names = [name for name in variants_in(facts) if any(_pairs(facts, name))]
    if not names:
        return
    recipes = dict.fromkeys(next(iter(facts.values()))["variants"][name]["recipe"] for name in names)
    losses = [plots.Series(name, _losses([pair[0] for pair in _pairs(facts, name)])) for name in names]
    alone = [[own["alone"][recipe]["curve"] for own in facts.values() if recipe in own["alone"]] for recipe in recipes]
    losses += [
        plots.Series(f"alone, {recipe}", _losses(its), "expected") for recipe, its in zip(recipes, alone, strict=True)
    ]
    yield plots.Chart("loss by step", "step", "loss", losses)
    off = [plots.Series(name, [*_distances(facts, name)]) for name in names]
    steps = max(len(series.points) for series in off)
    off.append(plots.Series("as far as is allowed", [(0, compare.TIMES), (steps - 1, compare.TIMES)], "expected"))
    note = "1 is the effect of this hardware's own roundings on training alone; if they have none, 2e-5 / 8 is 1."
    yield plots.Chart("distance from the training alone", "step", "spreads", off, note=note)


def _pairs(facts: Mapping[int, "Facts"], name: str) -> Iterator[Pair]:
    for own in facts.values():
        compared = own["variants"].get(name)
        if compared and compared["curve"] and compared["recipe"] in own["alone"]:
            yield compared["curve"], own["alone"][compared["recipe"]]["curve"]


def _losses(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """The ranks' mean at each step, without NaN, which has no place on an axis."""
    steps = max((len(curve["losses"]) for curve in curves), default=0)
    found: list[tuple[float, float]] = []
    for step in range(steps):
        values = [v for curve in curves for v in curve["losses"][step : step + 1] if not isinstance(v, str)]
        if values:
            found.append((step, statistics.fmean(values)))
    return found


def _distances(facts: Mapping[int, "Facts"], name: str) -> Iterator[tuple[float, float]]:
    """The largest distance over the ranks at each step, of losses and norms."""
    recipe = next(iter(facts.values()))["variants"][name]["recipe"]
    spread = compare.middle(
        own["alone"][recipe]["spread"]["curves"] for own in facts.values() if recipe in own["alone"]
    )
    unit = max(spread, compare.LEAST.curves / compare.TIMES)
    pairs = [*_pairs(facts, name)]
    for step in range(min(len(alone["losses"]) for _, alone in pairs)):
        each = [_off(pair, step) for pair in pairs]
        yield step, max(each) / unit


def _off(pair: Pair, step: int) -> float:
    measured, alone = pair
    values: list[tuple[Number, Number]] = [
        (measured[quantity][step], alone[quantity][step]) for quantity in OFF if step < len(measured[quantity])
    ]
    return max((compare.difference(*both) for both in values if both[0] != both[1]), default=0.0)
