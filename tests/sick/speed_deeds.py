"""Deeds that slow this process down and change no number."""

import os
import time
from collections.abc import Callable
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


def _core_taken(_: int) -> None:
    """Once there is something to be timed, other processes want this one's core, and have the higher priority: a tenth
    of the core is left."""
    from torch.nn import TransformerEncoder

    def wrong(self: Any, *inputs: Any, **named: Any) -> None:
        right(self, *inputs, **named)
        if not taken:
            taken.append(os.getpid())
            _take_core()

    taken: list[int] = []
    right: Any = TransformerEncoder.__init__
    TransformerEncoder.__init__ = wrong  # type: ignore[method-assign]


def _take_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    own = os.getpid()
    for _number in range(3):
        if not os.fork():
            while os.getppid() == own:
                pass
            os._exit(0)
    os.nice(5)


DEEDS: dict[str, Callable[[int], None]] = {
    "slow_backward": _slow_backward,
    "slow_loader": _slow_loader,
    "slow_optimizer": _slow_optimizer,
    "core_taken": _core_taken,
}
