"""Limits how long to wait for the user's code, and finds the user's line where it is stuck."""

import faulthandler
import functools
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType, TracebackType

from preflight.check import UserCode, ranges
from preflight.checks.data.shared.readings import LoaderMistake

AGAIN_S = 1.0
"""The user's `try` may swallow what is raised in it: it is raised again after this many seconds."""
ANSWER_S, ANSWERS_S = 0.3, 2.0
"""For a DataLoader worker to write its stack (in C, even while Python's lock is held), and for all of them."""
TELL = signal.SIGRTMAX - 5
"""Asks a worker for its stack. Users' handlers are for SIGUSR1, SIGUSR2 or the first real-time signals."""
_BOTTOM = re.compile(r" in (_worker_loop|_bootstrap)$|^  \.\.\.$", re.MULTILINE)
"""Where a worker's own stack ends; below is its parent's at the fork. (faulthandler stops at 100 frames.)"""


class Stuck(BaseException):  # not an Exception: the user's `except Exception` should not swallow it
    """The user's code takes too long."""

    def __init__(self, text: str, file: str | None = None, line: int | None = None, *, waits: bool = False) -> None:
        """`text`: one sentence, which starts with file and line if known. `waits`: whether in a collective, for other
        ranks."""
        super().__init__(text)
        self.text, self.file, self.line, self.waits = text, file, line, waits

    def mistake(self) -> LoaderMistake:
        return LoaderMistake(kind="waits" if self.waits else "stuck", text=self.text, file=self.file, line=self.line)


class patience:  # noqa: N801 -- it reads like a statement: `with patience(30, "batch 3", code):`
    """A `with` that raises Stuck if its body takes longer. They may be nested; signal and timer are restored. It cannot
    interrupt a C call that keeps Python from running, and does nothing outside the main thread."""

    def __init__(self, seconds: float, what: str, code: UserCode | None) -> None:
        """`what`: what is waited for, "batch 3 of epoch 0". `code`: whose lines to look for."""
        self._seconds, self._what, self._code = max(seconds, 0.001), what, code
        self._stuck: Stuck | None = None
        self._owner: FrameType | None = None
        self._in_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if not self._in_main:
            return
        _stacks(os.getpid())
        self._owner, self._begin = sys._getframe(1), time.monotonic()
        self._before = signal.getsignal(signal.SIGALRM)
        signal.signal(signal.SIGALRM, self._on_alarm)
        self._timer = signal.setitimer(signal.ITIMER_REAL, self._seconds, AGAIN_S)
        if 0 < self._timer[0] < self._seconds:  # an outer one ends first
            signal.setitimer(signal.ITIMER_REAL, self._timer[0], AGAIN_S)

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        if not self._in_main:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if self._before is None else self._before)
        self._owner, (left, again) = None, self._timer
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - self._begin), 0.001), again)
        if self._stuck is not None and error is not self._stuck and not isinstance(error, Stuck):
            raise self._stuck from error  # the user's code swallowed it

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if frame is None or frame.f_code in _NOT_THE_BODY or frame.f_globals.get("__name__") == "contextlib":
            return  # an exception there would leave the timer running
        if time.monotonic() - self._begin < self._seconds and callable(self._before):
            self._before(number, frame)
            return
        if self._stuck is None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._stuck = self._stuck_in(frame)
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
        raise self._stuck

    def _stuck_in(self, frame: FrameType) -> Stuck:
        expected, code = f"after {self._seconds:g} s, expected {self._what}", self._code
        if code is None:
            return Stuck(f"nothing {expected}")
        frames = list(_frames(frame, self._owner))
        wait = next((number for number, caller in enumerate(frames) if _waits_for_workers(caller)), len(frames))
        place, who = code.innermost(map(_described, frames[:wait])), ""
        if place is None and wait < len(frames):
            stacks, silent = _stacks_of_workers()
            places = Counter(filter(None, map(code.innermost_printed, stacks)))
            if places:
                (place, times), workers = places.most_common(1)[0], len(stacks) + len(silent)
                who = f", in {times} of {ranges.count(workers, 'DataLoader worker')}"
            else:
                who = f", waiting for DataLoader workers{_of_silent(silent)}"
        place = place or code.innermost(map(_described, frames[wait:]))
        waits = any(map(_is_collective, frames))
        if place is None:
            return Stuck(f"{code}{who}: nothing {expected}", waits=waits)
        return Stuck(f"{place}{who}: still here {expected}", place.file, place.line, waits=waits)


_NOT_THE_BODY = (patience.__enter__.__code__, patience.__exit__.__code__)


def _frames(frame: FrameType | None, end: FrameType | None) -> Iterator[FrameType]:
    """Frames from the innermost up to the one with the `with`."""
    while frame is not None and frame is not end:
        yield frame
        frame = frame.f_back


def _described(frame: FrameType) -> tuple[str, int, str, str]:
    code = frame.f_code
    return code.co_filename, frame.f_lineno, code.co_qualname, str(frame.f_globals.get("__name__", ""))


def _is_collective(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("torch.distributed")


def _waits_for_workers(frame: FrameType) -> bool:
    """Whether the frame is torch's (torch/utils/data/dataloader.py) or torchdata's wait for the next batch."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return frame.f_code.co_name == "_get_data" and package in ("torch", "torchdata")


# Stacks of a DataLoader's workers


@functools.cache
def _stacks(_process: int) -> int:
    """A file to which processes forked from now on write their stacks on signal TELL."""
    file = os.memfd_create("workers")
    faulthandler.register(TELL, file=file, all_threads=False)
    return file


def _stacks_of_workers() -> tuple[list[str], list[str]]:
    """(stacks of workers that answer, without their parent's; proc(5) states of those that do not: "D")."""
    stacks, silent, end = [], [], time.monotonic() + ANSWERS_S
    for child in multiprocessing.active_children():
        state, may_be_asked = _state(child.pid or 0)
        stack = _ask(child.pid, min(end, time.monotonic() + ANSWER_S)) if child.pid and may_be_asked else ""
        if stack:
            stacks.append(stack)
        else:
            silent.append(state)
    return stacks, silent


def _state(pid: int) -> tuple[str, bool]:
    """(state letter of proc(5), whether TELL would be caught: it would kill a spawned worker)."""
    with suppress(OSError), open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file if ":" in line)
        return fields["State"].strip()[:1], bool(int(fields["SigCgt"], 16) >> (TELL - 1) & 1)
    return "", False


def _ask(pid: int, end: float) -> str:
    """The process's stack, or "" if it is not complete by `end`."""
    file = _stacks(os.getpid())
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
    with suppress(ProcessLookupError):
        os.kill(pid, TELL)
    while time.monotonic() < end:
        stack = os.pread(file, 1 << 16, 0).decode(errors="replace")
        if bottom := _BOTTOM.search(stack):
            return stack[: bottom.start()]
        time.sleep(0.002)
    return ""


def _of_silent(states: list[str]) -> str:
    if "D" in states:
        return f" ({states.count('D')} in a call to the kernel that cannot be interrupted: does the storage answer?)"
    return " that do not say where they are" if states else ""
