"""What touches a path: a process for each, since a call on a dead mount sleeps where no signal wakes it.

The worker asks by JSON over a pipe, the process answers piece by piece, and the name of every call stands in shared
memory before it is made: so a hang has a name, and what was known before it is kept. A process that does not answer in
time is killed; where the kernel does not let go of it, it is left behind.
"""

import contextlib
import json
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from preflight.checks.node.shared.process import text
from preflight.checks.node.storage import mounts
from preflight.checks.node.storage.path_calls import Calls, Failed

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

NOT, UNHEARD = "not", "unheard of"
KILL_S, REMOVE_S = 0.2, 0.5
"""What a process that can be killed takes to end, and another one to remove a file."""
MAKES = ("create", "write", "fsync", "close", "unlink", "read")
"""Calls in which, or after which, there is a file."""


class Hang(TypedDict):
    call: str
    seconds: float
    stuck: bool
    """The process could not be killed (state D of ps(1))."""


class PathFacts(TypedDict):
    """What one node knows of one path. What is not known is None, or left empty."""

    mount: mounts.Mount | None
    opened: bool
    size_mib: int | None
    free_mib: int | None
    inodes: int | None
    """Files that can still be made. None where they are not counted."""
    read_only: bool
    stat_ms: list[float]
    """Best and worst of some look-ups of names that are not there: no cache knows them."""
    write_ms: list[float]
    fsync_ms: list[float]
    written: bool
    failed: Failed | None
    hang: Hang | None
    seen: dict[str, str]
    """By the rank that wrote a file: yes, no, or the error."""
    left: str
    """A file of ours that may still be there."""


def nothing_known(path: str) -> PathFacts:
    """Before the path is touched."""
    return {
        "mount": mounts.of_path(path), "opened": False, "size_mib": None, "free_mib": None, "inodes": None,
        "read_only": False, "stat_ms": [], "write_ms": [], "fsync_ms": [], "written": False, "failed": None,
        "hang": None, "seen": {}, "left": "",
    }  # fmt: skip


class Probe:
    """The process of one path, and what is known of the path."""

    def __init__(self, path: str, name: str) -> None:
        """`name`: of the file to be made in it."""
        self.path, self.name = path, name
        self.facts = nothing_known(path)
        self.busy = False
        self.disturbed = ""
        """Somebody else has stopped or killed the process, which says nothing of the path."""
        self._calling = mmap.mmap(-1, 16)
        self.connection, self._pid = _start(path, name, self._calling)
        self._asked = time.monotonic()

    def ask(self, what: str, *arguments: Any) -> None:
        """Its answers come over `connection`. Nothing is asked of one that has hung or ended."""
        if self.facts["hang"] is None and not self.disturbed:
            self.busy, self._asked = True, time.monotonic()
            with contextlib.suppress(OSError):  # it has ended: `take` finds out
                self.connection.send_bytes(json.dumps([what, arguments]).encode())

    def take(self) -> None:
        """One answer, which must be there."""
        try:
            answer = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.disturbed = f"the process that looked at {self.path} ended {_end(self._pid, KILL_S)}"
            self.busy = False
            return
        self.busy = not answer.pop("done", False)
        self.facts.update(answer)

    def give_up(self) -> None:
        """It did not answer in time."""
        state = _state(self._pid)
        call = self._calling[:].rstrip(b"\0").decode()
        self.busy = False
        ended = _end(self._pid, 0.0)
        self.connection.close()
        if state in ("T", "t"):
            self.disturbed = f"the process that looked at {self.path} was stopped"
            return
        stuck = ended == NOT and _state(self._pid) != "Z"
        self.facts["hang"] = {"call": call, "seconds": round(time.monotonic() - self._asked, 1), "stuck": stuck}
        if call in MAKES:
            self._remove()

    def _remove(self) -> None:
        """By another process, which may hang as well."""
        connection, pid = _start(self.path, self.name, self._calling)
        self.facts["left"] = os.path.join(self.path, self.name)
        with contextlib.suppress(EOFError, OSError):  # somebody has killed it
            connection.send_bytes(json.dumps(["remove", []]).encode())
            if connection.poll(REMOVE_S):
                self.facts.update(json.loads(connection.recv_bytes()))
        _end(pid, 0.0)
        connection.close()

    def end(self) -> None:
        """It removes its file first, if it has one."""
        if self.facts["hang"] is None and not self.disturbed:
            self.connection.close()
            _end(self._pid, KILL_S)


def answers(probes: Sequence[Probe], within_s: float) -> Iterator[Probe]:
    """Each probe when it has answered in full, has hung for so long, or has ended."""
    from multiprocessing.connection import Connection, wait

    end = time.monotonic() + within_s
    while busy := {probe.connection: probe for probe in probes if probe.busy}:
        ready = [
            connection
            for connection in wait(list(busy), max(0.0, end - time.monotonic()))
            if isinstance(connection, Connection)
        ]
        for probe in [busy[connection] for connection in ready] or list(busy.values()):
            probe.take() if ready else probe.give_up()
            if not probe.busy:
                yield probe


def _state(pid: int) -> str:
    return (text(f"/proc/{pid}/stat").rpartition(")")[2].split() or ["?"])[0]


def _start(path: str, name: str, calling: mmap.mmap) -> tuple["Connection", int]:
    from multiprocessing import Pipe

    ours, theirs = Pipe()
    pid = os.fork()
    if not pid:
        try:
            _serve(theirs, calling, path, name)
        finally:
            os._exit(0)
    theirs.close()
    return ours, pid


def _end(pid: int, grace_s: float) -> str:
    """How it ended, by itself within so long, or killed: "with 0", "by signal 9". One that the kernel does not let go
    is left behind. join() of multiprocessing would wait for it without a bound, since its sentinel is closed."""
    for number, within_s in ((0, grace_s), (signal.SIGKILL, KILL_S)):
        end = time.monotonic() + within_s
        if number:
            os.kill(pid, number)
        while (ended := _ended(pid)) is None and time.monotonic() < end:
            time.sleep(0.002)
        if ended is not None:
            return ended
    return NOT


def _ended(pid: int) -> str | None:
    try:
        gone, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # SIGCHLD is ignored, as some launchers leave it
        return UNHEARD
    code = os.waitstatus_to_exitcode(status)
    return None if not gone else f"with {code}" if code >= 0 else f"by signal {-code}"


def _serve(connection: "Connection", calling: mmap.mmap, path: str, name: str) -> None:
    """Its own session: it outlives a killed worker by the moment in which it removes its file. It keeps no other
    descriptor of the worker's, since it may never end."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != connection.fileno():
            with contextlib.suppress(OSError):  # that of the listing itself has been closed
                os.close(number)
    calls = Calls(path, name, calling, lambda **found: connection.send_bytes(json.dumps(found).encode()))
    known: dict[str, Callable[..., None]] = {"look": calls.look, "see": calls.see, "remove": calls.remove}
    try:
        while True:
            what, arguments = json.loads(connection.recv_bytes())
            known[what](*arguments)
    except (EOFError, OSError):  # the worker is done, or gone
        if calls.made:
            calls.unlink()
