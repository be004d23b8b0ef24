"""Files and folders that may not be there, such as those of /proc and /sys."""

import os


def read(path: str) -> str:
    """What stands in a file, without the space around it; "" where it cannot be read, as the speed of an interface that
    is down. Bytes that are no UTF-8 are replaced."""
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def entries(path: str) -> list[str]:
    """The names in a folder, sorted; [] where it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat (proc(5)) from the third on, the state; [] where there is no such process."""
    return read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def state_of(pid: int) -> str:
    """The state letter of a process (proc(5)): R, S, D, T, Z ...; "" where there is no such process."""
    return "".join(stat_of(pid)[:1])


def core_wait_s() -> float:
    """For how long this thread has waited in the run queue since it began (sched-stats.rst of the kernel); 0 where the
    kernel does not count that."""
    try:
        return int(read("/proc/thread-self/schedstat").split()[1]) / 1e9
    except (IndexError, ValueError):
        return 0.0
