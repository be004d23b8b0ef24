"""Paths: after a finding on NCCL, which of its transports is slow or broken, found by disabling some of them.

A first all-reduce is tried over sockets alone, which says how long it takes here, and then as the job runs it. Where
that hangs, fails or sums wrongly, it is tried without P2P, shared memory, cuMem, NVLS, RDMA and plugins, one at a time.
What helps twice, while the job's own way fails twice, is at fault; within a node its GPUs then meet in pairs.

Where it works, the same all-reduce is timed as the job runs it, without NVLS and NVLink between nodes, without P2P, and
over the network only; then all of it again. NCCL reads its variables once per process, so each runs in a new one, which
may hang. If it is faster both times without a transport, that transport is at fault: NCCL chooses what should be
fastest. There is no variable for NVLink alone: without P2P neither NVLink nor PCIe connects two GPUs. That the network
alone is as fast proves nothing between nodes, where it limits a sound job, too.
"""

import time
from collections.abc import Iterator, Mapping
from typing import TypedDict

from preflight.check import After, Context, Finding, Job, Level, NotApplicable, Plan, Run, Scope, Skip, ranges, words
from preflight.checks.comm.paths import broken, timed
from preflight.checks.comm.paths.broken import BROKEN, NO_WAY
from preflight.checks.comm.paths.search import LEAST_S, Found, PairTrial, Search
from preflight.checks.comm.paths.timed import SIZE, Timing
from preflight.checks.comm.paths.trial import Trial
from preflight.checks.comm.paths.ways import AS_IT_IS, FIXES
from preflight.checks.comm.shared import localize
from preflight.checks.comm.shared.readings import MIB

PARTS = (broken, timed)
SHARES, FOR_ALL = 5, 4
"""Of the check's deadline a process has one share at most, and all of them together have four: where every way hangs
they do not take eight."""


def _deadline(job: Job) -> float:
    """30 s for each: a process makes its CUDA context, and NCCL starts. Other backends have nothing to try, which must
    not be an error if the run has no 40 s left."""
    return 5.0 if job.backend != "nccl" else SHARES * (30.0 + job.world_size / 64)


PLAN = Plan(
    Scope.WORLD, Level.STANDARD, deadline_s=_deadline, estimate_s=40.0, fresh=True, facts_version=2,
    after={
        "env.launch": After.NEEDS, "comm.init": After.WHEN_BAD, "comm.transports": After.WHEN_BAD,
        **localize.AFTER_SYMPTOMS, "net.mesh": After.WHEN_BAD | After.UNLESS_FAILED,
    },
)  # fmt: skip


class Facts(TypedDict):
    bytes: int
    timings: list[Timing]
    """Empty where a first all-reduce has failed."""
    trials: list[Trial]
    pairs: list[PairTrial]
    patience_s: float
    """For a process of a trial."""


def measure(ctx: Context) -> Facts:
    if ctx.job.backend != "nccl":
        raise NotApplicable(f"the backend is {ctx.job.backend}, and only NCCL has transports to disable")
    if len(ctx.members) < 2:
        raise NotApplicable("one rank: there is no way to another")
    patience_s = ctx.deadline_s / SHARES
    if patience_s < LEAST_S:
        raise Skip(f"the run has left {patience_s:.1f} s for each process, expected {LEAST_S:g} s or more")
    end = time.monotonic() + FOR_ALL * patience_s
    search = Search(ctx, patience_s, end)
    if search.works():
        found, timings = Found(trials=search.trials, pairs=[]), timed.measured(ctx, patience_s, end)
    else:
        found, timings = search.run(), []
    return {"bytes": SIZE, "timings": timings, "patience_s": round(patience_s, 1), **found}


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    first = next(iter(facts.values()))
    if not first["timings"]:
        found: Found = {"trials": first["trials"], "pairs": first["pairs"]}
        yield from broken.findings(found, first["patience_s"], run)
        return
    timings = {rank: reading["timings"] for rank, reading in facts.items()}
    if not timed.seconds([*timings.values()])[AS_IT_IS]:
        yield _fails_at_size(timings)
    elif why := timed.why_failed(timings, at_first_too_late=False):
        text = f"an all-reduce fails {AS_IT_IS} once ({why}), and works once; expected it to work"
        yield BROKEN.fail(text, fix=NO_WAY)
    else:
        yield from timed.findings([*timings.values()])


def _fails_at_size(timings: Mapping[int, list[Timing]]) -> Finding:
    """A large all-reduce has failed twice, or once where there was no time; small ones have worked."""
    text = f"an all-reduce fails {AS_IT_IS} ({timed.why_failed(timings)})"
    times = timed.seconds([*timings.values()])
    works = next((variant for variant, values in times.items() if len(values) > 1), None)
    if works is None:
        text += ", and no variant with disabled transports worked twice"
        return BROKEN.fail(f"{text}; expected it to work", fix=NO_WAY)
    text += f", and takes {words.duration(max(times[works]))} {works}"
    return BROKEN.fail(f"{text}; expected it to work", fix=FIXES[works])


def summarize(facts: Mapping[int, Facts], run: Run) -> str:  # noqa: ARG001
    first = next(iter(facts.values()))
    if not first["timings"]:
        return f"{ranges.count(len(first['trials']), 'trial')} of a first all-reduce"
    seconds = timed.seconds([reading["timings"] for reading in facts.values()])
    shown = [
        f"{words.duration(min(times))} {variant}" if times else f"none {variant}" for variant, times in seconds.items()
    ]
    return f"an all-reduce of {first['bytes'] // MIB} MiB: {', '.join(shown)}"
