"""The file systems that a job writes to, and how much room is left on them."""

import os
import tempfile
from collections.abc import Iterator
from typing import TypedDict

from preflight.check import Context

SHM = "/dev/shm"  # noqa: S108 -- where shm_open creates its files
TMP = "/tmp"  # noqa: S108 -- the default of TMPDIR
PLENTY = 2**14
"""MiB, or files: smaller numbers are kept exact."""


class Disk(TypedDict):
    called: str
    path: str
    free_mib: int | None
    inodes: int | None
    """How many files can still be created; None if the file system does not count them."""
    error: str
    """The error of a write, or ""."""


def written_to(ctx: Context) -> Iterator[Disk]:
    """The temporary folder, and the current folder if it is elsewhere and writable."""
    temporary = ctx.environ.get("TMPDIR") or TMP
    yield _disk(ctx, "TMPDIR" if ctx.environ.get("TMPDIR") else "the temporary folder", temporary)
    try:
        current = os.getcwd()
        same = os.stat(current).st_dev == os.stat(temporary).st_dev
    except OSError:
        return
    if not same and os.access(current, os.W_OK):
        yield _disk(ctx, "the current folder", current)


def _disk(ctx: Context, called: str, path: str) -> Disk:
    ctx.doing("writing 4 KiB", file=path)
    error = ""
    try:
        with tempfile.TemporaryFile(dir=path, buffering=0) as file:
            file.write(bytes(4096))
    except OSError as problem:
        error = os.strerror(problem.errno or 0)
    _, free, inodes = space(path)
    return {"called": called, "path": path, "free_mib": rounded(free), "inodes": rounded(inodes), "error": error}


def space(path: str) -> tuple[int | None, int | None, int | None]:
    """Like `room`; 0 if nothing is mounted."""
    try:
        return room(os.statvfs(path))
    except OSError:
        return 0, 0, None


def room(about: os.statvfs_result) -> tuple[int | None, int | None, int | None]:
    """(MiB, free MiB, files that can still be created). None if not counted: a FUSE file system may report 0 of 0."""
    unit = about.f_frsize or about.f_bsize
    size, free = about.f_blocks * unit >> 20, about.f_bavail * unit >> 20
    inodes = about.f_favail if about.f_files else None
    return (size, free, inodes) if about.f_blocks else (None, None, inodes)


def rounded(number: int | None) -> int | None:
    """Rounds large numbers down to a power of two: similar nodes then have equal facts, which are sent once."""
    return number if number is None or number < PLENTY else 1 << number.bit_length() - 1
