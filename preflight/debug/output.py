"""The job's output: passed on byte for byte; its beginning and its end are kept."""

import contextlib
import os
import select
import threading
import time

HEAD, TAIL = 32 << 20, 16 << 20
"""Bytes that are kept of the beginning, and at least of the end: the cause may be in either."""
IDLE_S, DRAIN_S = 0.3, 30.0
"""After the job's end: a pipe that is silent for this long is held by a background process; and the longest wait for a
slow reader."""


class KeptOutput:
    """A stream's file: the first HEAD bytes in `path`, the last ones in path.before and path.last. If the disk is full,
    the rest is dropped and the job continues."""

    def __init__(self, path: str, head: int = HEAD, tail: int = TAIL) -> None:
        self._path, self._tail = path, tail
        self._room, self._dropped, self.failed = head, 0, ""
        self._begin(path, head)

    def write(self, data: bytes) -> None:
        while data and not self.failed:
            if not self._room:
                self._rotate()
                continue
            now, data = data[: self._room], data[self._room :]
            try:
                self._file.write(now)
            except OSError as error:
                self.failed = error.strerror or str(error)
            self._room -= len(now)

    def _rotate(self) -> None:
        last, before = f"{self._path}.last", f"{self._path}.before"
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._dropped += os.stat(before).st_size if os.path.exists(last) and os.path.exists(before) else 0
            if os.path.exists(last):
                os.replace(last, before)
        self._begin(last, self._tail)
        if self._dropped and not self.failed:
            self._file.write(b"[preflight debug kept nothing of %d bytes before this]\n" % self._dropped)

    def _begin(self, path: str, room: int) -> None:
        try:
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115 -- lives as long as the job
        except OSError as error:
            self.failed = error.strerror or str(error)
        self._room = room


class Stream:
    """One of the job's pipes, in its own thread: a stdout that is not read must not block stderr."""

    def __init__(self, source: int, target: int | None, kept: KeptOutput) -> None:
        """`target` None: it is only kept. `source` is closed at the end, and when the reader of `target` has gone, so
        that the job gets its SIGPIPE."""
        self.kept = kept
        self.latest = time.monotonic()
        self._source, self._target = source, target
        self._reads = True
        self._thread = threading.Thread(target=self._pass_on, name="preflight-output", daemon=True)
        self._thread.start()

    def _pass_on(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._source, 1 << 16):
                self.latest, self._reads = time.monotonic(), False
                self.kept.write(data)
                if self._target is not None:
                    _write(self._target, data)
                self.latest, self._reads = time.monotonic(), True
        os.close(self._source)

    def finish(self, end: float) -> None:
        """After the job's end: waits until everything is passed on, or nothing more comes, or `end` (monotonic)."""
        while self._thread.is_alive() and time.monotonic() < end:
            if self._reads and time.monotonic() - self.latest > IDLE_S and not _has_data(self._source):
                return
            self._thread.join(0.01)


def _write(target: int, data: bytes) -> None:
    """All of it. Raises OSError where the reader has gone."""
    while data:
        try:
            data = data[os.write(target, data) :]
        except BlockingIOError:  # another process made the terminal non-blocking
            select.select([], [target], [], 1.0)


def _has_data(source: int) -> bool:
    try:
        return bool(select.select([source], [], [], 0)[0])
    except (OSError, ValueError):
        return False


def is_one(first: int, second: int) -> bool:
    """Whether two descriptors lead to one file, pipe or terminal: then one pipe keeps the order of the output."""
    try:
        this, other = os.fstat(first), os.fstat(second)
    except OSError:
        return False
    return (this.st_dev, this.st_ino) == (other.st_dev, other.st_ino)
