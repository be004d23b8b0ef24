"""Children that may hang or die: forks them, reads what they leave, and ends them within a time limit."""

import contextlib
import faulthandler
import fcntl
import glob
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from preflight.core.outcome import LOG_TAIL
from preflight.engine.breadcrumb import Breadcrumb
from preflight.engine.channel import Channel, Closed
from preflight.hangs.collective_recorder import DumpFile
from preflight.sdk import prctl, process_limits
from preflight.sdk.files import read, state_of
from preflight.sdk.probe import ENDING

REAP_S = 5.0
"""A killed process that still exists after this time is in uninterruptible sleep: no signal will end it."""


def wait_channel_of(pid: int) -> str | None:
    """The kernel function in which a process sleeps; None if the kernel does not tell."""
    return read(f"/proc/{pid}/wchan").strip("0") or None


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    return state_of(pid) not in ("", "Z", "X")


class LimitReached(Exception):  # noqa: N818 -- a state of the world
    """A limit of this host keeps a process from being started, or a file from being opened. Its text says which."""


REFUSED_BEFORE = process_limits.refusals()
"""Refusals of the cgroups when this process began."""
LIMIT_STATUS = 98
"""Exit status of a child that was refused a process, a thread or a file."""
LIMIT_LINE = "preflight: limit reached: "
"""How its last line begins, which says by which limit: a user's code may end with that status, too."""


def limit_hit(error: BaseException) -> str:
    """The limit that an exception comes from, in words; "" if it comes from none."""
    number = error.errno if isinstance(error, OSError) else None
    return process_limits.hit(REFUSED_BEFORE, str(error), number)


