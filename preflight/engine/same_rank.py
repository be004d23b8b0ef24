"""Finds other processes on this machine that were started as the same rank of the same job."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

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


def _parent(process: "psutil.Process", environ: Mapping[str, str]) -> int | None:
    """The parent's id of a process with these launch variables; None for any other."""
    import psutil

    try:
        theirs = process.environ()
        here = os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net")
        return process.ppid() if here and all(theirs.get(name) == environ.get(name) for name in SAME) else None
    except (psutil.Error, OSError):  # it has ended, or is another user's
        return None
