"""A process for calls that may hang or crash: into a driver, a file system, a library written in C.

The asker sends a question as a line of JSON and the process answers with lines of JSON. The name of what it is doing is
in shared memory: so a call that hangs can be named, and what was known before it is kept.
"""

import contextlib
import faulthandler
import json
import mmap
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from preflight.sdk import prctl
from preflight.sdk.files import state_of

ENDING = "preflight-ends"
"""The name in ps(1) of a process with an `at_end`: cleaning up after a dead worker lets it run that first."""
KILL_S, SLEEP_S = 1.0, 0.2
"""Waits for a process to end; the second for one in uninterruptible sleep (state D), which no signal ends."""
DRIVERS = "/dev/nvidia"
"""How the names of a GPU driver's device files begin."""
_NAME_BYTES, _READ_BYTES = 256, 1 << 16
_UNKNOWN = 256
"""Stands for an exit status that the kernel does not keep, because SIGCHLD is ignored, as some launchers leave it."""
_page: mmap.mmap | None = None
"""In the process: where it writes what it is doing."""


class NoReplyKind(StrEnum):
    """Why there is no answer."""

    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    RAISED = "raised"
    """Also if no process could be started."""
    DISTURBED = "disturbed"
    """Someone else stopped or killed the process (SIGKILL, SIGTERM), which says nothing about the call."""


@dataclass(frozen=True)
class Reply:
    """What a function returned, after its trip through JSON."""

    value: Any
    parts: tuple[Any, ...] = ()
    """What a generator function yielded; its `value` is None."""


@dataclass(frozen=True)
class NoReply:
    """Why there is no answer, and what was known until then."""

    kind: NoReplyKind
    call: str
    """What it was doing: the function's name, or the last text given to `Probe.doing`."""
    text: str
    """ "no answer within 5.0 s", "ended by SIGSEGV", "was stopped", "ValueError: no index"."""
    seconds: float = 0.0
    """Since the question."""
    parts: tuple[Any, ...] = ()
    stuck: bool = False
    """The process could not be killed, and was left behind: uninterruptible sleep, state D of ps(1)."""
    refused: int | None = None
    """The errno of fork(2), if no process could be started."""


