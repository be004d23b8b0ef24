"""Loaders of which rank 1's raises, is stuck or dies."""

import ctypes
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, get_worker_info

from tests.loaders.mistaken import sampled
from tests.loaders.sound import EachNth, Loader, Numbers, even, rank, world
from tests.loaders.streams import Stream

FOR_EVER = 10**6


class Bad(Numbers):
    """A sample of rank 1's third batch cannot be read, in the process that is named."""

    def __init__(self, *, in_worker: bool = False) -> None:
        super().__init__()
        self.in_worker = in_worker

    def __getitem__(self, index: int) -> torch.Tensor:
        if rank() == 1 and index == 4 * world() + 1 and (get_worker_info() is not None) is self.in_worker:
            self.fail()
        return super().__getitem__(index)

    def fail(self) -> None:
        raise ValueError("the image is truncated")


class Stuck(Bad):
    def fail(self) -> None:
        time.sleep(FOR_EVER)


class Killed(Bad):
    """As by the kernel, when memory is out."""

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def _bad(dataset: Numbers, **more: Any) -> Loader:
    return sampled(DistributedSampler(dataset, shuffle=False), dataset, **more)


def raises_in_main() -> Loader:
    return _bad(Bad())


def raises_in_worker() -> Loader:
    return _bad(Bad(in_worker=True), num_workers=2)


def raises_before_barrier() -> Loader:
    if rank() == 1:
        raise FileNotFoundError("no index")
    torch.distributed.barrier()
    return _bad(Bad(in_worker=True))


def stuck_in_main() -> Loader:
    return _bad(Stuck())


def stuck_in_worker() -> Loader:
    return _bad(Stuck(in_worker=True), num_workers=2)


def worker_killed() -> Loader:
    return _bad(Killed(in_worker=True), num_workers=1)


def killed() -> Loader:
    """The rank itself."""
    return _bad(Killed())


class StuckStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        for step, batch in enumerate(super().__iter__()):
            if rank() == 1 and step == 5:
                time.sleep(FOR_EVER)
            yield batch


def stuck_stream() -> Loader:
    return DataLoader(StuckStream(), batch_size=2, num_workers=1)


def stuck_function() -> Loader:
    if rank() == 1:
        time.sleep(FOR_EVER)
    return even()


class RaisingSampler(EachNth):
    def __iter__(self) -> Iterator[int]:
        if rank() == 1 and self.epoch == 1:
            raise IndexError("no weights for epoch 1")
        return super().__iter__()


def raises_in_sampler() -> Loader:
    return sampled(RaisingSampler(range(24)))


class Ragged(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(3 + index // world() % 2)


def unlike_shapes() -> Loader:
    """torch cannot stack them: the words are its own."""
    return _bad(Ragged())


class StuckNatively(Bad):
    """In C, where no signal is heard: a lock that is taken twice."""

    def fail(self) -> None:
        libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(lock)
        libc.pthread_mutex_lock(lock)


def stuck_natively() -> Loader:
    return _bad(StuckNatively())


def _while_counting(deed: Callable[[], object]) -> Loader:
    """Rank 1 does it once it has counted the samples of the first epoch, in the call that counts the second's."""
    if rank() == 1:
        calls, reduce = itertools.count(), torch.distributed.reduce

        def counted(*given: Any, **named: Any) -> Any:
            if next(calls):
                deed()
            return reduce(*given, **named)

        torch.distributed.reduce = counted
    return even()


def stuck_while_counting() -> Loader:
    return _while_counting(lambda: time.sleep(FOR_EVER))


def killed_while_counting() -> Loader:
    return _while_counting(lambda: os.kill(os.getpid(), signal.SIGKILL))
