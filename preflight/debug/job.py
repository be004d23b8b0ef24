"""The job as a child process: its process group, its terminal, the signals that are passed to it, its end."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import FrameType

from preflight.debug.output import DRAIN_S, KeptOutput, Stream, is_one
from preflight.engine import child
from preflight.sdk import prctl

TO_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Passed to its process group, as by a terminal."""
TO_ITSELF = (signal.SIGUSR1, signal.SIGUSR2)
"""Passed to the command alone: they end a process that has no handler."""
PASSED = (*TO_ALL, *TO_ITSELF, signal.SIGTSTP, signal.SIGCONT)
GRACE_S = 10.0
"""From SIGTERM to SIGKILL, when a hung job is ended."""
ORPHANS_S = 2.0
"""Time for orphans of a hung job to end by themselves: Python's resource tracker ignores SIGTERM, and removes what
ranks of mp.spawn leave in /dev/shm."""


class CannotStart(Exception):  # noqa: N818 -- as it reads where it is caught
    """The command cannot be run. `code` is the shell's: 127 not found, 126 not executable, from 128 on a signal."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


@contextlib.contextmanager
def signals_held() -> Iterator[Collection[int]]:
    """Holds back the signals that are passed on until the job exists to get them. Yields the signal mask before."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED)
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _refuse_if_interrupted() -> None:
    for number in sorted(signal.sigpending() & set(TO_ALL)):
        if signal.getsignal(number) != signal.SIG_IGN:
            raise CannotStart(f"{signal.Signals(number).name} came before the job was started", 128 + number)


