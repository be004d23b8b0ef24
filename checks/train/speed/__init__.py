"""Training is as fast as the cores, GPUs and links that are there allow, and no rank holds the others up.

Every rank trains a causal language model of some milliseconds a step: alone on its node, alone beside the others, and
under DDP and FSDP2. Told are samples and tokens per second, how much of that scaling keeps, step times over ranks, the
time of each phase of a step (fetching the batch, forward, backward until the last gradient, waiting for other ranks,
the optimizer), how much communication no computation covers, and what each strategy takes of memory.

A rank that computes late, in each step or now and then, is told from those that wait for it. Ranks that share few
CPU cores may be no faster than one: that is shown, and is a finding only where they are far slower. Formulas and
sources: docs/speed.md.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from preflight.check import (
    After,
    Code,
    Context,
    Finding,
    Level,
    Plan,
    Run,
    Scope,
    UserCode,
    count,
    option,
    plots,
    ranges,
)
from preflight.checks.train.shared import model_source
from preflight.checks.train.speed import (
    causes,
    data_bound,
    fewer_cores,
    given,
    measuring,
    memory_fit,
    plotted,
    slow_links,
    slower,
    stalls,
    stragglers,
    table,
    throttled,
)
from preflight.checks.train.speed.facts import AllFacts, Facts
from preflight.sdk import effective_batch
from preflight.sdk.effective_batch import learning_rate
from preflight.train_smoke.trainer.names import TIMED

if TYPE_CHECKING:
    from preflight.train_smoke.speed.training import TimedSteps

    Rounds = dict[int, list[TimedSteps]]
    """Of each rank, under the strategy whose ranks are told from each other."""

NOT_TIMED = Code(
    "A strategy was not timed.",
    fix="See the message; for want of time set --deadline, or fewer of train.speed.strategies.",
)
PARTS = (stragglers, stalls, fewer_cores, slow_links, slower, data_bound, memory_fit)
MODEL = option(model_source.parse, None, "your model, as for train.model; unset: a causal language model")
PLAN = Plan(
    Scope.WORLD,
    lambda asked: Level.STANDARD if asked.backend == "nccl" else Level.FULL,
    deadline_s=lambda job: 180.0 + job.world_size / 64,
    estimate_s=8.0,
    after={
        **dict.fromkeys(("comm.init", "train.alone"), After.NEEDS),
        **dict.fromkeys(causes.GPU, After.USES),
        "train.model": After.UNLESS_FAILED,
    },
    fresh=lambda asked: asked.sets(MODEL),
    facts_version=3,
)
LOADER = option(UserCode.parse, None, "returns an iterable of this rank's batches for its loss, as MODULE:FUNCTION")


def _trace_ranks(text: str) -> tuple[int, ...]:
    """Raises ValueError."""
    return ranges.from_text(text)


LR = option(learning_rate, None, "your learning rate, to say what scaling makes of it")
BASE_BATCH = option(count, None, "the global batch for which it was found; unset: one rank's")
ACCUMULATE = option(count, 1, "batches of a rank that make an optimizer step, for the effective batch")
TRACE_RANKS = option(_trace_ranks, None, "whose traces --report keeps, such as 0,7; unset: the slowest and the median")


def _strategies(text: str) -> tuple[str, ...]:
    """Raises ValueError."""
    names = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    for name in names or ("",):
        if name not in TIMED:
            raise ValueError(f"{name!r} is no strategy that is timed; known are {', '.join(TIMED)}")
    return names


STRATEGIES = option(_strategies, TIMED, "which, by commas; the first one's ranks are told from each other")


def measure(ctx: Context) -> Facts:
    ctx.doing("importing torch._dynamo")
    from preflight.train_smoke.speed import timed_task
    from preflight.train_smoke.trainer.task import import_dynamo

    import_dynamo()
    code, names, late = ctx[MODEL], ctx[STRATEGIES], stragglers.least_share(ctx[stragglers.LATE], ctx.job)
    wanted = measuring.TimingRequest(names, late, ctx[TRACE_RANKS])
    with measuring.one_thread(ctx):
        task = given.task(ctx, code, ctx[LOADER]) if code else timed_task.built_in(ctx.rank, ctx.device)
        with code.blamed() if code else contextlib.nullcontext():
            facts = measuring.measure(ctx, task, wanted)
            facts["fit"] = memory_fit.measure(ctx, task) if ctx[memory_fit.BATCH] and code else None
            return facts


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    name, timed = run[STRATEGIES][0], _rounds(facts, run)
    held_up = [*_held_up(timed, facts, run, name)]
    yield from held_up
    if not held_up and timed:  # what holds ranks up explains these, too
        yield from slower.judge(facts, run, name)
    yield from memory_fit.judge(_fits(facts, run), run)
    for strategy, why in facts[min(facts)]["not_timed"].items():
        yield NOT_TIMED.not_measured(f"{strategy} was not timed: {why}")


def _held_up(timed: "Rounds", facts: AllFacts, run: Run, name: str) -> Iterator[Finding]:
    """What the ranks wait for."""
    behind = [*fewer_cores.behind(timed, facts, run)]
    few = _few(behind)
    yield from fewer_cores.judge(behind, [rank for rank in timed if rank not in few], name)
    yield from stragglers.judge(timed, facts, run, name, few)
    stopped = _stopped(timed, facts, run, few)
    yield from throttled.judge(iter(stopped), facts, run, name)
    yield from stalls.judge(_stalled(timed, run, few, stopped), [*timed], run, name)
    yield from slow_links.judge(facts, run, name)
    yield from data_bound.judge(timed, name)


def _rounds(facts: Mapping[int, Facts], run: Run) -> "Rounds":
    """Of the strategy whose ranks are told from each other."""
    name = run[STRATEGIES][0]
    return {rank: own["strategies"][name]["rounds"] for rank, own in facts.items() if name in own["strategies"]}


def _few(behind: Sequence[fewer_cores.Behind]) -> set[int]:
    return {rank for late in behind for rank in late.ranks}


def _late(timed: "Rounds", run: Run) -> set[int]:
    return {its.rank for its in stragglers.late(timed, stragglers.least_share(run[stragglers.LATE], run.job))}


def _stopped(timed: "Rounds", facts: AllFacts, run: Run, few: set[int]) -> list[throttled.ThrottledRank]:
    """Of whom nothing else is told."""
    return [*throttled.stopped(timed, facts, run, run[STRATEGIES][0], few | _late(timed, run))]


def _stalled(
    timed: "Rounds", run: Run, few: set[int], stopped: Sequence[throttled.ThrottledRank]
) -> list[stalls.Stalls]:
    """Of whom nothing else is told."""
    return [*stalls.found(timed, few | _late(timed, run) | {its.rank for its in stopped})]


def _fits(facts: Mapping[int, Facts], run: Run) -> dict[int, memory_fit.RankFit]:
    return memory_fit.of_ranks({rank: fit for rank, own in facts.items() if (fit := own["fit"])}, run.job)


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    """With the effective batch, where it is the user's or the user has given a learning rate."""
    told = table.summarize(facts, run)
    if not run[MODEL] and run[LR] is None:
        return told
    samples = [own["samples"] for own in facts.values()]
    batch = effective_batch.in_words(samples, len(samples), run[ACCUMULATE], run[BASE_BATCH], run[LR])
    return f"{told}; {batch}"


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    timed = _rounds(facts, run)
    few = _few([*fewer_cores.behind(timed, facts, run)])
    stopped = _stopped(timed, facts, run, few)
    stalled = _stalled(timed, run, few, stopped)
    odd = {*few, *_late(timed, run), *(its.rank for its in stopped), *(its.rank for its in stalled)}
    fits, rows = _fits(facts, run), run[memory_fit.BATCH]
    yield from plotted.plot(facts, run, odd, memory_fit.without_room(fits, rows) if rows else {})
    if fits and rows:
        yield memory_fit.table(fits, rows)
