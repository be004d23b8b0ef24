"""Which limit of this host keeps a process from starting another one, a thread, or from opening a file."""

import errno
import os
import pwd
import re
import resource
from collections.abc import Iterator

from preflight.core import words
from preflight.sdk import cgroups
from preflight.sdk.files import entries, read

REFUSED = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of fork(2), clone(2), open(2), pipe(2) and socket(2) at a limit."""
SIGNS = re.compile(
    "Resource temporarily unavailable|can't start new thread|unable to start watchdog thread|pthread_create failed"
    "|Thread creation failed|Too many open files|Cannot allocate memory|could not be forked|fork: retry"
)
"""What Python, libgomp, OpenBLAS, the C++ library and shells print where a thread or a process was refused."""
THREADS = re.compile(
    "can't start new thread|unable to start watchdog thread|pthread_create failed|Thread creation failed|fork: retry"
)
"""The ones among them that nothing else than a limit makes (pthread_create(3), fork(2): EAGAIN)."""
CLOSE = 0.9
"""A user with this share of `ulimit -u` has had it all a moment ago: what was refused a thread has ended since."""
NEAR = 0.25
"""Where a thread was refused for sure. What had the rest may have ended, but with fewer it was another limit: clone(2)
gives EAGAIN also where no memory for a stack can be mapped (ulimit -v)."""
OWNERS = (
    (re.compile(r"slurm|job_\d+"), "Slurm's for this job"),
    (re.compile(r"docker|kubepods|libpod|crio|containerd|lxc"), "the container's (--pids-limit, podPidsLimit)"),
    (re.compile(r"([^/]+\.(?:service|scope|slice))(?:/|$)"), "systemd's TasksMax"),
)
"""Who sets pids.max, by the cgroup's path."""


def refusals(root: str = "") -> int:
    """How often a process or a thread was refused until now, by the cgroups around this process. Until Linux 6.10
    pids.events counts what was refused to a cgroup's own processes; since then, what the limits of a cgroup and of all
    below it have refused, and pids.events.local has only its own limit's share (cgroup-v2.rst, PID)."""
    counts = (_counted(f"{folder}/pids.events.local") for folder in _pids(root))
    known = [count for count in counts if count is not None]
    nearest = [_counted(f"{folder}/pids.events") or 0 for folder in _pids(root)[:1]]
    return sum(known or nearest)


def _counted(path: str) -> int | None:
    count = re.search(r"^max (\d+)$", read(path), re.MULTILINE)
    return int(count[1]) if count else None


def hit(before: int, printed: str = "", number: int | None = None) -> str:
    """The limit that was reached, in words: its value and who sets it; "" if none was. `before`: `refusals` at an
    earlier time. `printed`: what something printed or raised. `number`: an errno."""
    if number == errno.EMFILE or "Too many open files" in printed:
        return _open_files()
    if number == errno.ENFILE:
        return f"the host's fs.file-max ({read('/proc/sys/fs/file-max')}) open files are all in use"
    if number == errno.ENOMEM:
        return _of_memory()
    if refusals() > before:
        return _of_cgroup() or "a cgroup around this process refuses more processes (pids.max)"
    if number in REFUSED or SIGNS.search(printed):
        return _of_user(is_sure=bool(THREADS.search(printed))) or _of_host() or (_of_cgroup() if _is_full() else "")
    return ""


def _open_files() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"the {limit:,} open files that a process may have (ulimit -n) are all in use"


def _of_memory() -> str:
    """fork(2) and mmap(2) give ENOMEM by the host's rules for overcommitting, or where a cgroup has no memory left."""
    if read("/proc/sys/vm/overcommit_memory") == "2":
        return "the memory that the host commits to processes (vm.overcommit_memory 2, CommitLimit) is all in use"
    room = cgroups.memory()
    if room and room.limit:
        return f"memory is refused: {words.size(room.left)} of the cgroup's {words.size(room.limit)} are left"
    return "memory is refused: see free -m, and ulimit -v"


def _of_cgroup() -> str:
    limits = [(room.left, room.limit, folder) for folder, room in _rooms()]
    if not limits:
        return ""
    _, limit, folder = min(limits)
    return f"pids.max of the cgroup {folder} is {limit:,}, and all are in use; it is {owner_of(folder)}"


def owner_of(folder: str) -> str:
    """Who sets the limit of a cgroup."""
    return next((who for pattern, who in OWNERS if pattern.search(folder)), "set there")


def _is_full() -> bool:
    return any(room.left == 0 for _, room in _rooms())


def _rooms() -> Iterator[tuple[str, cgroups.Room]]:
    for folder in _pids(""):
        if room := cgroups.tasks_of(folder):
            yield folder, room


def _pids(root: str) -> list[str]:
    return cgroups.folders("pids", root)


def _of_user(*, is_sure: bool) -> str:
    """`is_sure`: also if most of what had them has ended since. root is exempt (setrlimit(2))."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY or not os.getuid():
        return ""
    if _threads_of(os.getuid()) < (NEAR if is_sure else CLOSE) * limit:
        return ""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return f"the {limit:,} processes and threads that user {name} may have on this host (ulimit -u) are all in use"


def _threads_of(user: int) -> int:
    count = 0
    for pid in filter(str.isdecimal, entries("/proc")):
        about = dict(re.findall(r"^(Uid|Threads):\s+(\d+)", read(f"/proc/{pid}/status"), re.MULTILINE))
        if about.get("Uid") == str(user):
            count += int(about.get("Threads", 1))
    return count


def _of_host() -> str:
    used = re.search(r"/(\d+) ", read("/proc/loadavg"))
    for name in ("threads-max", "pid_max"):
        limit = read(f"/proc/sys/kernel/{name}")
        if used and limit.isdecimal() and int(used[1]) >= CLOSE * int(limit):
            return f"the {int(limit):,} processes and threads of the host (kernel.{name}) are all in use"
    return ""