class Probe:
    """Runs functions in a process of its own.

    `functions`: a module, an object with methods, or a mapping by name. The first question forks the process, and so
    does the next one after it was lost, with the memory that this process has then. What the functions change stays
    there. Arguments and results are JSON; what they print is lost. `at_end` is called in the process when it is no
    longer needed, even if the asker was killed; without it the process is killed then.
    """

    def __init__(self, functions: object, *, at_end: Callable[[], None] | None = None) -> None:
        self._functions, self._at_end = functions, at_end
        self.pid: int | None = None
        """The process's id, if there is one."""
        self.is_busy = False
        """Whether a question is unanswered."""

    def __enter__(self) -> "Probe":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @staticmethod
    def doing(what: str) -> None:
        """Called by the functions before a step that may hang, to name it (at most 256 bytes). No-op elsewhere."""
        if _page is not None:
            _write(_page, what)

    def ask(self, name: str, *arguments: Any, deadline_s: float) -> Reply | NoReply:
        """Calls a function and returns its answer. Raises OSError if no descriptor is left."""
        self.begin(name, *arguments)
        ((_, reply),) = replies([self], deadline_s)
        return reply

    def begin(self, name: str, *arguments: Any) -> None:
        """Asks without waiting: `replies` yields the answer. A probe answers one question at a time."""
        assert not self.is_busy, "it has not answered yet"
        if self.pid is None:
            self._start()
        self.is_busy, self._asked = True, time.monotonic()
        self._messages: list[dict[str, Any]] = []
        _write(self._shared, name)
        self._socket.settimeout(KILL_S)
        with contextlib.suppress(OSError):  # it has ended or does not read: then no answer comes
            self._socket.sendall(_line([name, arguments]))
        self._socket.setblocking(False)

    def end(self) -> None:
        """Ends the process: it ends by itself if it waits for a question, else it is killed."""
        if self.pid is not None:
            self._end(0.0 if self.is_busy else KILL_S)

    def _start(self) -> None:
        global _page
        self._shared, self._rest = mmap.mmap(-1, _NAME_BYTES), b""
        self._socket, theirs = socket.socketpair()
        prctl.load()
        asker = os.getpid()
        with theirs:
            try:
                self.pid = os.fork()
            except OSError as error:
                theirs.sendall(_line({"raised": _in_words(error), "errno": error.errno}))
            if self.pid == 0:
                _page = self._shared
                _live(theirs, asker, self._functions, self._at_end)

    def _take(self) -> Reply | NoReply | None:
        """The answer, or None if it is not complete yet."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return self._crashed()
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._messages += map(json.loads, lines)
        last = self._messages[-1] if lines else {}
        if "raised" in last:
            return replace(self._failure(NoReplyKind.RAISED, last["raised"]), refused=last.get("errno"))
        self.is_busy = "value" not in last
        return None if self.is_busy else Reply(last["value"], self._parts())

    def _parts(self) -> tuple[Any, ...]:
        return tuple(message["part"] for message in self._messages if "part" in message)

    def _crashed(self) -> NoReply:
        status = self._end(KILL_S)
        by_others = status in (None, _UNKNOWN, -signal.SIGKILL, -signal.SIGTERM)
        return self._failure(NoReplyKind.DISTURBED if by_others else NoReplyKind.CRASHED, _ended(status))

    def _timed_out(self) -> NoReply:
        pid, seconds = self.pid or 0, time.monotonic() - self._asked
        is_stopped = state_of(pid) in ("T", "t")
        self._end(0.0)
        if is_stopped:
            return self._failure(NoReplyKind.DISTURBED, "was stopped")
        return self._failure(NoReplyKind.TIMED_OUT, f"no answer within {seconds:.1f} s", stuck=state_of(pid) == "D")

    def _failure(self, kind: NoReplyKind, text: str, *, stuck: bool = False) -> NoReply:
        self.is_busy = False
        call = self._shared[:].rstrip(b"\0").decode(errors="replace")
        return NoReply(kind, call, text, time.monotonic() - self._asked, self._parts(), stuck)

    def _end(self, grace_s: float) -> int | None:
        """Waits `grace_s`, then kills the process. Its exit status (negative: a signal); None if it did not end."""
        pid, self.pid, self.is_busy = self.pid or 0, None, False
        self._socket.close()
        status = _status(pid, grace_s)
        if status is None:
            os.kill(pid, signal.SIGKILL)
            status = _status(pid, KILL_S)
        return status


def replies(probes: Iterable[Probe], deadline_s: float) -> Iterator[tuple[Probe, Reply | NoReply]]:
    """Yields each busy probe once it has answered, has crashed, or has not answered within `deadline_s`."""
    end = time.monotonic() + deadline_s
    with selectors.DefaultSelector() as selector:
        for probe in probes:
            if probe.is_busy:
                selector.register(probe._socket.fileno(), selectors.EVENT_READ, probe)
        while waiting := {key.fd: key.data for key in selector.get_map().values()}:
            ready = [key.fd for key, _ in selector.select(max(0.0, end - time.monotonic()))]
            for fileno in ready or waiting:
                probe = waiting[fileno]
                if reply := probe._take() if ready else probe._timed_out():
                    selector.unregister(fileno)
                    yield probe, reply


def _line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _write(page: mmap.mmap, what: str) -> None:
    page[:] = what.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _ended(status: int | None) -> str:
    if status is None or status == _UNKNOWN:
        return "ended with an unknown status"
    return f"ended with exit status {status}" if status >= 0 else f"ended by {signal.Signals(-status).name}"


def _status(pid: int, within_s: float) -> int | None:
    end = time.monotonic() + within_s
    while True:
        try:
            gone, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return _UNKNOWN
        if gone:
            return os.waitstatus_to_exitcode(status)
        left_s = end - time.monotonic()
        if left_s < 0 or (within_s - left_s > SLEEP_S and state_of(pid) == "D"):
            return None
        time.sleep(0.002)


# In the process


def _live(connection: socket.socket, asker: int, functions: object, at_end: Callable[[], None] | None) -> None:
    """Runs in its own session. It keeps no other descriptor of the asker's but those of GPU drivers, since it may never
    end and their other ends would seem to be in use. Their numbers stay taken, for objects of the asker's that close
    them. Where the asker has started NVML, its child's nvmlInit uses the asker's descriptors, and fails without them
    ("The operating system has blocked the request", driver 580)."""
    try:
        os.setsid()
        if at_end is not None:
            prctl.set_name(ENDING)
            signal.signal(signal.SIGTERM, lambda *_: _end_now(at_end))  # also in the middle of a call
            prctl.end_with_parent(asker, signal.SIGTERM)  # it cleans up also after an asker that was killed before
        elif prctl.end_with_parent(asker, signal.SIGKILL):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        else:
            return
        faulthandler.disable()
        null = os.open(os.devnull, os.O_RDWR)
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # the one of the listing itself is already closed
                if number not in (connection.fileno(), null) and not _is_driver(number):
                    os.dup2(null, number)
        _serve(connection, functions)
        if at_end is not None:
            at_end()
    finally:
        os._exit(0)


def _is_driver(number: int) -> bool:
    return os.readlink(f"/proc/self/fd/{number}").startswith(DRIVERS)


def _end_now(at_end: Callable[[], None]) -> None:
    """Runs `at_end` after SIGTERM (the asker was killed, or someone ends this process), then dies of SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        at_end()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def _serve(connection: socket.socket, functions: object) -> None:
    """Answers questions until the asker is done or gone."""
    with contextlib.suppress(OSError):
        for question in connection.makefile("rb"):
            name, arguments = json.loads(question)
            for answer in _answers(functions, name, arguments):
                connection.sendall(answer)


def _answers(functions: object, name: str, arguments: list[Any]) -> Iterator[bytes]:
    try:
        function = functions[name] if isinstance(functions, Mapping) else getattr(functions, name)
        value = function(*arguments)
        if isinstance(value, Iterator):
            for part in value:
                yield _line({"part": part})
            value = None
        yield _line({"value": value})
    except Exception as error:
        yield _line({"raised": _in_words(error)})
