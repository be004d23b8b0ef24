"""Trainings side by side: the loss, the distance from training alone, and the memory per rank."""

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from preflight.check import plots
from preflight.checks.train.shared.parity import variants_in
from preflight.train_smoke.trainer import compare
from preflight.train_smoke.trainer.compare import Curve, Number, Quantity
from preflight.train_smoke.trainer.names import PLAIN

if TYPE_CHECKING:
    from preflight.train_smoke.strategies.training import Compared, Facts
    from preflight.train_smoke.trainer.memory import Memory

MOST_STEPS, STEP = 5, 5
"""The most columns of losses, and their width."""
MIB = 2**20
OFF: tuple[Quantity, ...] = ("losses", "norms")
"""The quantities whose largest difference from alone is shown."""
PEAKS = {"allocated": "alloc", "reserved": "reserved", "resident": "peak"}
"""Peaks of memory, and their column heads."""


class _Row(NamedTuple):
    name: str
    losses: list[str]
    """By step."""
    figures: list[str]
    """One per column head."""


def table(facts: Mapping[int, "Facts"], screen: str) -> Iterator[plots.Table]:
    """A row per variant, with ranges for what differs between ranks; below them the trainings alone, with the effect
    of roundings in place of the difference. `screen`: of the table."""
    every = [*facts.values()]
    names = variants_in(facts)
    made = {name: [own["variants"][name] for own in every if name in own["variants"]] for name in names}
    peaks = [kind for kind in PEAKS if any(_of(kind, its) for its in made.values())]
    rows = [
        _variant(name, its, every, peaks) for name, its in made.items() if any(compared["curve"] for compared in its)
    ]
    recipes = dict.fromkeys(its[0]["recipe"] for its in made.values() if any(compared["curve"] for compared in its))
    rows += [_alone(name, every, len(peaks)) for name in recipes]
    notes = [
        "loss: the ranks' mean; off: the most, from alone (for alone: by roundings)",
        f"MiB per rank: held between steps{'; peak, beyond what was used before' if peaks else ''}",
    ] * bool(rows)
    unfit = {name: next((compared["unfit"] for compared in its if compared["unfit"]), "") for name, its in made.items()}
    notes += [f"{name} not run: {why}" for name, why in unfit.items() if why]
    steps = _shown_steps(max((len(row.losses) for row in rows), default=0), MOST_STEPS)
    losses = [[row.losses[at] if at < len(row.losses) else "-" for at in steps] for row in rows]
    cells = [(row.name, *own, *row.figures) for row, own in zip(rows, losses, strict=True)]
    heads = ("loss at step", *map(str, steps), "off", "held", *(PEAKS[kind] for kind in peaks))
    if notes:
        yield plots.Table("trainings side by side", heads, cells, "\n".join(notes), screen)


def _shown_steps(steps: int, most: int) -> list[int]:
    """The first, the last, and some between."""
    if steps <= most:
        return [*range(steps)]
    return [round(place * (steps - 1) / (most - 1)) for place in range(most)]


def _variant(name: str, its: Sequence["Compared"], every: Sequence["Facts"], peaks: Iterable[str]) -> _Row:
    pairs = [
        (own["variants"][name]["curve"], own["alone"][own["variants"][name]["recipe"]]["curve"])
        for own in every
        if name in own["variants"] and own["variants"][name]["recipe"] in own["alone"]
    ]
    off = max((_off(measured, expected) for measured, expected in pairs if measured), default=0.0)
    memory = [_span(_of("held", its), 2), *(_span(_of(kind, its), 1) for kind in peaks)]
    return _Row(
        name, _means([compared["curve"]["losses"] for compared in its if compared["curve"]]), [_short(off), *memory]
    )


def _alone(recipe: str, every: Sequence["Facts"], peaks: int) -> _Row:
    its = [own for own in every if recipe in own["alone"]]
    spread = compare.middle(own["alone"][recipe]["spread"]["curves"] for own in its)
    name = "alone" if recipe == PLAIN else f"alone {recipe}"
    steps = (_steps(recipe, own) for own in its)
    losses = [own["alone"][recipe]["curve"]["losses"][:most] for own, most in zip(its, steps, strict=True)]
    return _Row(name, _means(losses), [_short(spread), *["-"] * (1 + peaks)])


def _steps(recipe: str, own: "Facts") -> int | None:
    """How many steps this rank took under the strategy: a mean over other ranks' losses would not be comparable."""
    curves = (its["curve"] for its in own["variants"].values() if its["recipe"] == recipe)
    return min((len(curve["losses"]) for curve in curves if curve), default=None)


def _means(every: Collection[Sequence[Number]]) -> list[str]:
    """The mean over the ranks at each step."""
    steps = max(map(len, every), default=0)
    return [_loss([losses[step] for losses in every if step < len(losses)]) for step in range(steps)]


def _loss(values: Sequence[Number]) -> str:
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        return texts[0][: STEP - 1]
    mean = statistics.fmean(value for value in values if not isinstance(value, str))
    fitting = (text for text in (f"{mean:.2f}", f"{mean:.1f}", f"{mean:.0f}") if len(text) < STEP)
    return next(fitting, f"{mean:.0e}".replace("e+0", "e"))


def _off(measured: Curve, expected: Curve) -> float:
    return max(_furthest(measured[quantity], expected[quantity]) for quantity in OFF)


def _furthest(measured: Sequence[Number], expected: Sequence[Number]) -> float:
    """The largest `compare.difference`, fast enough for thousands of ranks."""
    if measured == expected:
        return 0.0
    return max(
        (compare.difference(*pair) for pair in zip(measured, expected, strict=False) if pair[0] != pair[1]), default=0.0
    )


def _short(value: float) -> str:
    return f"{value:.0e}" if value else "0"


def _of(kind: str, its: Iterable["Compared"]) -> list[int]:
    memories: list[Memory] = [compared["memory"] for compared in its if compared["memory"]]
    found: list[int | None] = [memory[kind] for memory in memories]  # type: ignore[literal-required]
    return [value for value in found if value is not None]


def _span(sizes: Collection[int], digits: int) -> str:
    """Smallest to largest over the ranks, from bytes to MiB with at most `digits` decimals."""
    if not sizes:
        return "-"
    least, most = _mib(min(sizes), digits), _mib(max(sizes), digits)
    return least if least == most else f"{least}-{most}"


def _mib(size: int, digits: int) -> str:
    value = size / MIB
    if 0 < value < 0.1:
        return f"{value:.1g}"
    return f"{value:.{digits}f}" if value < 10 else f"{value:.{digits - 1}f}" if value < 100 else f"{value:,.0f}"
