"""Finds other processes on this machine that were started as the same rank of the same job, or have its port."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from preflight.engine import identity, job_owner
from preflight.engine.job_owner import JobOwner

if TYPE_CHECKING:
    import psutil

SAME = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def others_here(environ: Mapping[str, str]) -> list[int]:
    """The ids of other processes with these launch variables: not their children, and none started by this process's
    topmost ancestor that has them (such as a training script). Processes of other users are not seen."""
    import psutil

    if "RANK" not in environ:
        return []
    me = psutil.Process()
    above = [process for process in (me, *me.parents()) if _parent(process, environ) is not None]
    first = above[-1] if above else me
    family = {me.pid, first.pid, *(process.pid for process in first.children(recursive=True))}
    alike = (process for process in psutil.process_iter() if process.pid not in family)
    found = {process.pid: parent for process in alike if (parent := _parent(process, environ)) is not None}
    return sorted(pid for pid, parent in found.items() if parent not in found)


def holder_of(port: int) -> JobOwner | None:
    """The job of the process that listens at this port of this machine; None if it cannot be seen: another user's, or
    in another container."""
    import psutil

    try:
        users = [user for user in psutil.net_connections("tcp") if user.laddr and user.laddr.port == port]
    except (psutil.Error, OSError):
        return None
    pid = next((user.pid for user in users if user.status == psutil.CONN_LISTEN and user.pid), None)
    return owner_of(pid) if pid else None


def owner_of(pid: int) -> JobOwner | None:
    """The job of a process of this machine, by its environment; None if that cannot be read."""
    import psutil

    try:
        process = psutil.Process(pid)
        launch, above = identity.from_environ(process.environ()), process.ppid()
    except (psutil.Error, OSError):
        return None
    if launch.launcher == "local" or launch.owner is None:
        return None
    return {**launch.owner, "pid": pid, "launcher": job_owner.process_key(above)}


def _parent(process: "psutil.Process", environ: Mapping[str, str]) -> int | None:
    """The parent's id of a process with these launch variables; None for any other."""
    import psutil

    try:
        theirs = process.environ()
        is_beside = os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net")
        return process.ppid() if is_beside and all(theirs.get(name) == environ.get(name) for name in SAME) else None
    except (psutil.Error, OSError):  # it has ended, or is another user's
        return None
