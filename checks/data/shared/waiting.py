"""Waits for the user's code: how long, and who is to blame for an exception."""

import multiprocessing
import signal
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from preflight.check import UserCode, UserError, ranges
from preflight.checks.data.shared.timeouts import Stuck, patience

REAPED_S = 1.0
"""Seconds from the end of a worker's pipe until its exit status is known."""
ENDED_S = 0.5
"""For workers to end after SIGTERM, before they get SIGKILL."""
LIVE = "it to live until the epoch's end"
WHY = {
    "SIGKILL": ": did memory run out? (dmesg; fewer workers, a smaller prefetch_factor)",
    "SIGBUS": ": is /dev/shm full? (df -h /dev/shm; in a container --shm-size)",
}


@dataclass(frozen=True)
class Waiting:
    code: UserCode | None
    """None if only torch's own code is called, which is not to blame."""
    patience_s: float

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Turns exceptions into UserError, except those that a collective raised. Raises Stuck if it takes longer than
        `patience_s`."""
        if self.code is None:
            yield
            return
        with self.code.blamed(always=True), patience(self.patience_s, what, self.code):
            yield

    @contextmanager
    def iterating(self, loader: Any, what: str, *, again: bool = False) -> Iterator[Iterator[Any]]:
        """An iterator of the loader; ends its workers afterwards. `again`: it will be iterated again, for which
        persistent workers live on: they keep what they know about the epoch."""
        before = set(multiprocessing.active_children()) - set(_workers(getattr(loader, "_iterator", None)))
        iterator: Any = None
        lives_on, failed = False, True
        _without_torchs_handler()
        try:
            with self.on(what):
                iterator = iter(loader)
            yield iterator
            failed = False
            lives_on = again and bool(getattr(loader, "persistent_workers", False))
        except Stuck:
            _end_now(set(multiprocessing.active_children()) - before)  # else torch waits 5 s for each
            raise
        except UserError as error:
            if killed := _killed(iterator, error.__cause__):
                raise UserError(killed, error.file, error.line) from error
            raise
        finally:
            if not lives_on:
                with suppress(Stuck, UserError) if failed else nullcontext():  # report what failed first
                    self._end(loader, iterator)

    def _end(self, loader: Any, iterator: Any) -> None:
        """Frees the iterator, which ends torch's workers; the loader holds those of persistent workers."""
        with self.on("ending the iteration"):
            if isinstance(iterator, types.GeneratorType):
                iterator.close()
            if getattr(loader, "persistent_workers", False) and getattr(loader, "_iterator", None) is iterator:
                loader._iterator = None
            shutdown = getattr(iterator, "_shutdown_workers", None)
            if callable(shutdown):
                shutdown()


def _end_now(workers: set[Any]) -> None:
    for worker in workers:
        worker.terminate()
    end = time.monotonic() + ENDED_S
    for worker in workers:
        worker.join(max(end - time.monotonic(), 0.0))
        if worker.is_alive():
            worker.kill()


def _without_torchs_handler() -> None:
    """Without torch's signal handler, which raises an exception at any line, even ours, when a worker dies
    (torch/utils/data/_utils/signal_handling.py). Without it the loader itself notices within 5 s."""
    from torch.utils.data._utils import signal_handling

    signal_handling._SIGCHLD_handler_set = True


def _workers(iterator: Any) -> list[Any]:
    """The workers of a DataLoader's iterator."""
    return getattr(iterator, "_workers", None) or []


def _killed(iterator: Any, error: BaseException | None) -> str:
    """What ended a DataLoader's workers, if that explains an exception: torch's own, or that of a pipe without another
    end."""
    workers = _workers(iterator)
    if not workers or not isinstance(error, RuntimeError | ConnectionError | EOFError):
        return ""
    end = time.monotonic() + REAPED_S
    while not (codes := [worker.exitcode for worker in workers if worker.exitcode]) and time.monotonic() < end:
        time.sleep(0.01)
    if not codes or (isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error)):
        return ""
    how = signal.Signals(-codes[0]).name if codes[0] < 0 else f"exit status {codes[0]}"
    sentence = f"{len(codes)} of {ranges.count(len(workers), 'DataLoader worker')} ended by {how}, expected {LIVE}"
    return f"{sentence}{WHY.get(how, '')}"


@dataclass(frozen=True)
class Limit:
    """Limits for reading one epoch."""

    until: float
    """A value of time.monotonic()."""
    samples: int
    agree: Callable[[bool], bool] | None = None
    """Whether any rank has reached its limit, if all must stop at the same batch: `accelerate_loaders.agreement`."""

    begins: bool = False
    """Whether an epoch starts with a collective: then each rank starts it, however late, or ranks would be out of step
    in the next collective."""

    def spent(self, samples: int) -> bool:
        spent = samples >= self.samples or time.monotonic() > self.until
        if self.agree:
            return self.agree(spent)
        return spent and (samples > 0 or not self.begins)
