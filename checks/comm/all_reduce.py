"""All-reduce: the right sum in every element on every rank, how fast it is, and whether a rank computes late.

`all_reduce`, as DDP sums gradients. Its bus factor is 2(n-1)/n (nccl-tests, doc/PERFORMANCE.md). What is sent, and how
a wrong element tells whose it is: sums.py. Then each rank computes for some milliseconds and all reduce 1 KiB, as in
training steps, so that a rank that computes slowly is told from a slow link: arrival.py.
"""

from collections.abc import Iterator, Mapping

from preflight.check import Code, Context, Finding, Level, Plan, Run, Scope
from preflight.checks.comm import arrival, expected, readings, sweep, verdict
from preflight.checks.comm.arrival import LATE_S as LATE_S
from preflight.checks.comm.sweep import MAX_MIB as MAX_MIB
from preflight.checks.comm.verdict import BASELINE_SHARE as BASELINE_SHARE
from preflight.checks.comm.verdict import BELOW_EXPECTED as BELOW_EXPECTED
from preflight.checks.comm.verdict import SLOWER_THAN_BASELINE as SLOWER_THAN_BASELINE
from preflight.checks.comm.verdict import TOO_SLOW as TOO_SLOW
from preflight.checks.comm.verdict import WRONG_RESULT as WRONG_RESULT

PLAN = Plan(
    Scope.WORLD, Level.STANDARD, deadline_s=90, estimate_s=5.0, needs=("comm.init",), uses=expected.READS,
    baseline=True, facts_version=2,
)  # fmt: skip

LATE_RANK = Code(
    "A rank computes much longer than the others, which wait for it.",
    fix="See what its node does (top, nvidia-smi): other processes, too few CPU cores, a GPU that is throttled.",
)


class Facts(readings.Facts, total=False):
    arrival: arrival.Arrival | None
    """Not where the backend lacks a type."""


def measure(ctx: Context) -> Facts:
    measured = sweep.run(ctx, "all_reduce")
    return {**measured, "arrival": arrival.measure(ctx, measured["latency"])}


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from verdict.judge("all_reduce", facts, run)
    arrivals = {rank: found for rank, one in facts.items() if (found := one.get("arrival"))}
    for rank, others, text in arrival.late(arrivals, run[LATE_S]):
        yield LATE_RANK.warn(text, noticed_by=others, **run.job.where(rank))


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    return verdict.summarize("all_reduce", facts)
