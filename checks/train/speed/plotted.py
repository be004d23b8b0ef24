"""What is drawn of speed: steps, the phases of each rank, exposed communication; tables of strategies and of ranks."""

import itertools
import statistics
from collections.abc import Collection, Container, Iterator, Sequence

from preflight.check import Run, plots
from preflight.checks.train.speed import figures, table
from preflight.checks.train.speed.facts import AllFacts, StrategySpeed
from preflight.train_smoke.trainer.names import PHASES

MS = 1e3


def plot(facts: AllFacts, run: Run, odd: Collection[int], too_big: Container[str]) -> Iterator[plots.Plot]:
    """`odd`: ranks that a finding names. `too_big`: strategies that will not fit."""
    name = table.first(facts)
    if name:
        yield _steps(facts, name)
        yield from _by_rank(facts, run, name, odd)
    yield table.strategies(facts, run, too_big)
    if name:
        yield table.ranks(facts, name)


def _by_rank(facts: AllFacts, run: Run, name: str, odd: Collection[int]) -> Iterator[plots.Plot]:
    ranks = sorted(figures.last_rounds(facts, name))
    subjects = [(run.job.node_of(rank).node, f"rank {rank}") for rank in ranks]
    places = [place for place, rank in enumerate(ranks) if rank in odd]
    yield plots.Strips(f"a step under {name}, by rank", subjects, [*_phases(facts, name, ranks, places)])
    by_strategy = {each: [_exposed(facts[rank]["strategies"][each]) for rank in ranks] for each in table.timed(facts)}
    shares = [plots.Strip(each, "%", values) for each, values in by_strategy.items()]
    yield plots.Strips("exposed communication, of a step under the profiler, by rank", subjects, shares)


def _exposed(strategy: StrategySpeed) -> float:
    """As a share of the step in which it was seen, in percent."""
    return 100 * strategy["exposed"]["exposed"] / max(strategy["exposed"]["step"], 1e-9)


def _steps(facts: AllFacts, name: str) -> plots.Chart:
    """In the order of the steps, over the ranks."""
    every = {
        f"{name}, all ranks": figures.last_rounds(facts, name).values(),
        "alone, all at once": [own["alone"] for own in facts.values()],
    }
    series = []
    for label, of_ranks in every.items():
        columns = itertools.zip_longest(*(its["steps"] for its in of_ranks))
        points = [(number, *_band([value for value in column if value])) for number, column in enumerate(columns)]
        series.append(plots.Series(label, points, "" if label.startswith(name) else "expected"))
    return plots.Chart("time of a step", "step", "ms", series)


def _band(values: Sequence[float]) -> tuple[float, float, float]:
    return MS * min(values), MS * statistics.median(values), MS * max(values)


def _phases(facts: AllFacts, name: str, ranks: Sequence[int], odd: Sequence[int]) -> Iterator[plots.Strip]:
    series = figures.last_rounds(facts, name)
    for phase in PHASES:
        yield plots.Strip(phase, "ms", [MS * series[rank]["phases"][phase] for rank in ranks], odd)
    waits = [MS * sum(series[rank]["core_wait"].values()) for rank in ranks]
    yield plots.Strip("of these, waiting for a core", "ms", waits, odd)
