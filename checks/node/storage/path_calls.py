"""The calls that touch a path, in the process that may hang in them (path_probe.py)."""

import contextlib
import errno
import mmap
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypedDict

from preflight.checks.node.shared.disks import rounded
from preflight.checks.node.storage import mounts

TRIES = 5
SIZE = 4096
"""Bytes of the file; each try writes them anew."""
AGAIN_S = 0.25
ONCE = (errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
"""What a client of an object store answers to a second write, or to one after an fsync: mountpoint-s3 writes in one
sequence, which an fsync ends (its doc/SEMANTICS.md)."""


class Failed(TypedDict):
    """A call that gave an error, by its name of errno(3)."""

    call: str
    error: str
    text: str


class Calls:
    """All calls on one path."""

    def __init__(self, path: str, name: str, calling: mmap.mmap, tell: Callable[..., None]) -> None:
        self._path, self._name, self._file = path, name, os.path.join(path, name)
        self._calling, self._tell = calling, tell
        self.made = False

    def _call(self, name: str) -> None:
        self._calling[:] = name.encode().ljust(16, b"\0")

    def look(self, keep: bool) -> None:
        """`keep`: the file stays, for the other nodes to see."""
        failed: Failed | None = None
        try:
            self._look()
        except OSError as error:
            failed = _failed(self._calling, error)
        if self.made and (failed or not keep):
            self.unlink()
        self._tell(failed=failed, done=True)

    def _look(self) -> None:
        self._call("open")
        folder = self._open()
        self._tell(mount=mounts.of_descriptor(folder), opened=True)
        self._call("stat")
        self._tell(stat_ms=_best_and_worst([_timed(partial(self._miss, number)) for number in range(TRIES)]))
        self._call("statvfs")
        about = os.fstatvfs(folder)
        read_only = bool(about.f_flag & os.ST_RDONLY)
        self._tell(**_room(about), read_only=read_only)
        if not read_only:
            self._write()
            self._tell(written=True)

    def _open(self) -> int:
        """For reading where that is allowed: it has an automounter mount what is missing."""
        try:
            return os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        except PermissionError:
            return os.open(self._path, os.O_PATH | os.O_DIRECTORY)

    def _miss(self, number: int) -> None:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            os.stat(f"{self._file}-{number}")

    def _write(self) -> None:
        times: list[tuple[float, float | None]] = []
        self._call("create")
        descriptor = os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY, 0o600)
        self.made = True
        try:
            while len(times) < TRIES:
                times.append(self._write_once(descriptor))
        except OSError as error:
            if not times or error.errno not in ONCE:
                os.close(descriptor)
                raise
        self._call("close")  # NFS tells of a full disk here
        os.close(descriptor)
        syncs = [sync for _, sync in times if sync is not None]
        self._tell(write_ms=_best_and_worst([write for write, _ in times]), fsync_ms=_best_and_worst(syncs))

    def _write_once(self, descriptor: int) -> tuple[float, float | None]:
        """Milliseconds of the write, and of the fsync where there is one."""
        content = _content(self._name)
        self._call("write")
        write = _timed(lambda: os.pwrite(descriptor, content, 0))
        self._call("fsync")
        with _where_there_is_one():
            return write, _timed(lambda: os.fsync(descriptor))
        return write, None

    def see(self, names: dict[str, str], within_s: float) -> None:
        """Looks for others' files by their names, {rank: name}. A server is asked at the first look, and a client may
        keep its answer for a while: there is no look before the file is there, and few after it."""
        end = time.monotonic() + within_s
        self._call("read")
        seen = {rank: self._read(name) for rank, name in names.items()}
        while "no" in seen.values() and time.monotonic() + AGAIN_S < end:
            time.sleep(AGAIN_S)
            seen = {rank: self._read(names[rank]) if told == "no" else told for rank, told in seen.items()}
        self._tell(seen=seen, done=True)

    def _read(self, name: str) -> str:
        try:
            with open(os.path.join(self._path, name), "rb", buffering=0) as file:
                return "yes" if file.read(SIZE) == _content(name) else "no"
        except FileNotFoundError:
            return "no"
        except PermissionError:  # another user's, but the name is ours
            return "yes"
        except OSError as error:
            return os.strerror(error.errno or 0)

    def remove(self) -> None:
        self.unlink()
        self._tell(done=True)

    def unlink(self) -> None:
        self._call("unlink")
        left = ""
        try:
            os.unlink(self._file)
        except FileNotFoundError:
            pass
        except OSError:
            left = self._file
        self.made = False
        with contextlib.suppress(OSError):  # the worker is gone
            self._tell(left=left)


def _content(name: str) -> bytes:
    """Its own name, again and again: a reader that gets it has the writer's bytes."""
    return (name.encode() * SIZE)[:SIZE]


def _failed(calling: mmap.mmap, error: OSError) -> Failed:
    number = error.errno or 0
    call = calling[:].rstrip(b"\0").decode()
    return {"call": call, "error": errno.errorcode.get(number, str(number)), "text": os.strerror(number)}


@contextlib.contextmanager
def _where_there_is_one() -> Iterator[None]:
    """Some file systems have no fsync: fsync(2), EROFS and EINVAL; FUSE without one answers ENOSYS."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS):
            raise


def _timed(call: Callable[[], object]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def _best_and_worst(times: list[float]) -> list[float]:
    return [round(min(times), 3), round(max(times), 3)] if times else []


def _room(about: os.statvfs_result) -> dict[str, int | None]:
    """Plenty is rounded as in node.limits. A file system that counts nothing (fuse) says 0 of 0."""
    unit = about.f_frsize or about.f_bsize
    size, free = (rounded(blocks * unit >> 20) for blocks in (about.f_blocks, about.f_bavail))
    counted = bool(about.f_blocks)
    inodes = rounded(about.f_favail) if about.f_files else None
    return {"size_mib": size if counted else None, "free_mib": free if counted else None, "inodes": inodes}