class RunningJob:
    """Starts at once, from the main thread, with `signals_held`. Raises CannotStart."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        kept: str | None,
        mask: Collection[int],
        *,
        shown: bool = True,
    ) -> None:
        """`kept`: path of the kept output, without ".out" and ".err"; None: it is this process's, and nothing is kept.
        `mask`: of `signals_held`, the job's. `shown`: what is kept is passed on, too."""
        self.code: int | None = None
        """As in a shell, once it has ended: 128 plus the signal's number."""
        self.passed: list[int] = []
        self.was_ended = False
        """By `end`, because it hung."""
        self._terminal, self._shown = _foreground_terminal(), shown
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.getsignal(number) for number in PASSED}
        _refuse_if_interrupted()
        self._process, self.streams = self._start(command, environ, kept, mask)
        self.pid, self.started = self._process.pid, time.monotonic()
        self._catch_signals()

    def _catch_signals(self) -> None:
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in PASSED:
            if self._before[number] != signal.SIG_IGN:  # nohup
                signal.signal(number, self._pass)

    def _start(
        self, command: Sequence[str], environ: Mapping[str, str], kept: str | None, mask: Collection[int]
    ) -> tuple["subprocess.Popen[bytes]", list[Stream]]:
        pipes = [] if kept is None else [os.pipe2(os.O_CLOEXEC) for _ in range(1 if is_one(1, 2) else 2)]
        begin = _Begin(os.getpid(), self._terminal, mask)
        out, err = (pipes[0][1], pipes[-1][1]) if pipes else (None, None)
        try:
            process = subprocess.Popen(
                list(command), env=dict(environ), stdout=out, stderr=err, process_group=0, preexec_fn=begin
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise _cannot(command[0], error) from None
        finally:
            for _, end in pipes:
                os.close(end)
        sources = zip(pipes, ((1, "out"), (2, "err")), strict=False)
        return process, [
            Stream(pipe[0], number if self._shown else None, KeptOutput(f"{kept}.{name}"))
            for pipe, (number, name) in sources
        ]

    @property
    def latest_output(self) -> float:
        """When it last wrote (monotonic)."""
        return max(stream.latest for stream in self.streams)

    def wait(self, seconds: float, others: Sequence[int] = ()) -> list[int]:
        """Waits at most `seconds` for its end, a signal, or one of these descriptors; returns the readable ones."""
        ready: list[int] = []
        self._reap()  # it may have ended before SIGCHLD was caught
        if self.code is None:
            poll = select.poll()
            for descriptor in (self._woken, *others):
                poll.register(descriptor, select.POLLIN)
            ready = [descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)]
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        self._reap()
        return [descriptor for descriptor in ready if descriptor != self._woken]

    def _reap(self) -> None:
        while self.code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                pid, status = self.pid, 0
            if not pid:
                return
            if os.WIFSTOPPED(status):
                self._stop_too()
                continue
            code = os.waitstatus_to_exitcode(status)
            self.code = code if code >= 0 else 128 - code
            self._process.returncode = code  # Popen must not wait for it
            self._take_terminal()

    def _stop_too(self) -> None:
        """The job was stopped at the terminal (Ctrl-Z): stops this process, too, or the shell would keep waiting."""
        if self._terminal is not None:
            self._take_terminal()
            os.kill(os.getpid(), signal.SIGSTOP)

    def _take_terminal(self) -> None:
        _make_foreground(self._terminal, os.getpgrp())

    def _pass(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGCONT:
            if self._terminal is not None and _foreground(self._terminal) == os.getpgrp():
                _make_foreground(self._terminal, self.pid)
            self.signal(number)
            return
        self.passed.append(number)
        self.signal(number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    def signal(self, number: int) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.kill if number in TO_ITSELF else os.killpg)(self.pid, number)

    def finish(self) -> None:
        """Passes on its last output, and restores the signal handlers."""
        end = time.monotonic() + DRAIN_S
        for stream in self.streams:
            stream.finish(end)
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)

    def end(self, grace_s: float = GRACE_S) -> None:
        """Ends a job that hangs, with everything that it started. A stopped process first needs SIGCONT. `grace_s`:
        seconds from SIGTERM to SIGKILL; 0: it gets no SIGTERM."""
        self.was_ended = True
        prctl.adopt_orphans()  # torchrun's ranks have their own sessions
        for number, seconds in [(signal.SIGTERM, grace_s)] * bool(grace_s) + [(signal.SIGKILL, 5.0)]:
            self.signal(number)
            self.signal(signal.SIGCONT)
            end = time.monotonic() + seconds
            while self.code is None and time.monotonic() < end:
                self.wait(end - time.monotonic())
        if grace_s:
            child.end_orphans(set(), ORPHANS_S, signal.SIGTERM)
        child.end_orphans(set())


class _Begin:
    """In the child, between fork and exec: it dies with this process, has the terminal if this one had it, and gets
    signals as this one did."""

    def __init__(self, parent: int, terminal: int | None, mask: Collection[int]) -> None:
        self._parent, self._terminal, self._mask = parent, terminal, mask
        prctl.load()

    def __call__(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if not prctl.end_with_parent(self._parent, signal.SIGTERM):
            os._exit(128 + signal.SIGTERM)
        _make_foreground(self._terminal, os.getpid())


def _foreground_terminal() -> int | None:
    """Stdin, if it is a terminal and this process is in its foreground."""
    return 0 if os.isatty(0) and _foreground(0) == os.getpgrp() else None


def _foreground(terminal: int) -> int:
    try:
        return os.tcgetpgrp(terminal)
    except OSError:
        return -1


def _make_foreground(terminal: int | None, group: int) -> None:
    """A background process that does this is stopped, unless it ignores SIGTTOU."""
    if terminal is None:
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.tcsetpgrp(terminal, group)
    signal.signal(signal.SIGTTOU, signal.SIG_DFL if before is None else before)


def _cannot(word: str, error: Exception) -> CannotStart:
    if isinstance(error, FileNotFoundError):
        return CannotStart(f"{word}: there is no such command", 127)
    why = error.strerror if isinstance(error, OSError) else str(error)
    return CannotStart(f"{word}: cannot be started ({why})", 126)
