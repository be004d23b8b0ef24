"""Digests of files, which a node keeps from one run to the next: a library of 2 GB need not be read each time.

A file whose inode, size, and times of change are the same has the same content. (A user can set the time of
modification, but not that of the last change of the inode.) The cache is a file in the temporary folder, in a folder
that only its user may read and write; without one, or with a damaged one, files are read again.
"""

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable

NAME = "digests.json"
MOST = 50_000
"""Digests that are kept, in some 5 MB; above that those of earlier runs go."""
SETTLED_S = 2.0
"""A file that changed less than this before it was read may change again within one tick of the file system's clock:
its digest is not kept. (ext4 and xfs: milliseconds; NFS and FAT: 1 to 2 s.)"""
LARGEST = 16 << 20
"""The most bytes of a cache that are read."""


class DigestCache:
    """Answers from the cache, or reads the file, as long as there is time."""

    def __init__(self, within_s: float, folder: str = "") -> None:
        self._within_s, self._end = within_s, time.monotonic() + within_s
        self._folder = folder or os.path.join(_temporary(), f"preflight-{os.geteuid()}")
        self._before = self._load()
        self._used: dict[str, str] = {}
        self._is_new = False
        self._lock = threading.Lock()

    def digest(self, path: str, kind: str, read: Callable[[str], str]) -> str:
        """What `read(path)` returns, now or earlier. `kind`: which digest it is. Raises OSError."""
        about = os.stat(path)
        times = f"{about.st_mtime_ns}.{about.st_ctime_ns}"
        key = f"{kind}:{about.st_dev}.{about.st_ino}.{about.st_size}.{times}"
        known = self._used.get(key) or self._before.get(key)
        is_new = known is None
        digest = read(path) if known is None else known
        if is_new and time.time() - about.st_ctime < SETTLED_S:
            return digest
        with self._lock:
            self._used[key] = digest
            self._is_new = self._is_new or is_new
        return digest

    def in_time(self) -> None:
        """Raises TimeoutError, an OSError, once the time for reading is over."""
        if time.monotonic() > self._end:
            raise TimeoutError(f"the files could not be read within {self._within_s:g} s")

    def save(self) -> None:
        """Writes what is new; where that fails, the next run reads the files again."""
        if not self._is_new:
            return
        kept = dict([*self._before.items(), *self._used.items()][-MOST:])
        beside = os.path.join(self._folder, f"{NAME}.{os.getpid()}")
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            if not self._is_ours():
                return
            with contextlib.suppress(FileNotFoundError):  # of an earlier process with this number
                os.unlink(beside)
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(handle, "w") as file:
                json.dump(kept, file)
            os.replace(beside, os.path.join(self._folder, NAME))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(beside)

    def _is_ours(self) -> bool:
        """Whether nobody else can have written into the folder."""
        about = os.lstat(self._folder)
        return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077

    def _load(self) -> dict[str, str]:
        try:
            if not self._is_ours():
                return {}
            handle = os.open(os.path.join(self._folder, NAME), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(handle, "rb") as file:
                is_file = stat.S_ISREG(os.fstat(handle).st_mode)
                found = json.loads(file.read(LARGEST)) if is_file else {}
        except (OSError, ValueError, RecursionError):
            return {}
        return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:  # none can be written to
        return os.devnull


def sha1(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
