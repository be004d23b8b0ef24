"""All-reduce: every element is right on every rank, how fast it is, and whether a rank computes late.

`all_reduce`, as DDP sums gradients. Its bus factor is 2(n-1)/n (nccl-tests, doc/PERFORMANCE.md). payload_sum.py
has what is sent, and how a wrong element tells its source. A wrong result is recomputed from the same data
(`confirmed` in the evidence); being wrong once is already a failure. If the result does not reveal the source, smaller
groups sum it. Then each rank computes for some milliseconds and all reduce 1 KiB, as in training steps, to tell a rank
that computes slowly from a slow link (straggler.py). A rank is blamed only if it is late again in a repeat.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NotRequired

from preflight.check import Action, Code, Context, Finding, Level, Run, words
from preflight.checks.comm.all_reduce import straggler
from preflight.checks.comm.all_reduce.straggler import LATE_S
from preflight.checks.comm.shared import judge_collective, plotted, readings, sweep
from preflight.checks.comm.shared.confirmation import NO_TIME

PARTS = (straggler, sweep, judge_collective)
PLAN = sweep.plan(Level.STANDARD, facts_version=2)

LATE_RANK = Code(
    "A rank computes much longer than the others, which wait for it.",
    fix="See what its node does (top, nvidia-smi): other processes, too few CPU cores, a throttled GPU.",
    action=Action.NONE,
    see=("node.limits", "node.leftovers", "node.kernel", "gpu.health", "gpu.pcie", "gpu.released", "gpu.compute"),
)


LATE_ONCE = Code(
    "A rank computed much longer than the others, but not when all repeated it.",
    fix="Nothing, unless it recurs. If it does, see what else runs on {host} at times (top).",
    action=Action.NONE,
)


class Facts(readings.Facts, total=False):
    arrival: straggler.Arrival | None
    """None if the network is too slow; absent if the backend lacks a type."""
    again: NotRequired[straggler.Arrival | None]
    """The repeat, if a rank was late; None if there was no time."""


def measure(ctx: Context) -> Facts:
    measured = sweep.run(ctx, operation="all_reduce")
    arrival = straggler.measure(ctx, measured["latency"])
    is_late, again = straggler.measure_again(ctx, arrival) if arrival else (False, None)
    return {**measured, "arrival": arrival, **({"again": again} if is_late else {})}  # type: ignore[typeddict-item]


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from judge_collective.judge(facts, run, operation="all_reduce")
    yield from _late(facts, run)


def _late(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    first = {rank: arrival for rank, reading in facts.items() if (arrival := reading.get("arrival"))}
    again = {rank: arrival for rank, reading in facts.items() if (arrival := reading.get("again"))}
    still = {rank for rank, *_ in straggler.late(again, run[LATE_S])}
    for rank, others, text, starved in straggler.late(first, run[LATE_S]):
        evidence = {"starved": starved, "host": run.job.node_of(rank).node}
        if not again:
            proof = {**evidence, "confirmed": "1 of 1"}
            yield LATE_RANK.warn(f"{text}; {NO_TIME}", noticed_by=others, evidence=proof, **run.job.where(rank))
        elif rank in still:
            proof = {**evidence, "confirmed": "2 of 2"}
            yield LATE_RANK.warn(text, noticed_by=others, evidence=proof, **run.job.where(rank))
        else:
            busy = words.duration(again[rank]["busy_s"]) if rank in again else "less"
            sentence = f"rank {rank} {text}; in the repeat it computes {busy}: it is not blamed"
            yield LATE_ONCE.info(sentence, evidence={**evidence, "confirmed": "1 of 2"})


record = partial(judge_collective.record, operation="all_reduce")
summarize = partial(judge_collective.summarize, operation="all_reduce")
plot = partial(plotted.collective, operation="all_reduce")
