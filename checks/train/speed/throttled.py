"""Ranks that a CPU quota stops, and for which the others wait.

Where its quota is used up, a rank stands still until the next period, in whatever phase it is then, most of all in the
exchange of gradients: so it need not compute late by the medians of its phases.
"""

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from preflight.check import Finding, Run, ranges, words
from preflight.checks.train.speed import causes
from preflight.checks.train.speed.facts import AllFacts
from preflight.checks.train.speed.stragglers import LATE, LATE_S, OF_PHASE, STRAGGLER, least_share

if TYPE_CHECKING:
    from preflight.train_smoke.speed.training import TimedSteps


class ThrottledRank(NamedTuple):
    rank: int
    others: Sequence[int]
    """Who wait for it."""
    computing: float
    """Seconds a step, of these."""
    waiting: float
    step: float


def stopped(
    rounds: "Mapping[int, Sequence[TimedSteps]]", facts: AllFacts, run: Run, name: str, known: Collection[int]
) -> Iterator[ThrottledRank]:
    """`known`: ranks of which is told already that others wait for them. Where more than half are throttled, they have
    what is usual."""
    shares = {rank: facts[rank]["strategies"][name]["throttled"] for rank in rounds}
    ranks = [rank for rank, share in shares.items() if share >= causes.THROTTLED and rank not in known]
    others = [rank for rank, share in shares.items() if share < causes.THROTTLED / 2 and rank not in known]
    if not ranks or len(others) < len(rounds) / 2 or not _wait(rounds, others, least_share(run[LATE], run.job)):
        return
    last = [rounds[rank][-1] for rank in others]
    for rank in ranks:
        yield ThrottledRank(
            rank, others, statistics.median_low(map(_computing, last)),
            statistics.median_low(its["phases"]["wait"] for its in last), statistics.median(last[0]["steps"]),
        )  # fmt: skip


def _wait(rounds: "Mapping[int, Sequence[TimedSteps]]", ranks: Sequence[int], share: float) -> bool:
    """In every round, for so much of what they compute themselves."""
    numbers = range(min(len(rounds[rank]) for rank in ranks))
    return all(
        statistics.median_low(its["phases"]["wait"] - max(LATE_S, share * _computing(its)) for its in every) >= 0
        for every in ([rounds[rank][number] for rank in ranks] for number in numbers)
    )


def _computing(own: "TimedSteps") -> float:
    return sum(own["phases"][phase] for phase in OF_PHASE)


def judge(found: Iterator[ThrottledRank], facts: AllFacts, run: Run, name: str) -> Iterator[Finding]:
    """`name`: of the strategy."""
    for its in found:
        why = causes.of_quota(facts[its.rank]["quota"], facts[its.rank]["strategies"][name]["throttled"])
        computing, waiting = map(words.duration, (its.computing, its.waiting))
        does, waits = ("computes", "waits") if len(its.others) == 1 else ("compute", "wait")
        text = (
            f"{why.text}, expected to have the core that it computes on: under {name} {ranges.ranks(its.others)} "
            f"{does} {computing} per step and {waits} {waiting} for it, and {its.waiting / its.step:.0%} of each step "
            "is lost"
        )
        evidence = {**why.evidence, "share": round(its.waiting / its.step, 3)}
        where = run.job.where(its.rank)
        yield STRAGGLER.warn(text, noticed_by=its.others, evidence=evidence, fix=why.fix, **where)
