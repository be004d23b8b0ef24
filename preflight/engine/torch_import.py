"""The import of torch, the one step of a supervisor that blocks: it is on the file system that holds the environment.

A child touches torch's files first, which takes milliseconds: where they do not come, this process says which, and ends
as any run does. During its own import a guard does so, since it cannot end itself where the kernel holds it.
"""

import contextlib
import importlib.util
import os
import signal
import time
from collections.abc import Callable, Iterator

from preflight.engine import shutdown
from preflight.engine.breadcrumb import Breadcrumb
from preflight.engine.channel import Channel
from preflight.engine.child import Child
from preflight.engine.event_loop import EventLoop
from preflight.engine.process_group import TorchBroken, import_torch
from preflight.sdk import prctl, system_call
from preflight.sdk.system_call import FileWait, not_answered

ANSWER_S = 60.0
"""A call that takes longer will not return: a client of NFS that has lost its server's answer asks again after 60 s
(nfs(5): timeo=600)."""
TELL_S = 10.0
"""How long an import may take before the screen says what it waits for."""
RESERVE = 0.1
"""The share of the run's deadline that is left for what follows."""
TOUCHED = 1 << 16
"""Bytes of each file."""
LOOK_S = 0.25
TO_DO = "give a slow file system more time (--deadline), or put the environment on a local disk"


class TorchUnread(TorchBroken):
    """torch's files do not come. `is_slow`: the file system answers, and the run's time is over."""

    def __init__(self, text: str, *, is_slow: bool) -> None:
        super().__init__(text)
        self.is_slow = is_slow


def import_watched(loop: EventLoop, say: Callable[[str], None]) -> float:
    """Imports torch and returns how many seconds that took. `say` prints a sentence. Raises TorchBroken, TorchUnread
    and Interrupted."""
    start = time.monotonic()
    child = loop.fork(_touch)
    if isinstance(child, Child):
        try:
            _await(loop, child, start, say)
        finally:
            loop.dismiss(child)
    with _guarded(loop, start, say):
        import_torch()
    loop.forget_gap()
    return time.monotonic() - start


def _touch(channel: Channel, _page: Breadcrumb) -> None:
    """In the child."""
    with contextlib.suppress(Exception):  # what is wrong with it is said by the import itself
        for path in _files():
            with open(path, "rb", buffering=0) as file:
                file.read(TOUCHED)
    channel.send_all({"value": {}})


def _files() -> Iterator[str]:
    """Of torch: the package, and its libraries."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    folder = os.path.dirname(spec.origin)
    yield spec.origin
    for place in (folder, os.path.join(folder, "lib")):
        for entry in os.scandir(place):
            if ".so" in entry.name and entry.is_file():
                yield entry.path


def _await(loop: EventLoop, child: Child, start: float, say: Callable[[str], None]) -> None:
    """Waits for the child's answer or its end: if it has died, so will the import here, and say why."""
    watched, end, has_told = Watched(child.pid), start + loop.deadline_s * (1 - RESERVE), False
    while child.channel.receive() is None and not child.channel.closed:
        watched.look()
        seconds = time.monotonic() - start
        if watched.silent_s > ANSWER_S:
            raise TorchUnread(f"import torch: {watched.sentence}", is_slow=False)
        if time.monotonic() > end:
            raise TorchUnread(f"import torch is not done after {seconds:.0f} s; {watched.where}", is_slow=True)
        if seconds > TELL_S and watched.is_slow_to_read and not has_told:
            has_told = True
            say(_patience(watched, seconds, end - time.monotonic()))
        child.drain()
        loop.pump(LOOK_S)


def _patience(watched: "Watched", seconds: float, left_s: float) -> str:
    so_far = f"importing torch takes long: {seconds:.0f} s so far, {watched.where}"
    return f"{so_far}; the run's deadline leaves it {left_s:.0f} s more; {TO_DO}"


class Watched:
    """What a process waits for, and for how long already."""

    def __init__(self, pid: int) -> None:
        self._pid, self._since = pid, time.monotonic()
        self._wait: FileWait | None = None
        self._last, self._looks, self._waits = "", 0, 0

    def look(self) -> None:
        """To be called often."""
        seen = system_call.wait_of(self._pid)
        if seen is None or seen != self._wait:
            self._wait, self._since = seen, time.monotonic()
        self._looks, self._waits = self._looks + 1, self._waits + bool(seen)
        if seen and seen.path:
            self._last = seen.path

    @property
    def is_slow_to_read(self) -> bool:
        """Whether it has mostly waited for files: else it has too little of a core, and its files are not to blame."""
        return 2 * self._waits > self._looks

    @property
    def silent_s(self) -> float:
        """For how long one call on one file has not returned."""
        return time.monotonic() - self._since if self._wait else 0.0

    @property
    def sentence(self) -> str:
        path, call = (self._wait.path, self._wait.call) if self._wait else ("", "")
        return not_answered(path, self.silent_s, call)

    @property
    def where(self) -> str:
        """Which file it reads, or read when it last waited for one."""
        if self._wait and self._wait.path:
            return f"reading {self._wait.path} for {self.silent_s:.0f} s ({self._wait.call})"
        return f"last reading {self._last}" if self._last else "not waiting for a file"


@contextlib.contextmanager
def _guarded(loop: EventLoop, start: float, say: Callable[[str], None]) -> Iterator[None]:
    """Ends this process with a sentence if it does not get through: no code of its own could."""
    lifeline, end = os.pipe()
    try:
        guard = os.fork()
    except OSError:  # then the kernel's timer ends it, without a word
        os.close(lifeline)
        os.close(end)
        yield
        return
    if guard == 0:
        os.close(end)
        _guard(lifeline, os.getppid(), start, loop.deadline_s, say)
    os.close(lifeline)
    prctl.let_trace(guard)
    try:
        yield
    finally:
        os.close(end)
        os.waitpid(guard, 0)


def _guard(lifeline: int, pid: int, start: float, deadline_s: float, say: Callable[[str], None]) -> None:
    """In the guard, until the other end of `lifeline` is closed."""
    import select

    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    watched, tell_at = Watched(pid), time.monotonic() + TELL_S
    while not select.select([lifeline], [], [], LOOK_S)[0]:
        watched.look()
        seconds = time.monotonic() - start
        if watched.silent_s <= ANSWER_S and seconds <= deadline_s:
            if time.monotonic() > tell_at and watched.is_slow_to_read:
                say(_patience(watched, seconds, deadline_s - seconds))
                tell_at = float("inf")
            continue
        why = watched.sentence if watched.silent_s > ANSWER_S else f"{watched.where}; {TO_DO}"
        sentence = f"preflight: import torch is not done after {seconds:.0f} s: {why}"
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"{sentence}\n".encode(errors="replace"))
        shutdown.write_verdict(3, sentence)
        os.kill(pid, signal.SIGKILL)
        break
    os._exit(0)
