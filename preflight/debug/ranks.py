"""The job's Python ranks on this host, by their records: which are alive, and when and how each one ended."""

import contextlib
import ctypes
import json
import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from preflight.explain.artifacts.processes import read_record
from preflight.results import report_files
from preflight.sdk.files import stat_of

SELDOM_S = 5.0
"""Between two listings of the records, besides the kernel's events: a folder on shared storage may hold a thousand."""
_MOVED_TO = 0x80
"""inotify(7): records appear by rename. Polling would be too late for a short-lived rank: how it ended is known only
until its parent asks."""
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class WatchedRank:
    """A process that has written a record."""

    path: str
    pid: int
    rank: int
    descriptor: int
    """A pidfd: readable once the process has ended; -1 then."""


class Ranks:
    def __init__(self, folder: str) -> None:
        self._folder, self._node = folder, os.uname().nodename
        self._records = os.path.join(folder, "records")
        self._namespace = os.readlink("/proc/self/ns/pid")
        self._seen: dict[str, WatchedRank | None] = {}
        self.latest_event = self._listed = time.monotonic()
        """When a rank last started or ended."""
        self._events: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        _libc.inotify_add_watch(self._events, os.fsencode(self._records), _MOVED_TO)

    @property
    def any_seen(self) -> bool:
        return bool(self._seen)

    @property
    def living(self) -> list[WatchedRank]:
        """In the order of ranks."""
        return sorted((rank for rank in self._seen.values() if rank and rank.descriptor >= 0), key=lambda r: r.rank)

    @property
    def descriptors(self) -> list[int]:
        """To wait for; those that are readable are passed to `note`."""
        return [*[self._events] * (self._events >= 0), *(rank.descriptor for rank in self.living)]

    def due_s(self) -> float:
        """Seconds until the next listing."""
        return max(0.0, self._listed + SELDOM_S - time.monotonic())

    def list_records(self) -> None:
        self._listed = time.monotonic()
        with contextlib.suppress(OSError):
            for name in os.listdir(self._records):
                if name.startswith(f"{self._node}.") and name.endswith(".json") and name not in self._seen:
                    self._seen[name] = self._begin(os.path.join(self._records, name))
                    self.latest_event = time.monotonic()

    def _begin(self, path: str) -> WatchedRank | None:
        record = read_record(path)
        if not record or record.get("pid_namespace") != self._namespace:
            return None
        try:
            return WatchedRank(path, record["pid"], record["rank"], os.pidfd_open(record["pid"]))
        except OSError:  # it ended before it was seen
            _add(path, {"gone": time.time(), "status": None})
            return None

    def note(self, readable: Sequence[int]) -> None:
        """Adds to the records of ended ranks when they ended, and how, if the kernel still knows."""
        now = time.time()
        if self._events in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(self._events, 1 << 16)
            self.list_records()
        for rank in self.living:
            if rank.descriptor in readable:
                ended = {"gone": now, "status": _status(rank.pid)}
                os.close(rank.descriptor)
                rank.descriptor, self.latest_event = -1, time.monotonic()
                _add(rank.path, ended)

    def forget_recorders(self) -> None:
        """Removes the flight recorders that were asked for. A rank that has raised has written its own."""
        for rank in filter(None, self._seen.values()):
            record = read_record(rank.path)
            if record and not {"exception", "thread_exception"} & record.keys():
                with contextlib.suppress(OSError):
                    os.unlink(recorder_path(self._folder, rank))

    def finish(self) -> None:
        self.list_records()
        poll = select.poll()
        for descriptor in self.descriptors:
            poll.register(descriptor, select.POLLIN)
        self.note([descriptor for descriptor, _ in poll.poll(0)])


def recorder_path(folder: str, rank: WatchedRank) -> str:
    """The path of a rank's flight recorder, once it was asked for it."""
    return os.path.join(folder, "recorded", f"{os.uname().nodename}.{rank.pid}.rank-{rank.rank}.json")


def _add(path: str, more: dict[str, Any]) -> None:
    """Adds to a record whose writer has ended."""
    if record := read_record(path):
        with contextlib.suppress(OSError):
            report_files.write(path, json.dumps({**record, **more}))


def _status(pid: int) -> int | None:
    """Its exit code, or minus its signal; None once its parent has asked for it (proc(5), field 52)."""
    try:
        fields = stat_of(pid)
        return os.waitstatus_to_exitcode(int(fields[49])) if fields[0] in ("Z", "X") else None
    except (IndexError, ValueError):
        return None
