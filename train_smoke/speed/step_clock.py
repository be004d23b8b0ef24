"""Where the time of a training step goes: its phases, by the monotonic clock, on a GPU by events in its stream.

A rank that computes late is told from one that waits: under DDP the gradients are exchanged while backward makes them,
and no rank waits for another before its last one is made and its last bucket is on its way. What hooks on gradients and
DDP's communication hook take until then is the rank's own.
"""

import itertools
import time
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd import Variable

from preflight.sdk.files import core_wait_s
from preflight.train_smoke.trainer.names import PHASES, WAIT


class Mark(NamedTuple):
    phase: str
    """The phase that begins here; "" at the end of a step."""
    at: Any
    """Seconds, or an event of the GPU."""
    core_wait_s: float
    """How long the thread that drives the step has waited for a core until here."""


class StepClock:
    """The clock of one rank. Call `phase` at the start of each phase and `end` at the end of a step."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._steps: list[list[Mark]] = []
        self._marks: list[Mark] = []
        self._gradients, self._usual = 0, 0
        """Gradients seen in this step's backward, and in the previous one."""
        self._last_gradient: Mark | None = None

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def phase(self, name: str) -> None:
        """Starts a phase and ends the previous one."""
        self._marks.append(Mark(name, self._now(), self._core_wait()))

    def _core_wait(self) -> float:
        return 0.0 if self._cuda else core_wait_s()

    def watch(self, module: nn.Module, plain: nn.Module) -> None:
        """Watches a model under DDP: what DDP does before the model's own forward, such as broadcasting buffers, counts
        as waiting, and so does everything after the last gradient."""
        module.register_forward_pre_hook(lambda *_: self.phase(WAIT))
        plain.register_forward_pre_hook(lambda *_: self.phase("forward"))
        for parameter in plain.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._gradient)  # type: ignore[no-untyped-call]

    def _gradient(self, _gradient: object) -> None:
        """Reads the wait for a core only at the last gradient: reading takes as long as some small operations."""
        self._gradients += 1
        is_last = self._gradients == self._usual
        self._last_gradient = Mark(WAIT, self._now(), self._core_wait() if is_last else 0.0)
        if is_last:  # the hooks of the last gradient, DDP's among them, come after this one
            Variable._execution_engine.queue_callback(self._entered)

    def _entered(self) -> None:
        """The rank's own part of backward is over: this comes before DDP waits for its buckets, since callbacks are
        called in the order in which they were queued (torch/csrc/autograd/engine.cpp, exec_post_processing)."""
        self._last_gradient = Mark(WAIT, self._now(), self._core_wait())

    def end_of_backward(self) -> None:
        if last := self._last_gradient:
            is_usual = self._gradients == self._usual
            self._marks.append(last if is_usual else last._replace(core_wait_s=self._core_wait()))
        self._gradients, self._usual, self._last_gradient = 0, self._gradients, None

    def end(self) -> None:
        self.phase("")
        self._steps.append(self._marks)
        self._marks = []

    def read(self) -> "list[StepTimes]":
        """The times of all steps since the last call."""
        if self._cuda:
            torch.cuda.synchronize()
        steps, self._steps = self._steps, []
        return [self._times(marks) for marks in steps]

    def _times(self, marks: list[Mark]) -> "StepTimes":
        wall, core_wait = dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0.0)
        for mark, after in itertools.pairwise(marks):
            wall[mark.phase] += self._between(mark.at, after.at)
            core_wait[mark.phase] += after.core_wait_s - mark.core_wait_s
        return StepTimes(wall, core_wait, self._between(marks[0].at, marks[-1].at))

    def _between(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1e3 if self._cuda else end - start


class StepTimes(NamedTuple):
    """Seconds."""

    wall: dict[str, float]
    """By phase."""
    core_wait: dict[str, float]
    """By phase, the part of it in which the rank waited for a core. 0 on a GPU."""
    whole: float

    @property
    def own(self) -> float:
        """The rank's own time, without waiting for other ranks or for a core."""
        return sum(self.wall[phase] - self.core_wait[phase] for phase in PHASES if phase != WAIT)
