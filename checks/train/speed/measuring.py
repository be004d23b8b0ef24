"""Measures speed, all ranks together: alone first, then among others."""

import base64
import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from preflight.check import Context, Skip, ranges, read, words
from preflight.checks.train.shared import refusals
from preflight.checks.train.shared.agreement import all_failed
from preflight.checks.train.shared.gathering import gathered
from preflight.checks.train.speed import causes, fewer_cores, node_links, stalls, stragglers
from preflight.checks.train.speed.facts import Facts, StrategySpeed
from preflight.sdk import cgroups

if TYPE_CHECKING:
    from preflight.train_smoke.speed.timed_task import TimedTask
    from preflight.train_smoke.speed.trace import Event
    from preflight.train_smoke.speed.training import TimedSteps, TimedTraining

STEPS, FEWEST_STEPS = 12, 5
SERIES_S = 1.0
"""For STEPS steps: where they take longer there are fewer."""
SLOW_S = 0.3
"""A step that takes so long needs no more than one to warm up."""
TIME = 0.6
"""Of the check's time: what would take longer is not begun."""
ROUNDS = 3
"""In which a straggler must be seen."""
TRACE = "trace.json.gz"
KERNEL = "/proc/sys/kernel/random/boot_id"


@contextlib.contextmanager
def one_thread(ctx: Context) -> Iterator[None]:
    """On a CPU: where ranks share cores, threads wait for each other, and their waits for a core are not seen."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1 if ctx.device.type == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class TimingRequest:
    """What is to be timed: the same on all ranks."""

    names: Sequence[str]
    """Of strategies."""
    late: float
    """See stragglers.LATE."""
    trace_ranks: Sequence[int] | None
    """Whose traces are kept; None: the slowest's and the median's."""


class StepCounts(NamedTuple):
    """How many steps are taken."""

    warm_up: int
    steps: int

    def fewer(self) -> "StepCounts":
        """Alone, and under a strategy whose phases are not told: only the median of the steps counts."""
        return StepCounts(self.warm_up, FEWEST_STEPS)


def measure(ctx: Context, task: "TimedTask", wanted: TimingRequest) -> Facts:
    """All members together."""
    from preflight.train_smoke.speed import trace
    from preflight.train_smoke.speed.training import flops

    begin = time.monotonic()
    task, pace = _tried(ctx, task)
    node = [rank for rank in ctx.job.node_of(ctx.rank).ranks if rank in ctx.members]
    is_first = ctx.rank == node[0]
    solo = _alone(ctx, task, pace.fewer(), "alone on its node") if is_first else None
    gathered(ctx, [0.0])  # the others wait for those
    facts = Facts(
        samples=task.samples, tokens=task.tokens, flops=flops(task), device=_name(ctx), autocast=task.autocast,
        cores=ranges.to_text(os.sched_getaffinity(0)), quota=cgroups.cpu_quota(), solo=solo,
        alone=_alone(ctx, task, pace.fewer(), "alone, beside the others"), node=None, strategies={},
        clock_mhz=None, kernel=read(KERNEL)[:8], links=(), not_timed={}, fit=None, attached={},
    )  # fmt: skip
    facts["node"] = _on_node(ctx, task, wanted.names[0], pace, node)
    for name in wanted.names:
        some = pace if name == wanted.names[0] else pace.fewer()
        if name != wanted.names[0] and not _has_time(ctx, begin):
            facts["not_timed"][name] = "there was no time for it"
            continue
        try:
            facts["strategies"][name], events = _under(ctx, task, name, some, wanted.late)
        except Exception as error:
            if not refusals.is_refusal(error) or not all_failed(ctx, ctx.store(), name):
                raise
            ctx.page.leave()
            facts["not_timed"][name] = f"it does not take the model ({type(error).__name__}: {error})"[:300]
            continue
        if name == wanted.names[0]:
            facts["clock_mhz"] = causes.core_mhz()
        if name == wanted.names[0] and name.startswith("ddp"):
            its = facts["strategies"][name]
            facts["links"] = node_links.measure(ctx, its["exposed"], its["gradients"])
        if name == wanted.names[0] and ctx.rank in _chosen(ctx, wanted, facts["strategies"][name]["rounds"][-1]):
            facts["attached"][TRACE] = base64.b64encode(trace.packed(events)).decode()
    return facts


def _chosen(ctx: Context, wanted: TimingRequest, last: "TimedSteps") -> set[int]:
    """The slowest rank and the median one, by what they compute, where none was named."""
    if wanted.trace_ranks is not None:
        return set(wanted.trace_ranks)
    rows = gathered(ctx, [statistics.median(last["own"])])
    ordered = [rank for _, rank in sorted(zip(rows, ctx.members, strict=True))]
    return {ordered[-1], ordered[(len(ordered) - 1) // 2]}


def _has_time(ctx: Context, begin: float) -> bool:
    """Whether all ranks have."""
    slowest = max(row[0] for row in gathered(ctx, [time.monotonic() - begin]))
    return slowest < TIME * ctx.deadline_s


def _on_node(ctx: Context, task: "TimedTask", name: str, pace: StepCounts, node: list[int]) -> "TimedSteps | None":
    """All members together, each with those of its node; where that is neither all nor one."""
    if not 1 < max(len(set(own.ranks) & set(ctx.members)) for own in ctx.job.nodes) < len(ctx.members):
        return None
    from preflight.train_smoke.speed.training import TimedTraining, wrap_of
    from preflight.train_smoke.trainer.wrapped import StrategySetting

    setting = StrategySetting(ctx.part(tuple(node)), ctx.device, len(node))
    with ctx.collective(name, "among the ranks of a node"):
        training = TimedTraining(task, wrap_of(name), setting)
        training.warm_up(pace.warm_up)
        return training.run(pace.steps)


def _name(ctx: Context) -> str:
    import torch

    return torch.cuda.get_device_name(ctx.device) if ctx.device.type == "cuda" else "CPU"


def _alone(ctx: Context, task: "TimedTask", pace: StepCounts, how: str) -> "TimedSteps":
    from preflight.train_smoke.speed.training import TimedTraining

    ctx.doing(f"training {how}")
    training = TimedTraining(task, None, None)
    training.warm_up(pace.warm_up)
    return training.run(pace.steps)


def _tried(ctx: Context, task: "TimedTask") -> "tuple[TimedTask, StepCounts]":
    """The task without parameters that get no gradient on some rank, for which DDP would wait; and how many steps there
    is time for, by the slowest rank's own. Raises Skip on all ranks where there is none."""
    from preflight.train_smoke.speed.training import TimedTraining

    ctx.doing("training alone for the first steps")
    training = TimedTraining(task, None, None)
    own = min(training.warm_up(2))
    names = [name for name, parameter in training.wrapped.named() if parameter.requires_grad]
    has = [float(parameter.grad is not None) for _, parameter in training.wrapped.named() if parameter.requires_grad]
    rows = gathered(ctx, [own, *has])
    on_all = [all(everywhere) for everywhere in zip(*(row[1:] for row in rows), strict=True)]
    unused = {name for name, used in zip(names, on_all, strict=True) if not used}
    return (task.without(unused) if unused else task), _pace(max(row[0] for row in rows), ctx.deadline_s)


