"""Which limit of this host keeps a process from starting another one, a thread, or from opening a file."""

import errno
import os
import pwd
import re
import resource
from collections.abc import Iterator

from preflight.sdk import cgroups
from preflight.sdk.files import entries, read

REFUSED = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of fork(2), clone(2), open(2), pipe(2) and socket(2) at a limit."""
SIGNS = re.compile(
    "Resource temporarily unavailable|can't start new thread|unable to start watchdog thread|pthread_create failed"
    "|Thread creation failed|Too many open files|Cannot allocate memory|could not be forked|fork: retry"
)
"""What Python, libgomp, OpenBLAS, the C++ library and shells print where a thread or a process was refused."""
CLOSE = 0.9
"""A user with this share of `ulimit -u` has had it all a moment ago: what was refused a thread has ended since."""
OWNERS = (
    (re.compile(r"slurm|job_\d+"), "Slurm's for this job"),
    (re.compile(r"docker|kubepods|libpod|crio|containerd|lxc"), "the container's (--pids-limit, podPidsLimit)"),
    (re.compile(r"([^/]+\.(?:service|scope|slice))(?:/|$)"), "systemd's TasksMax"),
)
"""Who sets pids.max, by the cgroup's path."""


def refusals(root: str = "") -> int:
    """How often a process or a thread was refused until now in the cgroups around this process (pids.events)."""
    counts = (re.search(r"^max (\d+)$", read(f"{folder}/pids.events"), re.MULTILINE) for folder in _pids(root))
    return sum(int(count[1]) for count in counts if count)


def hit(before: int, said: str = "", number: int | None = None) -> str:
    """The limit that was reached, in words: its value and who sets it; "" if none was. `before`: `refusals` at an
    earlier time. `said`: what something printed or raised. `number`: an errno."""
    if number == errno.EMFILE or "Too many open files" in said:
        return _open_files()
    if number == errno.ENFILE:
        return f"the host's fs.file-max ({read('/proc/sys/fs/file-max')}) open files are all in use"
    if refusals() > before:
        return _of_cgroup() or "a cgroup around this process refuses more processes (pids.max)"
    if number in REFUSED or SIGNS.search(said):
        return _of_user() or _of_host() or (_of_cgroup() if _is_full() else "")
    return ""


def _open_files() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"the {limit:,} open files that a process may have (ulimit -n) are all in use"


def _of_cgroup() -> str:
    limits = [(room.left, room.limit, folder) for folder, room in _rooms()]
    if not limits:
        return ""
    _, limit, folder = min(limits)
    whose = next((who for pattern, who in OWNERS if pattern.search(folder)), "set there")
    return f"pids.max of the cgroup {folder} is {limit:,}, and all are in use: it is {whose}"


def _is_full() -> bool:
    return any(room.left == 0 for _, room in _rooms())


def _rooms() -> Iterator[tuple[str, cgroups.Room]]:
    for folder in _pids(""):
        if room := cgroups.tasks_of(folder):
            yield folder, room


def _pids(root: str) -> list[str]:
    return cgroups.folders("pids", root)


def _of_user() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY or _threads_of(os.getuid()) < CLOSE * limit:
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
