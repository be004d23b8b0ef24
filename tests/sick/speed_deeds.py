"""Deeds that slow this process down, or spare it work, and change no number of what is looked at."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

DELAY_S = 0.4
"""Twice what is found: where a machine has other work the other ranks take as long themselves, and do not wait."""


def _slow_backward(_: int) -> None:
    """Backward stands still in a block's output, as where a hook waits for something."""
    from torch.nn import TransformerEncoder

    def wrong(self: Any, *inputs: Any, **named: Any) -> Any:
        output: Any = right(self, *inputs, **named)
        output.register_hook(lambda _gradient: time.sleep(DELAY_S))
        return output

    right = TransformerEncoder.forward
    TransformerEncoder.forward = wrong  # type: ignore[method-assign]


def _slow_loader(_: int) -> None:
    from torch.utils.data import dataloader

    def wrong(self: Any) -> Any:
        time.sleep(DELAY_S)
        return right(self)

    loader: Any = dataloader._BaseDataLoaderIter
    right = loader.__next__
    loader.__next__ = wrong


def _slow_optimizer(_: int) -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(lambda *_: time.sleep(DELAY_S))


def _stalls(every: int) -> None:
    """Every so many calls forward takes a second longer, as where a rank writes its log."""
    from torch.nn import TransformerEncoder

    def wrong(self: Any, *inputs: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) % every == 0:
            time.sleep(1.0)
        return right(self, *inputs, **named)

    calls: list[None] = []
    right = TransformerEncoder.forward
    TransformerEncoder.forward = wrong  # type: ignore[method-assign]


def _slow_hook(_: int) -> None:
    """DDP's communication hook stands still before it sends the last bucket, as where it compresses."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel as Ddp

    right: Any = Ddp.__init__

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP would hold annotations against its own
        time.sleep(DELAY_S if bucket.is_last() else 0)
        return default_hooks.allreduce_hook(state, bucket)

    def wrong(self: Any, *arguments: Any, **options: Any) -> None:
        right(self, *arguments, **options)
        self.register_comm_hook(self.process_group, hook)

    Ddp.__init__ = wrong  # type: ignore[method-assign]


def _once_timed(do: Callable[[], None]) -> None:
    """When there is something to be timed."""
    from torch.nn import TransformerEncoder

    def wrong(self: Any, *inputs: Any, **named: Any) -> None:
        right(self, *inputs, **named)
        if not done:
            done.append(os.getpid())
            do()

    done: list[int] = []
    right: Any = TransformerEncoder.__init__
    TransformerEncoder.__init__ = wrong  # type: ignore[method-assign]


def _core_of_its_own(_: int) -> None:
    """What else the machine does, does not slow it down. A lower nice value would not do: where sessions are scheduled
    as groups (sched(7), autogroup) it counts within a session only. Another user than root may not."""

    def prefer() -> None:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))

    _once_timed(prefer)


def _core_taken(_: int) -> None:
    """Other processes want this one's core, and have the higher priority: a tenth of the core is left."""
    _once_timed(_take_core)


def _take_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    own = os.getpid()
    for _number in range(3):
        if not os.fork():
            while os.getppid() == own:
                pass
            os._exit(0)
    os.nice(5)


def _one_step_alone(_: int) -> None:
    """train.alone trains for one step instead of eight, six times over: for runs that are about a later check. The
    name is another one, so that a strategy's own reference has all its steps."""
    from preflight.train_smoke.trainer import task

    def fewer(*which: Any) -> Any:
        made = right(*which)
        is_alone = sys._getframe(1).f_globals["__name__"] == "preflight.checks.train.alone"
        return replace(made, name=f"{made.name}, one step", steps=1) if is_alone else made

    right: Any = task.built_in
    task.built_in = fewer  # type: ignore[assignment]


DEEDS: dict[str, Callable[[int], None]] = {
    "slow_backward": _slow_backward,
    "slow_loader": _slow_loader,
    "slow_optimizer": _slow_optimizer,
    "slow_hook": _slow_hook,
    "stalls": _stalls,
    "core_of_its_own": _core_of_its_own,
    "core_taken": _core_taken,
    "one_step_alone": _one_step_alone,
}