def _pace(step_s: float, deadline_s: float) -> StepCounts:
    """Raises Skip where alone and the first strategy would take too long."""
    pace = StepCounts(1 if step_s > SLOW_S else 3, max(FEWEST_STEPS, min(STEPS, int(SERIES_S / step_s))))
    if (needed := 4 * step_s * (pace.warm_up + pace.steps)) > TIME * deadline_s:
        raise Skip(
            f"a step takes {words.duration(step_s)}, and all would take {words.duration(needed)} of the check's "
            f"{words.duration(deadline_s)}: return fewer rows, or give --deadline"
        )
    return pace


def _under(
    ctx: Context, task: "TimedTask", name: str, pace: StepCounts, late: float
) -> "tuple[StrategySpeed, list[Event]]":
    from preflight.train_smoke.speed.training import TimedTraining, wrap_of
    from preflight.train_smoke.trainer.wrapped import StrategySetting

    ctx.doing(f"{name}: wrapping the model")
    setting = StrategySetting(ctx.process_group(), ctx.device, len(ctx.members), ctx.part_of_group)
    with ctx.collective(name, "wrapping the model"):
        training = TimedTraining(task, wrap_of(name), setting)
    with ctx.collective(name, f"the first {pace.warm_up} steps"):
        training.warm_up(pace.warm_up)
    loss = training.loss()
    rounds, throttled = _rounds(ctx, training, name, pace.steps, late)
    with ctx.collective(name, "steps under the profiler"):
        exposed, events = training.profiled(ctx.run_folder)
    return StrategySpeed(
        rounds=rounds,
        loss=loss,
        gradients=training.kept()[1],
        memory=training.memory(),
        exposed=exposed,
        throttled=throttled,
    ), events


def _rounds(
    ctx: Context, training: "TimedTraining", name: str, steps: int, late: float
) -> "tuple[list[TimedSteps], float]":
    """Again where a rank looks late, on all ranks alike. With how much this one was throttled, at least."""
    rounds: list[TimedSteps] = []
    shares: list[float] = []
    while not rounds or (len(rounds) < ROUNDS and _someone_is_late(ctx, rounds[-1], shares[-1], late)):
        before = cgroups.cpu_periods()
        with ctx.collective(name, f"{steps} steps"):
            rounds.append(training.run(steps))
        shares.append(cgroups.throttled(before, cgroups.cpu_periods()))
    return rounds, min(shares)


def _someone_is_late(ctx: Context, last: "TimedSteps", throttled: float, late: float) -> bool:
    pace = fewer_cores.pace([last])
    rows = gathered(ctx, [*pace, stragglers.core_share(last), throttled, *last["own"], *last["starved"]])
    paces = [fewer_cores.StepPace(*row[:4]) for row in rows]
    if len(ctx.job.nodes) > 1 and fewer_cores.is_suspicious(paces, late):
        return True
    if any(row[5] >= causes.THROTTLED for row in rows):
        return True
    steps = len(last["own"])
    own, starved = [row[6 : 6 + steps] for row in rows], [row[6 + steps :] for row in rows]
    return stalls.is_suspicious(own, starved) or stragglers.is_suspicious([row[4] for row in rows], own, starved, late)
