"""Files in /dev/shm that were created during this run and that no process uses any more."""

import os
import re
from collections.abc import Iterator
from typing import TypedDict

SHM = "/dev/shm"  # noqa: S108 -- the kernel's own place
NAMES = re.compile(r"torch_(\d+)_|nccl-|psm_|sem\.(?:mp|loky)-")
"""Names used by torch, NCCL, and Python's shared memory and semaphores."""
MOST = 100
_FIRST_PIDS = 0xEFFFFFFC
"""The inode of the initial pid namespace (linux/proc_ns.h, PROC_PID_INIT_INO)."""


class Leftover(TypedDict):
    name: str
    size: int
    """Bytes."""
    sure: bool
    """False in a container, which may share the folder with processes it cannot see."""


def run_began() -> float:
    """When this rank started, in seconds since the epoch: its supervisor is the worker's parent."""
    import psutil

    return psutil.Process(os.getppid()).create_time()


def in_shared_memory(since: float) -> list[Leftover]:
    """Our user's files with such names, created since then, that no living process uses. Another job's are in use as
    long as it lives."""
    found = {name: size for name, size in _new_files(since) if NAMES.match(name)}
    used = _mapped() if found else set()
    sure = os.stat("/proc/self/ns/pid").st_ino == _FIRST_PIDS
    left = [name for name in sorted(found) if name not in used and not _is_of_a_living(name)]
    return [{"name": name, "size": found[name], "sure": sure} for name in left[:MOST]]


def _new_files(since: float) -> Iterator[tuple[str, int]]:
    try:
        entries = list(os.scandir(SHM))
    except OSError:
        return
    for entry in entries:
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError:  # it has just disappeared
            continue
        if about.st_uid == os.getuid() and about.st_ctime > since:
            yield entry.name, about.st_size


def _is_of_a_living(name: str) -> bool:
    """Whether its creator lives, by the name torch_<pid>_..."""
    found = NAMES.match(name)
    return bool(found and found[1] and os.path.exists(f"/proc/{found[1]}"))


def _mapped() -> set[str]:
    """Names of files that our user's living processes have mapped."""
    found: set[str] = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/maps", errors="replace") as file:
                found |= {line.rpartition(f"{SHM}/")[2].strip() for line in file if f" {SHM}/" in line}
        except OSError:  # another user's, or gone
            continue
    return found
