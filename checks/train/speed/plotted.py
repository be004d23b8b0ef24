"""What report.html draws of speed: steps, the phases of each rank, exposed communication, strategies side by side."""

import itertools
import statistics
from collections.abc import Collection, Iterator, Sequence

from preflight.check import Run, plots
from preflight.checks.train.speed import figures, table
from preflight.checks.train.speed.facts import AllFacts
from preflight.train_smoke.trainer.names import PHASES

MS = 1e3


def plot(facts: AllFacts, run: Run, odd: Collection[int]) -> Iterator[plots.Plot]:
    """`odd`: ranks that a finding names."""
    name = table.first(facts)
    if not name:
        return
    yield _steps(facts, name)
    ranks = sorted(figures.last_rounds(facts, name))
    subjects = [(run.job.node_of(rank).node, f"rank {rank}") for rank in ranks]
    places = [place for place, rank in enumerate(ranks) if rank in odd]
    yield plots.Strips(f"a step under {name}, by rank", subjects, [*_phases(facts, name, ranks, places)])
    exposed = [
        plots.Strip(its, "ms", [MS * facts[rank]["strategies"][its]["exposed"]["exposed"] for rank in ranks])
        for its in table.timed(facts)
    ]
    yield plots.Strips("exposed communication per step, by rank", subjects, exposed)
    heads, *rows = ((*row[:4], *row[6:]) for row in table.strategies(facts, run))  # p95 and p99: the figure is narrow
    yield plots.Table("strategies side by side", ("strategy", *heads[1:]), rows, table.OF_ALONE)


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
