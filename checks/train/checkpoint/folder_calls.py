"""The calls that touch the folder for checkpoints. They run in a Probe per rank, since they may hang (folder.py)."""

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from typing import Any, TypedDict

from preflight.check import Probe

Found = dict[str, Any]
NOT_THERE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without a call (fsync(2), rename(2)); FUSE returns ENOSYS."""
PIECE = 16 * 2**20
"""Bytes to write and sync at once: large enough to make syncs cheap, and one is enough to notice a slow disk."""
AGAIN_S = 0.25
SEEN = b"written by the first node"
LOOK = 2**20
"""Bytes that each node writes and reads back, whatever else it is to measure there."""


class FailedCall(TypedDict):
    """A call that failed, with its errno(3) name."""

    call: str
    error: str
    text: str


class WrongByte(TypedDict):
    """The first byte that was read back and is not what was written."""

    file: str
    offset: int
    read: int
    written: int


class FolderCalls:
    """All calls in one folder. Everything is created in a new folder there, `tree`."""

    def __init__(self, folder: str, tree: str) -> None:
        self._folder, self.tree = folder, tree
        self._now = ""
        self._piece = b""
        """What was written last, again and again."""

    def _call(self, name: str) -> None:
        self._now = name
        Probe.doing(name)

    def look(self) -> Iterator[Found]:
        """Creates the tree, and tries once what every checkpoint needs. Yields parts of FolderFacts."""
        try:
            yield from self._look()
        except OSError as error:
            yield {"failed": _failed(self._now, error)}

    def _look(self) -> Iterator[Found]:
        self._call("stat")
        about = os.stat(os.path.join(self._folder, "."))
        yield {"owner": f"it is user {about.st_uid}'s, mode {about.st_mode & 0o7777:o}; this is user {os.geteuid()}"}
        self._call("statvfs")
        room = os.statvfs(self._folder)
        yield {"free": room.f_bavail * room.f_frsize}
        self._call("mkdir")
        with contextlib.suppress(FileExistsError):  # another node's, on a file system that all share
            os.mkdir(self.tree, 0o700)
            yield {"made": True}
        path = os.path.join(self.tree, f"look-{os.urandom(4).hex()}")
        self._call("create")
        content = os.urandom(LOOK)
        with open(path, "xb") as file:
            self._call("write")
            file.write(content)
            file.flush()
            yield {"fsync": self._refused("fsync", lambda: os.fsync(file.fileno()))}
        self._call("read")
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            yield {"wrong": _wrong_byte(path, 0, file.read(LOOK), content)}
        yield {"rename": self._refused("rename", lambda: os.rename(path, f"{path}ed"))}
        self._call("unlink")
        for name in (path, f"{path}ed"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)

    def _refused(self, name: str, call: Any) -> str:
        """The error of a call that the file system lacks, or ""."""
        self._call(name)
        try:
            call()
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
            return os.strerror(error.errno)
        return ""

    def leave(self, name: str) -> Found:
        """Leaves a file for the other nodes to see."""
        self._call("write")
        try:
            with open(os.path.join(self.tree, name), "xb") as file:
                file.write(SEEN)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return {"failed": _failed(self._now, error)}
        return {}

    def see(self, name: str, within_s: float) -> Found:
        """Whether another node's file is visible here."""
        self._call("read")
        end = time.monotonic() + within_s
        while not (seen := self._sees(name)) and time.monotonic() + AGAIN_S < end:
            time.sleep(AGAIN_S)
        return {"seen": seen}

    def _sees(self, name: str) -> bool:
        try:
            with open(os.path.join(self.tree, name), "rb") as file:
                return file.read() == SEEN
        except OSError:
            return False

    def write(self, name: str, size: int, within_s: float) -> Found:
        """Writes `size` bytes, or as many as fit into the time; yields bytes and seconds."""
        piece = self._piece = os.urandom(PIECE // 16) * 16
        self._call("write")
        done, start = 0, time.monotonic()
        try:
            with open(os.path.join(self.tree, name), "wb", buffering=0) as file:
                while done < size and (not done or time.monotonic() < start + within_s):
                    done += file.write(piece[: size - done])
                    self._call("fsync")
                    self._refused("fsync", lambda: os.fsync(file.fileno()))
                self._call("close")
        except OSError as error:
            return {"failed": _failed(self._now, error)}
        return {"written": done, "write_s": time.monotonic() - start}

    def read(self, name: str, within_s: float) -> Found:
        """The same for reading, and whether it is what was written; from the disk or server if the kernel drops its
        cache of the file."""
        self._call("open")
        done, start, checked_s = 0, time.monotonic(), 0.0
        path, wrong = os.path.join(self.tree, name), None
        try:
            with open(path, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                self._call("read")
                start = time.monotonic()
                while (piece := file.read(PIECE)) and time.monotonic() < start + within_s:
                    came = time.monotonic()
                    wrong = wrong or _wrong_byte(path, done, piece, self._expected(done, len(piece)))
                    checked_s += time.monotonic() - came
                    done += len(piece)
            seconds = time.monotonic() - start - checked_s
            self._call("unlink")
            os.unlink(path)
        except OSError as error:
            return {"failed": _failed(self._now, error)}
        return {"read": done, "read_s": seconds, "wrong": wrong}

    def _expected(self, at: int, size: int) -> bytes:
        """What was written there; a read may end in the middle of a piece. (Bytes are compared with a memoryview one
        by one.)"""
        begin = at % PIECE
        return self._piece if (begin, size) == (0, PIECE) else (self._piece * 2)[begin : begin + size]

    def remove(self) -> Found:
        """Removes the tree; yields what could not be removed."""
        self._call("unlink")
        self.remove_tree()
        return {"left": self.tree if os.path.lexists(self.tree) else ""}

    def remove_tree(self) -> None:
        """Removes the tree even if the rank was killed."""
        shutil.rmtree(self.tree, ignore_errors=True)


def _wrong_byte(path: str, at: int, read: bytes, written: bytes) -> WrongByte | None:
    if read == written:
        return None
    first = next((place for place, pair in enumerate(zip(read, written, strict=False)) if pair[0] != pair[1]), None)
    if first is None:  # it is shorter
        first = len(read)
    got = read[first] if first < len(read) else -1
    return {"file": os.path.basename(path), "offset": at + first, "read": got, "written": written[first]}


def _failed(call: str, error: OSError) -> FailedCall:
    number = error.errno or 0
    return {"call": call, "error": errno.errorcode.get(number, str(number)), "text": os.strerror(number)}
