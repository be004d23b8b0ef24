"""All-reduce: the right sum in every element on every rank, how fast it is, and whether a rank computes late.

`all_reduce`, as DDP sums gradients. Its bus factor is 2(n-1)/n (nccl-tests, doc/PERFORMANCE.md). What is sent, and how
a wrong element tells whose it is: payload_sum.py. Then each rank computes for some milliseconds and all reduce 1 KiB,
as in training steps, so that a rank that computes slowly is told from a slow link: straggler.py.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from preflight.check import Code, Context, Finding, Level, Plan, Run, Scope
from preflight.checks.comm.all_reduce import straggler
from preflight.checks.comm.all_reduce.straggler import LATE_S
from preflight.checks.comm.shared import expected, judge_collective, readings, sweep

PARTS = (straggler, sweep, judge_collective)
PLAN = Plan(
    Scope.WORLD, Level.STANDARD, deadline_s=90, estimate_s=5.0, needs=("comm.init",), uses=expected.READS,
    baseline=True, facts_version=3,
)  # fmt: skip

LATE_RANK = Code(
    "A rank computes much longer than the others, which wait for it.",
    fix="See what its node does (top, nvidia-smi): other processes, too few CPU cores, a GPU that is throttled.",
)


class Facts(readings.Facts, total=False):
    arrival: straggler.Arrival | None
    """Not where the backend lacks a type."""


def measure(ctx: Context) -> Facts:
    measured = sweep.run(ctx, operation="all_reduce")
    return {**measured, "arrival": straggler.measure(ctx, measured["latency"])}


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from judge_collective.judge(facts, run, operation="all_reduce")
    arrivals = {rank: found for rank, reading in facts.items() if (found := reading.get("arrival"))}
    for rank, others, text, starved in straggler.late(arrivals, run[LATE_S]):
        yield LATE_RANK.warn(text, noticed_by=others, evidence={"starved": starved}, **run.job.where(rank))


summarize = partial(judge_collective.summarize, operation="all_reduce")
