"""Times the steps of a training, alone or under a strategy, and measures the memory that a strategy takes."""

import contextlib
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from preflight.train_smoke.speed import trace
from preflight.train_smoke.speed.step_clock import StepClock, StepTimes
from preflight.train_smoke.speed.timed_task import TimedTask
from preflight.train_smoke.speed.trace import Event, Exposed
from preflight.train_smoke.strategies.ddp import UnderDdp
from preflight.train_smoke.strategies.training import variants_of
from preflight.train_smoke.trainer.memory import Memory, PeakWatch
from preflight.train_smoke.trainer.names import PHASES, WAIT
from preflight.train_smoke.trainer.wrapped import StrategySetting, Wrapped

RATE = 1e-4
Wrap = Callable[[nn.Module, StrategySetting], Wrapped]
"""How a strategy wraps a plain model."""


def wrap_of(name: str) -> Wrap:
    """The wrapping function of "ddp/plain" or "fsdp2/keep"."""
    strategy, _, variant = name.partition("/")
    if strategy == "ddp":
        return lambda plain, setting: UnderDdp(plain, setting, bucket_cap_mb=None)  # torch's own size
    return variants_of(strategy)[variant].wrap


def flops(task: TimedTask) -> int:
    """The FLOPs of matrix products and attention in forward and backward of a step, by torch's own counter, without
    what activation checkpointing recomputes."""
    model, batch = task.new(), next(task.batches())
    with FlopCounterMode(display=False) as counter, _precision(task):
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())


class TimedSteps(TypedDict):
    """Some steps of one rank, in seconds."""

    steps: list[float]
    own: list[float]
    """The rank's own time per step, without waiting for other ranks or for a core."""
    starved: list[float]
    """Per step, how long the rank waited for a core while it computed."""
    each: dict[str, list[float]]
    """Per phase and step: its own ones without waiting for a core, and the wait for other ranks."""
    begun: list[int]
    """The steps in which the loader began anew, and its workers with it."""
    phases: dict[str, float]
    """The median of each phase."""
    core_wait: dict[str, float]
    """The part of these in which the rank waited for a core."""
    first_collective: float | None
    """From the start of backward until DDP's first bucket of gradients was sent, by DDP's own logger."""


class TimedTraining:
    """A model under a strategy whose steps are timed."""

    def __init__(self, task: TimedTask, wrap: Wrap | None, setting: StrategySetting | None) -> None:
        """Trains alone if `wrap` is None."""
        self.task, self.clock = task, StepClock(task.device)
        self._probe = PeakWatch(task.device)
        plain = task.new()
        self.wrapped = wrap(plain, setting) if wrap and setting else Wrapped(plain, plain)
        self._ddp: Any = self.wrapped.module if isinstance(self.wrapped, UnderDdp) else None
        if self._ddp is not None:
            self.clock.watch(self._ddp, plain)
            self._ddp._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]
        self._optimizer = torch.optim.AdamW(self.wrapped.parameters(), lr=RATE)
        self._batches = task.batches()
        self._begun: list[bool] = []
        """Per step, whether the loader began anew."""
        self._loss: Tensor | None = None

    def warm_up(self, steps: int) -> list[float]:
        """Returns the seconds of each step. The peak of memory is measured here: gradients and optimizer state exist
        from the second step on."""
        with self._probe.on():
            self._run(steps)
        return [times.whole for times in self.clock.read()]

    def run(self, steps: int) -> TimedSteps:
        self._run(steps)
        begun = [number for number, anew in enumerate(self._begun[-steps:]) if anew]
        return series(self.clock.read(), begun, self._first_collective())

    def _run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        clock = self.clock
        clock.phase("data")
        batch = self._batch()
        clock.phase("forward")
        self._optimizer.zero_grad()
        with _precision(self.task):
            loss = self.task.loss(self.wrapped.module, batch)
        self._loss = loss.detach()
        clock.phase("backward")
        loss.backward()  # type: ignore[no-untyped-call]
        clock.end_of_backward()
        clock.phase("optimizer")
        self._optimizer.step()
        clock.end()

    def _batch(self) -> Any:
        """The next one, of the next epoch where this one is over."""
        batch = next(self._batches, None)
        self._begun.append(batch is None)
        if batch is None:
            self._batches = self.task.batches()
            batch = next(self._batches, None)
        if batch is None:
            raise ValueError("the loader gives no further batch: return an iterable that can be read again")
        return batch

    def profiled(self, folder: str) -> tuple[Exposed, list[Event]]:
        """`folder`: as in `trace.traced`."""
        found, events = trace.traced(self.step, folder)
        found["step"] = statistics.fmean(times.whole for times in self.clock.read())
        return found, events

    def loss(self) -> float | None:
        """This rank's loss in the last step; None if there was no step, or it is not finite."""
        value = math.nan if self._loss is None else float(self._loss)
        return value if math.isfinite(value) else None

    def memory(self) -> Memory:
        return self._probe.memory(self.wrapped.held(self._optimizer))

    def kept(self) -> tuple[int, int, int]:
        """Bytes of parameters, gradients and optimizer state on this rank, after a step."""
        parameters = [*self.wrapped.module.parameters()]
        gradients = [parameter.grad for parameter in parameters]
        states = [value for state in self._optimizer.state.values() for value in state.values()]
        return local_size(parameters), local_size(gradients), local_size(states)

    def _first_collective(self) -> float | None:
        """The value for the last step. torch's logger counts nanoseconds; -1 or nothing if it does not know."""
        told = self._ddp._get_ddp_logging_data() if self._ddp is not None else {}
        whole, overlap = (told.get(f"backward_compute_{name}time", 0) for name in ("", "comm_overlap_"))
        return (whole - overlap) / 1e9 if whole > 0 and overlap >= 0 else None


def local_size(values: Iterable[Any]) -> int:
    """Bytes of the tensors among these; of a DTensor only what this rank keeps."""
    local = (value.to_local() if hasattr(value, "to_local") else value for value in values)
    return sum(tensor.numel() * tensor.element_size() for tensor in local if isinstance(tensor, Tensor))


def _precision(task: TimedTask) -> AbstractContextManager[object]:
    return torch.autocast(task.device.type, torch.bfloat16) if task.autocast else contextlib.nullcontext()


def series(steps: Sequence[StepTimes], begun: list[int], first_collective: float | None) -> TimedSteps:
    return TimedSteps(
        steps=[times.whole for times in steps],
        own=[times.own for times in steps],
        starved=[_short(sum(times.core_wait[phase] for phase in PHASES if phase != WAIT)) for times in steps],
        each={phase: [_short(_net(times, phase)) for times in steps] for phase in PHASES},
        begun=begun,
        phases={phase: statistics.median(times.wall[phase] for times in steps) for phase in PHASES},
        core_wait={phase: statistics.median(times.core_wait[phase] for times in steps) for phase in PHASES},
        first_collective=first_collective,
    )


def _net(times: StepTimes, phase: str) -> float:
    return times.wall[phase] - (0.0 if phase == WAIT else times.core_wait[phase])


def _short(seconds: float) -> float:
    """To the microsecond: there are many."""
    return round(seconds, 6)
