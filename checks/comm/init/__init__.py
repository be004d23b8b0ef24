"""Process group: all ranks join it, and their first collective gives the right sum.

Times `torch.distributed.init_process_group` and the first all-reduce (in which the backend connects) on every
rank. All wait for the last, so the rank that waited least joined last. The sum is computed twice (`confirmed` in the
evidence); being wrong once is already a failure. If NCCL fails, the failed ranks' logs say why (failed_init).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from preflight.check import Action, After, Code, Context, Finding, Job, Level, Plan, Run, Scope, option
from preflight.checks.comm.init import failed_init, init_causes, unreachable
from preflight.checks.comm.shared.judge_collective import few
from preflight.checks.comm.shared.wrong_again import INTERMITTENT, ONCE

ALONE_S, TOGETHER_S = 40.0, 60.0
"""On one node, and on several, where NCCL tries an address for a minute. A sound node takes some seconds, and 15 to 20
where it is cold: its GPUs have been started before, by gpu.compute or with the tensor."""
ENOUGH = 0.7
"""A run of 120 s leaves two nodes two thirds of their minute."""


def _deadline(job: Job) -> float:
    """A second more per 64 ranks: NCCL's bootstrap takes longer in larger worlds."""
    return (TOGETHER_S if len(job.nodes) > 1 else ALONE_S) + job.world_size / 64


PARTS = (failed_init, init_causes, unreachable)
PLAN = Plan(
    Scope.WORLD, Level.STANDARD, deadline_s=_deadline, estimate_s=3.0, fresh=True, judges_failures=True, enough=ENOUGH,
    after={"env.launch": After.NEEDS | After.READS, "net.mesh": After.UNLESS_FAILED},
)  # fmt: skip
"""Fresh processes: a CUDA error persists in its process, and memory that gpu.compute held is freed."""

SLOW_S = option(float, 30.0, "warn if the last rank joined this many seconds after the first")

LATE_RANK = Code(
    "A rank joined much later than the others.",
    fix="See what its node does: load, file system, driver start-up (persistence mode).",
    action=Action.RESTART_JOB,
    see=("node.storage", "node.limits", "node.leftovers", "gpu.health"),
)
WRONG_SUM = Code(
    "The first all-reduce gave a wrong sum.",
    fix="Do not train here. Run --only comm again: if it is the same rank, exclude its node.",
    action=Action.REPLACE,
    see=("comm", "gpu.compute", "gpu.health", "train.alone"),
)


class Facts(TypedDict):
    init_s: float
    """Seconds in init_process_group."""
    first_s: float
    """Seconds in the first all-reduce."""
    total: float
    """The sum of 1 to the number of members that this rank got."""
    again: NotRequired[float]
    """The same, computed again."""


def measure(ctx: Context) -> Facts:
    import torch
    from torch import distributed as dist

    # First, since it starts the driver: a rank with a slow driver joins late. In 32 bits the sum is not exact from
    # 5,793 ranks on (2^24).
    value = torch.tensor([ctx.group_rank + 1.0], dtype=torch.float64, device=ctx.device)
    start = time.perf_counter()
    group = ctx.process_group()
    met = time.perf_counter()
    with ctx.collective("all_reduce", "1 element"):
        dist.all_reduce(value, group=group)
        total = value.item()
    first_s = time.perf_counter() - met
    value.fill_(ctx.group_rank + 1.0)
    with ctx.collective("all_reduce", "1 element, once more"):
        dist.all_reduce(value, group=group)
        again = value.item()
    return {"init_s": met - start, "first_s": first_s, "total": total, "again": again}


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from failed_init.findings(run)
    if not facts:
        return
    if len(facts) == len(run.members):
        yield from _wrong_sums(facts, run)
    rank, late_s = _last(facts)
    if late_s >= run[SLOW_S]:
        others = tuple(other for other in facts if other != rank)
        text = f"joined {late_s:.1f} s after the first rank, expected less than {run[SLOW_S]:g} s"
        yield LATE_RANK.warn(text, noticed_by=others, **run.job.where(rank))


def _wrong_sums(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    expected = len(facts) * (len(facts) + 1) / 2
    wrong = {
        rank: off
        for rank, reading in facts.items()
        if (off := [total for total in (reading["total"], reading.get("again", expected)) if total != expected])
    }
    if few(wrong, len(facts)):
        for rank, totals in wrong.items():
            text = f"the first all-reduce gave {totals[0]:g}, expected {expected:g}"
            yield _confirmed(text, totals, facts[rank], **run.job.where(rank))
    elif wrong:
        rank, totals = max(wrong.items(), key=lambda pair: len(pair[1]))
        text = f"the first all-reduce gave {totals[0]:g} on {len(wrong)} of {len(facts)} ranks, expected {expected:g}"
        text += ": one of them sends a wrong value"
        yield _confirmed(text, totals, facts[rank], noticed_by=tuple(wrong))


def _confirmed(text: str, totals: Sequence[float], reading: Facts, **where: Any) -> Finding:
    """`totals`: this reading's wrong sums."""
    looks = 2 if "again" in reading else 1
    why = ONCE if looks == 1 else INTERMITTENT if len(totals) == 1 else ""
    proof = {"confirmed": f"{len(totals)} of {looks}"}
    return WRONG_SUM.fail(f"{text}; {why}" if why else text, evidence=proof, **where)


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    slowest = max(reading["init_s"] + reading["first_s"] for reading in facts.values())
    if len(facts) == 1:
        return f"1 rank over {run.job.backend} in {slowest:.2f} s"
    rank, late_s = _last(facts)
    met = f"{len(facts)} ranks over {run.job.backend} in {slowest:.2f} s"
    return f"{met}; rank {rank} joined last, {late_s:.2f} s after the first"


def _last(facts: Mapping[int, Facts]) -> tuple[int, float]:
    """(the rank that waited least, how many seconds less than the rank that waited most)."""
    waits = {rank: reading["init_s"] + reading["first_s"] for rank, reading in facts.items()}
    last = min(waits, key=lambda rank: waits[rank])
    return last, max(waits.values()) - waits[last]