class Child:
    """A forked process with a channel, a page, its output and a place for stack dumps."""

    def __init__(
        self,
        target: Callable[[Channel, Breadcrumb], None],
        *,
        output: bool = True,
        keep: tuple[int, ...] = (),
        outlives: bool = False,
        dump_file: DumpFile | None = None,
    ) -> None:
        """Forks. `target` runs in the child, which ends by os._exit and never returns here.

        With `output` the child's stdout and stderr are kept (`log_tail`), else they go to /dev/null.
        The child keeps only those of the supervisor's descriptors that are in `keep`. It is killed when the supervisor
        dies, unless it `outlives` it (and then ends by itself). `dump_file`: where a worker writes its collectives.
        """
        self.dump_file = dump_file
        keep = (*keep, *(dump_file.descriptors if dump_file else ()))
        self._born = time.time() - 1.0
        self.page = Breadcrumb()
        self._stack = os.memfd_create("stack")
        self._tail = bytearray()
        self.channel, theirs = Channel.pair()
        self._output, write_end = os.pipe() if output else (-1, os.open(os.devnull, os.O_WRONLY))
        supervisor = os.getpid()
        prctl.load()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            self.pid = os.fork()
        except OSError:
            theirs.close()
            self.channel.close()
            for descriptor in {self._output, write_end, self._stack} - {-1}:
                os.close(descriptor)
            if dump_file:
                dump_file.close()
            raise
        if self.pid == 0:
            _become_child(0 if outlives else supervisor, theirs, self._stack, write_end, keep)
            _run(target, theirs, self.page)
        theirs.close()
        os.close(write_end)
        if output:
            fcntl.fcntl(self._output, fcntl.F_SETFL, os.O_NONBLOCK)
        with contextlib.suppress(OSError):  # both sides do it: neither may rely on the other being first
            os.setpgid(self.pid, self.pid)
        self.status: int | None = None
        self.silent = False
        """Whether all writing ends of its output are closed, so nothing more will come."""

    def fileno(self) -> int:
        """The reading end of its output, or -1."""
        return self._output

    def drain(self) -> None:
        """Reads what it has printed, at most 1 MiB per call, so that a flood cannot block the supervisor."""
        for _ in range(16):
            if self._output < 0 or self.silent:
                return
            try:
                data = os.read(self._output, 65536)
            except BlockingIOError:
                return
            self.silent = not data
            self._tail += data
            del self._tail[:-LOG_TAIL]

    def log_tail(self) -> str:
        """The last 64 KiB that it printed, from the beginning of a line: in a part of one a secret is not seen."""
        self.drain()
        start = self._tail.find(b"\n") + 1 if len(self._tail) == LOG_TAIL else 0
        return self._tail[start:].decode(errors="replace")

    def forget_log(self) -> None:
        """Drops output, stack and dump before a new check: what follows belongs to that."""
        self.drain()
        self._tail.clear()
        os.ftruncate(self._stack, 0)
        os.lseek(self._stack, 0, os.SEEK_SET)
        if self.dump_file:
            self.dump_file.forget()

    def stack(self) -> str:
        """What faulthandler has written."""
        return os.pread(self._stack, LOG_TAIL, 0).decode(errors="replace")

    def dump_stack(self, within_s: float = 1.0) -> str:
        """Asks for the stacks and returns them. Only of a worker that is ended now: reading the frames of threads that
        run can crash it. (A timer that did so at 85 % of the deadline has crashed a rank that was only slow, in
        Python 3.12 beside Triton's threads.) A stopped or uninterruptible process does not answer."""
        if state_of(self.pid) in ("R", "S") and not self.stack():
            self.signal(signal.SIGUSR1)
            end = time.monotonic() + within_s
            while not self.stack() and time.monotonic() < end:
                time.sleep(0.01)
        return self.stack()

    def write_dump(self) -> None:
        """Asks for the state of its collectives; the answer is in `dump`."""
        if self.dump_file and state_of(self.pid) in ("R", "S"):
            self.dump_file.ask()

    def dump(self) -> dict[str, Any]:
        """groups, number (the page's count of collectives then), ras: see collective_recorder.py. {} if none."""
        return self.dump_file.read() if self.dump_file else {}

    def signal(self, number: int) -> None:
        """Sends a signal to this process alone."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def reap(self) -> int | None:
        """Its exit status as os.waitstatus_to_exitcode gives it (negative: a signal), None while it lives."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def wait_status(self, within_s: float) -> int | None:
        """Its exit status if it ends within `within_s`, else None: its channel closes a moment before it ends."""
        self._gone_within(within_s)
        return self.reap()

    def refused_by(self, status: int | None) -> str:
        """The limit that ended it, in words; "" if none did."""
        if status == 0:
            return ""
        tail = self.log_tail()
        last = tail.strip().rpartition("\n")[2]
        if status == LIMIT_STATUS and last.startswith(LIMIT_LINE):
            return last.removeprefix(LIMIT_LINE)
        return process_limits.hit(REFUSED_BEFORE, tail)

    @staticmethod
    def described(status: int) -> str:
        """ "by SIGSEGV" or "with exit status 7"."""
        if status >= 0:
            return f"with exit status {status}"
        known = -status in set(signal.Signals)
        return f"by {signal.Signals(-status).name}" if known else f"by signal {-status}"

    def end(self, grace_s: float = 0.0) -> bool:
        """Ends it and everything it started; True if it is gone. Takes at most `grace_s` plus REAP_S.

        Its channel is closed first, so that it can end by itself within `grace_s`.
        """
        self.channel.close()
        gone = self._gone_within(grace_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)
        gone = gone or self._gone_within(REAP_S)
        self.drain()
        for descriptor in (self._output, self._stack):
            if descriptor >= 0:
                os.close(descriptor)
        self._output = -1
        self.page.close()
        if self.dump_file:
            self.dump_file.close()
        self._remove_shared_memory()
        return gone

    def _remove_shared_memory(self) -> None:
        """Removes the files that torch named after this process (torch_<pid>_...) since its start; /dev/shm may be
        shared with containers in which another process has the same number."""
        for path in glob.glob(f"/dev/shm/torch_{self.pid}_*"):  # noqa: S108 -- the kernel's own place
            with contextlib.suppress(OSError):
                about = os.lstat(path)
                if about.st_uid == os.getuid() and about.st_ctime >= self._born:
                    os.unlink(path)

    def _gone_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self.reap() is None:
            if time.monotonic() >= end:
                return False
            self._await_its_end(end - time.monotonic())
        return True

    def _await_its_end(self, seconds: float) -> None:
        """Wakes when it has ended; on a kernel or in a sandbox that cannot tell, soon."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            time.sleep(0.002)
            return
        with contextlib.suppress(InterruptedError):
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(max(1.0, seconds * 1000))
        os.close(descriptor)


def end_orphans(known: set[int], within_s: float = 2.0, by: signal.Signals = signal.SIGKILL) -> None:
    """Ends what dead workers left behind (`adopt_orphans` made them ours), also processes that called setsid. Each gets
    the signal once: a user's handler may be slow. A Probe with an `at_end` gets most of the time to run it: it removes
    what its worker has written."""
    end, asked = time.monotonic() + within_s, set[int]()
    while (orphans := children() - known) and (left_s := end - time.monotonic()) > 0:
        orphans = {pid for pid in orphans if left_s < within_s / 4 or not _has_an_end(pid)} | (orphans & asked)
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if pid not in asked:
                    os.kill(pid, by)
                os.waitpid(pid, os.WNOHANG)
        asked |= orphans
        time.sleep(0.002)


def _has_an_end(pid: int) -> bool:
    """Whether it is a living Probe with an `at_end`."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip() == ENDING and state_of(pid) != "Z"
    except OSError:
        return False


def children() -> set[int]:
    """All children of this process, including adopted ones."""
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children") as file:
            return {int(word) for word in file.read().split()}
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        import psutil

        return {process.pid for process in psutil.Process().children()}


def _become_child(supervisor: int, channel: Channel, stack: int, output: int, keep: tuple[int, ...]) -> None:
    """Detaches the child from the supervisor's terminal, signals and descriptors."""
    os.setpgid(0, 0)
    if supervisor and not prctl.end_with_parent(supervisor, signal.SIGKILL):
        os._exit(0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # The sockets of other children, the launcher and the store would outlive their owners if kept here.
    _close_all_but({0, 1, 2, channel.fileno(), stack, *keep})
    # Line-buffered, like the output of C code: the order in the log is then the order of events.
    sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    faulthandler.enable(file=stack)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    # Writing a core of torch's size can take longer than a deadline; the stack is kept, which says more.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _run(target: Callable[[Channel, Breadcrumb], None], channel: Channel, page: Breadcrumb) -> NoReturn:
    status = 0
    try:
        target(channel, page)
    except Closed:
        pass
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException as error:
        status = 1
        with contextlib.suppress(Exception):
            traceback.print_exc()
            if limit := limit_hit(error):
                status = LIMIT_STATUS
                print(f"{LIMIT_LINE}{limit}", flush=True)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
