"""The job's Python ranks on this host, as their records tell: which live, and when and how each was gone."""

import contextlib
import ctypes
import json
import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from preflight.results import report

LONGEST = 1 << 20
"""Bytes of a record that are read."""
SELDOM_S = 5.0
"""Between two listings of the records, beside the kernel's word: a folder on shared storage may hold a thousand."""
_MOVED_TO = 0x80
"""inotify(7): records appear by rename."""
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class WatchedRank:
    """A process that has left a record."""

    path: str
    pid: int
    rank: int
    descriptor: int
    """A pidfd: readable once the process has ended; -1 then."""


class Ranks:
    """Of this host."""

    def __init__(self, folder: str) -> None:
        self._folder, self._node = folder, os.uname().nodename
        self._namespace = os.readlink("/proc/self/ns/pid")
        self._seen: dict[str, WatchedRank | None] = {}
        self.latest_event = self._looked = time.monotonic()
        """When a rank was last seen to come or go."""
        self._news: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        _libc.inotify_add_watch(self._news, os.fsencode(os.path.join(folder, "records")), _MOVED_TO)

    @property
    def came(self) -> bool:
        """Whether one of them was ever seen."""
        return bool(self._seen)

    @property
    def living(self) -> list[WatchedRank]:
        """In the order of ranks."""
        return sorted(
            (rank for rank in self._seen.values() if rank and rank.descriptor >= 0), key=lambda rank: rank.rank
        )

    @property
    def descriptors(self) -> list[int]:
        """To be waited for, and handed to `note`."""
        own = [self._news] if self._news >= 0 else []
        return [*own, *(rank.descriptor for rank in self.living)]

    def due_s(self) -> float:
        """Seconds until `look` wants to be called."""
        return max(0.0, self._looked + SELDOM_S - time.monotonic())

    def look(self) -> None:
        """For ranks that have come."""
        self._looked = time.monotonic()
        with contextlib.suppress(OSError):
            for name in os.listdir(os.path.join(self._folder, "records")):
                if name.startswith(f"{self._node}.") and name.endswith(".json") and name not in self._seen:
                    self._seen[name] = self._begin(os.path.join(self._folder, "records", name))
                    self.latest_event = time.monotonic()

    def _begin(self, path: str) -> WatchedRank | None:
        record = read(path)
        if record is None or record.get("pid_namespace") != self._namespace:
            return None
        try:
            return WatchedRank(path, record["pid"], record["rank"], os.pidfd_open(record["pid"]))
        except OSError:  # it was gone before it was seen
            _add(path, {"gone": time.time(), "status": None})
            return None

    def note(self, ready: Sequence[int]) -> None:
        """`ready`: descriptors that have become readable. When a rank was gone is noted, and how, where the kernel
        still knows: the first one matters."""
        now = time.time()
        if self._news in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._news, 1 << 16)
            self.look()
        for rank in self.living:
            if rank.descriptor in ready:
                ended = {"gone": now, "status": _status(rank.pid)}
                os.close(rank.descriptor)
                rank.descriptor, self.latest_event = -1, time.monotonic()
                _add(rank.path, ended)

    def forget_recorders(self) -> None:
        """What they were asked for. A rank that has raised has written its own."""
        for rank in filter(None, self._seen.values()):
            record = read(rank.path)
            if record and not {"exception", "thread_exception"} & record.keys():
                with contextlib.suppress(OSError):
                    os.unlink(recorder(self._folder, rank))

    def finish(self) -> None:
        """After the job's end."""
        self.look()
        if descriptors := self.descriptors:
            poll = select.poll()
            for descriptor in descriptors:
                poll.register(descriptor, select.POLLIN)
            self.note([descriptor for descriptor, _ in poll.poll(0)])


def recorder(folder: str, rank: WatchedRank) -> str:
    """Path of its flight recorder, once it has been asked for it."""
    return os.path.join(folder, "recorded", f"{os.uname().nodename}.{rank.pid}.rank-{rank.rank}.json")


def read(path: str) -> dict[str, Any] | None:
    """A record, or None where it is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            record = json.loads(file.read(LONGEST))
        return record if isinstance(record["pid"], int) and isinstance(record["rank"], int) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _add(path: str, more: dict[str, Any]) -> None:
    """Its writer has ended."""
    record = read(path)
    if record is not None:
        with contextlib.suppress(OSError):
            report.write(path, json.dumps({**record, **more}))


def _status(pid: int) -> int | None:
    """Its exit code, or minus its signal, as long as its parent has not asked for it (proc(5), field 52)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return os.waitstatus_to_exitcode(int(fields[49])) if fields[0] in ("Z", "X") else None
    except (OSError, IndexError, ValueError):
        return None
