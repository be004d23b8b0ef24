"""The calls that touch a path. They run in a Probe, since they may hang (path_probe.py)."""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypedDict

from preflight.check import Probe
from preflight.checks.node.shared import disks
from preflight.checks.node.storage import mounts

Found = dict[str, Any]
TRIES = 5
BUSY_STAT_MS, BUSY_FSYNC_MS = 10.0, 50.0
"""Half of what node.storage never calls slow. A slower try may have waited for a CPU, and is repeated."""
BUSY_S, PAUSE_S = 1.0, 0.05
"""How long to repeat, and the pause between tries: on a busy machine a process waits tens of milliseconds (scheduler
time slices) for each turn, but gets some; a slow path stays slow."""
SIZE = 4096
"""Bytes of the file; each try rewrites them."""
AGAIN_S = 0.25
ONCE = (errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
"""Errors of object-store clients for a second write, or one after an fsync: mountpoint-s3 only writes sequentially,
until an fsync (its doc/SEMANTICS.md)."""
NO_FSYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS)
"""Errors of file systems without fsync (fsync(2)); FUSE returns ENOSYS."""


class Failed(TypedDict):
    """A call that failed, with its errno(3) name."""

    call: str
    error: str
    text: str


class Calls:
    """All calls on one path. The generators yield what they find, as keys of PathFacts."""

    def __init__(self, path: str, name: str) -> None:
        """`name`: the file to create in the path."""
        self._path, self._name, self._file = path, name, os.path.join(path, name)
        self._now = ""
        self._exists = False

    def _call(self, name: str) -> None:
        self._now = name
        Probe.doing(name)

    def look(self, keep: bool) -> Iterator[Found]:
        """`keep`: leave the file for the other nodes to see."""
        failed: Failed | None = None
        try:
            yield from self._look()
        except OSError as error:
            failed = _failed(self._now, error)
        if self._exists and (failed or not keep):
            yield from self.remove()
        yield {"failed": failed}

    def _look(self) -> Iterator[Found]:
        self._call("open")
        folder = self._open()
        yield {"mount": mounts.of_descriptor(folder), "opened": True}
        self._call("stat")
        yield {"stat_ms": _best_and_worst(self._look_ups())}
        self._call("statvfs")
        about = os.fstatvfs(folder)
        read_only = bool(about.f_flag & os.ST_RDONLY)
        size, free, inodes = map(disks.rounded, disks.room(about))
        yield {"size_mib": size, "free_mib": free, "inodes": inodes, "read_only": read_only}
        if not read_only:
            yield {**self._write(), "written": True}

    def _open(self) -> int:
        """Opens for reading if allowed: that makes an automounter mount what is missing."""
        try:
            return os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        except PermissionError:
            return os.open(self._path, os.O_PATH | os.O_DIRECTORY)

    def _look_ups(self) -> list[float]:
        """Milliseconds of look-ups of names that do not exist."""
        times, end = list[float](), time.monotonic() + BUSY_S
        while len(times) < TRIES or _may_be_busy(times, BUSY_STAT_MS, end):
            times.append(_timed(partial(self._miss, len(times))))
        return times

    def _miss(self, number: int) -> None:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            os.stat(f"{self._file}-{number}")

    def _write(self) -> Found:
        writes, syncs, end = list[float](), list[float](), time.monotonic() + BUSY_S
        self._call("create")
        descriptor = os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY, 0o600)
        self._exists = True
        try:
            while len(writes) < TRIES or _may_be_busy(syncs, BUSY_FSYNC_MS, end):
                write, sync = self._write_once(descriptor)
                writes.append(write)
                syncs += [] if sync is None else [sync]
        except OSError as error:
            if not writes or error.errno not in ONCE:
                os.close(descriptor)
                raise
        self._call("close")  # NFS reports a full disk here
        os.close(descriptor)
        return {"write_ms": _best_and_worst(writes), "fsync_ms": _best_and_worst(syncs)}

    def _write_once(self, descriptor: int) -> tuple[float, float | None]:
        """(milliseconds of the write, of the fsync or None without one)."""
        content = _content(self._name)
        self._call("write")
        write = _timed(lambda: os.pwrite(descriptor, content, 0))
        self._call("fsync")
        try:
            return write, _timed(lambda: os.fsync(descriptor))
        except OSError as error:
            if error.errno not in NO_FSYNC:
                raise
            return write, None

    def see(self, names: dict[str, str], within_s: float) -> Iterator[Found]:
        """Looks for others' files by their names, {rank: name}. A client may cache the server's first answer for a
        while, so never look before the file exists, and only a few times after."""
        end = time.monotonic() + within_s
        self._call("read")
        seen = {rank: self._read(name) for rank, name in names.items()}
        while "no" in seen.values() and time.monotonic() + AGAIN_S < end:
            time.sleep(AGAIN_S)
            seen = {rank: self._read(names[rank]) if answer == "no" else answer for rank, answer in seen.items()}
        yield {"seen": seen}

    def _read(self, name: str) -> str:
        try:
            with open(os.path.join(self._path, name), "rb", buffering=0) as file:
                return "yes" if file.read(SIZE) == _content(name) else "no"
        except FileNotFoundError:
            return "no"
        except PermissionError:  # another user owns it, but the name is ours
            return "yes"
        except OSError as error:
            return os.strerror(error.errno or 0)

    def remove(self) -> Iterator[Found]:
        self._call("unlink")
        yield {"left": self._unlink()}

    def remove_what_was_made(self) -> None:
        if self._exists:
            self._unlink()

    def _unlink(self) -> str:
        """The path that could not be removed, or ""."""
        self._exists = False
        try:
            os.unlink(self._file)
        except FileNotFoundError:
            return ""
        except OSError:
            return self._file
        return ""


def _content(name: str) -> bytes:
    """The file's own name, repeated: a reader that gets it has the writer's bytes."""
    return (name.encode() * SIZE)[:SIZE]


def _failed(call: str, error: OSError) -> Failed:
    number = error.errno or 0
    return {"call": call, "error": errno.errorcode.get(number, str(number)), "text": os.strerror(number)}


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def _may_be_busy(times: list[float], slow_ms: float, end: float) -> bool:
    """Whether to try again: no try was quick, maybe for lack of a CPU."""
    if not times or min(times) < slow_ms or time.monotonic() > end:
        return False
    time.sleep(PAUSE_S)
    return True


def _best_and_worst(times: list[float]) -> list[float]:
    return [round(min(times), 3), round(max(times), 3)] if times else []
