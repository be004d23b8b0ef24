"""Reads files and folders that may not exist, such as those of /proc and /sys."""

import os
import time

STUCK_S = 1.0
"""A read of a busy disk ends within this. What waits longer, waits for a device or a server that does not answer."""


def read(path: str) -> str:
    """The text of a file, stripped; "" if it cannot be read, like the speed of an interface that is down. Bytes that
    are not UTF-8 are replaced."""
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def entries(path: str) -> list[str]:
    """The names in a folder, sorted; [] if it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def stat_of(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat (proc(5)) from the third on, the state; [] where there is no such process. "self"
    and "thread-self" are taken, too."""
    return read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def state_of(pid: int | str) -> str:
    """The state letter of a process (proc(5)): R, S, D, T, Z ...; "" where there is no such process."""
    return "".join(stat_of(pid)[:1])


def settled_state_of(pid: int | str) -> str:
    """`state_of`, with D only for a process that has been in one uninterruptible sleep for STUCK_S, and S for one that
    moves on: each read of a busy disk is a short D."""
    end, before = time.monotonic() + STUCK_S, sleeps(pid)
    while (state := state_of(pid)) == "D":
        if sleeps(pid) != before:
            return "S"
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    return state


def sleeps(pid: int | str) -> str:
    """How often it has gone to sleep, or was sent to: lines of proc(5)'s status."""
    return " ".join(line for line in read(f"/proc/{pid}/status").splitlines() if "ctxt_switches" in line)


def core_wait_s() -> float:
    """How long this thread has waited in the run queue since its start (sched-stats.rst of the kernel); 0 if the kernel
    does not count that."""
    try:
        return int(read("/proc/thread-self/schedstat").split()[1]) / 1e9
    except (IndexError, ValueError):
        return 0.0
