"""The one comparison of a run with the past: which share of its earlier value each figure keeps, and whether that is
enough. `--baseline REPORT` (`judge`), `--baseline auto` (expected.py) and `preflight diff` (diff.py) are made of it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight.core.exceptions import in_one_line
from preflight.core.facts import FactsStore
from preflight.core.groups import Group
from preflight.core.job import Job
from preflight.core.outcome import Outcome
from preflight.history.entry import recorded
from preflight.history.reference import OneRun, PastFigures, Usual
from preflight.history.run_entry import KeptFigure, Of
from preflight.planning import registry
from preflight.planning.registry import Source
from preflight.results import judging

NOISES = 4.0
"""A figure has changed if it is this many standard deviations of the noise away."""
CODE, SHARE = "slower_than_baseline", "baseline_share"
"""The code that a check declares to be compared with `--baseline REPORT`; the option in place of Figure.least."""


@dataclass(frozen=True)
class FigureChange:
    """A figure beside its earlier value."""

    of: Of
    unit: str
    """The node, or the UUID of the GPU; "": of all ranks together."""
    value: float
    usual: Usual
    share: float
    """What is left of the earlier value; above 1 it is better."""
    noise: float
    least: float

    @property
    def is_slower(self) -> bool:
        return self.share < self.least

    def culprit(self, places: Mapping[str, str]) -> dict[str, str]:
        """`places`: the node of each GPU."""
        if self.unit in places:
            return {"node": places[self.unit], "uuid": self.unit}
        return {"node": self.unit} if self.unit else {}


def least_share(kept: float, noise: float) -> float:
    """The share of an earlier value below which it has changed. `kept`: what a sound machine keeps (Figure.least), 0 if
    that is not known; `noise`: the standard deviation between ranks or runs, as a share. It is a factor, as speeds
    are positive: with 0.3 a hundredth of before is still a change."""
    return min(kept, math.exp(-NOISES * noise))


def compared(figure: KeptFigure, unit: str, reference: PastFigures, least: float | None = None) -> FigureChange | None:
    """None if there is nothing to compare with. `least`: the user's, for a figure that the check compares."""
    value, usual = figure.units[unit] if unit else figure.value, reference.usual(figure.of, unit)
    if usual is None or min(value, usual.value) <= 0:
        return None
    kept = figure.least or usual.least or 0.0
    noise = math.hypot(usual.spread, figure.spread)
    share = usual.value / value if figure.less_is_better else value / usual.value
    return FigureChange(figure.of, unit, value, usual, share, noise, least_share(least or kept if kept else 0.0, noise))


def comparisons(
    figures: Iterable[KeptFigure], reference: PastFigures, least: float | None = None
) -> Iterator[FigureChange]:
    """One for each figure of all ranks together, and for each node or GPU of the others."""
    for figure in figures:
        for unit in [""] if figure.of_job else figure.units:
            if comparison := compared(figure, unit, reference, least):
                yield comparison


def slowest_first(compared: Iterable[FigureChange]) -> list[FigureChange]:
    """Those that are slower, the one that lost most first."""
    return sorted((each for each in compared if each.is_slower), key=lambda each: each.share)


def sentence(slower: Sequence[FigureChange], before: str) -> str:
    """About the first of them. `before`: what they are compared with, "the baseline's"."""
    worst, *others = slower
    _, name, measure = worst.of
    text = f"{name} {worst.value:.3g} {measure} is {worst.share:.0%} of {worst.usual.value:.3g}, {before} (spread "
    also = f"; {len(others)} more of its figures are slower" if others else ""
    return f"{text}{worst.noise:.1%}), expected at least {worst.least:.0%}{also}"


def judge(
    source: Source, job: Job, outcomes: Mapping[int, Outcome], book: FactsStore, settings: Mapping[str, str],
    groups: Iterable[Group] = (),
) -> dict[str, object]:  # fmt: skip
    """What `judging.call_judge` returns; beside its findings the one that the check is slower than in the run of
    `--baseline REPORT`, if that has figures of it."""
    answer = judging.call_judge(source, job, outcomes, book, settings, groups)
    before = [KeptFigure.from_json(row) for row in judging.baseline(book) if row[0] == source.id]
    if not before or "error" in answer:
        return answer
    try:
        slower = _slower_than_baseline(source, job, book, settings, before)
        return {**answer, "findings": [*answer["findings"], *slower]}
    except Exception as error:  # what judge() found must not be lost for that
        why = f"not compared with the baseline: record() raised {in_one_line(error)}"
        return {**answer, "summary": "; ".join(filter(None, (answer["summary"], why)))}


def _slower_than_baseline(
    source: Source, job: Job, book: FactsStore, settings: Mapping[str, str], before: Sequence[KeptFigure]
) -> Iterator[dict[str, object]]:
    check = registry.load(source)
    option = check.options.get(SHARE)
    least = check.values(settings).get(option) if option else None
    figures, places = recorded(check, job, book)
    slower = slowest_first(comparisons(figures, OneRun(before), least))
    if slower and CODE in check.codes:
        finding = check.codes[CODE].warn(sentence(slower, "the baseline's"), **slower[0].culprit(places))
        yield judging.as_json(check, finding)
