"""Samples the stacks and flight recorders of a silent job's ranks on this host, to see whether they change."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field

from preflight.core.exceptions import Frame
from preflight.debug.environment import SOCKETS
from preflight.debug.ranks import WatchedRank, recorder_path
from preflight.engine import child
from preflight.explain.artifacts import processes
from preflight.sdk import files

TELL = signal.SIGRTMAX - 7
"""injected/preflight_debug_rank.py answers it with all stacks."""
ANSWER_S, RECORDER_S, PY_SPY_S, SAMPLE_S = 1.0, 2.0, 5.0, 30.0
"""Time for a process to write its stacks (in C, even while Python's lock is held), for the flight recorders (written
once a second at most), for py-spy, and for a whole sample."""
QUIET_S = 0.05
"""An answer that has not grown for this long is complete."""
WORKERS = 8
"""Children of a rank (workers of its DataLoader) that are asked, too."""


@dataclass
class StackSample:
    places: dict[int, list[Frame]] = field(default_factory=dict)
    """By pid: the main thread's frames, the innermost first, without those inside a collective or a DataLoader, which
    loop while they wait. A process that did not answer is missing."""
    recorded: dict[int, str] = field(default_factory=dict)
    """By pid of a rank: its last entry in the flight recorder."""

    def moved_since(self, before: "StackSample") -> list[int]:
        """Pids that are at another place than before, or in another collective."""
        moved = {pid for pid, frames in self.places.items() if frames != before.places.get(pid, frames)}
        return sorted(moved | {pid for pid, last in self.recorded.items() if last != before.recorded.get(pid, last)})


def sample_stacks(ranks: list[WatchedRank], folder: str, number: int) -> StackSample:
    """Asks all; their answers are in stacks/ and recorded/ afterwards. `number`: of the sample, from 1."""
    end, sample = time.monotonic() + SAMPLE_S, StackSample()
    for rank in ranks:
        for pid in (rank.pid, *_workers(rank.pid)[:WORKERS]):
            if frames := _ask(pid, rank, _path(folder, pid, rank), number, end):
                sample.places[pid] = processes.outside(frames)
    sample.recorded = _read_recorders(_ask_recorders(ranks, folder), time.monotonic() + RECORDER_S)
    return sample


def _path(folder: str, pid: int, rank: WatchedRank) -> str:
    """Where it answers: a spawned process in its own file, a forked one in its rank's."""
    own, ranks = (os.path.join(folder, "stacks", f"{os.uname().nodename}.{number}.stack") for number in (pid, rank.pid))
    return own if os.path.exists(own) else ranks


def _ask(pid: int, rank: WatchedRank, path: str, number: int, end: float) -> list[Frame]:
    """A process's main thread. A head in the file says whose stack follows, and which state the process was in."""
    look = files.settled_state_of if time.monotonic() < end else files.state_of
    state = look(pid) or None
    head = {"rank": rank.rank, "pid": pid, "rank_pid": rank.pid, "node": os.uname().nodename, "look": number}
    more = {"time": time.time(), "state": state, "kernel": child.wait_channel_of(pid)}
    try:
        with open(path, "ab") as file:
            file.write(f"{processes.HEAD}{json.dumps({**head, **more})}\n".encode())
            file.flush()
            start = file.tell()
            if state in ("R", "S") and time.monotonic() < end:
                answered = _has_handler(pid) and _wait_for_answer(pid, path, start)
                if not answered:
                    file.write(_py_spy(pid))
        with open(path, "rb") as file:
            file.seek(start)
            return processes.main_thread(file.read(1 << 20).decode(errors="replace"))
    except OSError:
        return []


def _wait_for_answer(pid: int, path: str, start: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, TELL)
    end, size, grown = time.monotonic() + ANSWER_S, start, time.monotonic()
    while time.monotonic() < end:
        if (now := os.stat(path).st_size) != size:
            size, grown = now, time.monotonic()
        elif size > start and time.monotonic() - grown > QUIET_S:
            break
        time.sleep(0.005)
    return size > start


def _has_handler(pid: int) -> bool:
    """TELL would kill a process without one."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/status") as file:
        caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
        return bool(int(caught, 16) >> (TELL - 1) & 1)
    return False


def _workers(pid: int) -> list[int]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        return [number for number in map(int, file.read().split()) if _has_handler(number)]
    return []


def _py_spy(pid: int) -> bytes:
    """Its output, if it is installed and permitted."""
    tool = shutil.which("py-spy")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if tool:
            command = [tool, "dump", "--full-filenames", "--pid", str(pid)]
            return subprocess.run(command, capture_output=True, timeout=PY_SPY_S).stdout
    return b""


def _ask_recorders(ranks: list[WatchedRank], folder: str) -> dict[int, str]:
    """A thread of each rank listens, once torch.distributed is imported. Returns the files to come, by pid."""
    awaited = {}
    for rank in ranks:
        path = recorder_path(folder, rank)
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            _connect(os.path.join(folder, SOCKETS), f"{os.uname().nodename}.{rank.pid}.sock")
            awaited[rank.pid] = path
    return awaited


def _connect(folder: str, name: str) -> None:
    """That is the question. A socket's path has 107 characters at most, so it is reached from an open folder. Raises
    OSError."""
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
            client.connect(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)


def _read_recorders(awaited: dict[int, str], end: float) -> dict[int, str]:
    """The last entry of each, which shows whether a rank progresses: its stack is often the same in each step. Ranks
    that do not answer (native code holds Python's lock; there is no group) have none."""
    last_entries: dict[int, str] = {}
    while awaited.keys() - last_entries.keys() and time.monotonic() < end:
        for pid in awaited.keys() - last_entries.keys():
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError, TypeError, RecursionError):
                with open(awaited[pid], encoding="utf-8") as file:
                    last = json.load(file)["entries"][-1]
                last_entries[pid] = json.dumps([last["record_id"], last["state"], last.get("retired")])
        time.sleep(0.02)
    return last_entries
