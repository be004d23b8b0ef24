"""Which processes hold a GPU: name, user and age for the pids that NVML lists."""

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypedDict

from preflight.check import words

if TYPE_CHECKING:
    import psutil

DESKTOP = ("Xorg", "Xwayland", "gnome-", "kwin", "plasmashell", "mutter")
SERVICES = ("nvidia-cuda-mps", "nv-hostengine", "dcgm")
"""Prefixes of names of processes that hold little and belong to the machine: a screen, MPS, NVIDIA's monitoring."""


class Holder(TypedDict):
    """A process as seen in this namespace. NVML may list the host's pids, which mean nothing in a container."""

    name: str | None
    """None if there is no such pid here."""
    user: str | None
    seconds: float | None
    """Seconds since it started."""
    ours: bool
    """Whether it belongs to this run, or started it."""


def holders(pids: Iterable[int]) -> dict[str, Holder]:
    """Processes by pid, as text."""
    wanted = sorted(set(pids))
    if not wanted:
        return {}
    import psutil

    me = psutil.Process()
    started_us = {parent.pid for parent in me.parents() if parent.pid != 1} | {os.getpid()}
    return {str(pid): _holder(pid, me.cmdline(), started_us) for pid in wanted}


def _holder(pid: int, command: list[str], started_us: set[int]) -> Holder:
    import psutil

    try:
        process = psutil.Process(pid)
        seconds = round(max(0.0, time.time() - process.create_time()), 1)
        ours = pid in started_us or _is_of_the_run(process, command)
        return {"name": process.name(), "user": process.username(), "seconds": seconds, "ours": ours}
    except psutil.Error:
        return {"name": None, "user": None, "seconds": None, "ours": False}


def _is_of_the_run(process: "psutil.Process", command: list[str]) -> bool:
    """Whether it is a rank on this node or started by one: ranks share a command line with their workers, which are
    forks."""
    import psutil

    try:
        return any(ancestor.cmdline() == command for ancestor in (process, *process.parents()))
    except psutil.Error:
        return False


def belongs_to_the_machine(holder: Holder) -> bool:
    name = holder["name"] or ""
    return name == "X" or name.startswith(DESKTOP + SERVICES)


def describe(pid: int, holder: Holder, memory: int | None) -> str:
    """ "python (pid 4711, user bob, for 3 h, 20.1 GiB)"."""
    about = [f"pid {pid}"]
    about += [f"user {holder['user']}"] if holder["user"] else []
    about += [f"for {words.duration(round(holder['seconds']))}"] if holder["seconds"] is not None else []
    about += [words.size(memory)] if memory is not None else []
    return f"{holder['name'] or 'a process that cannot be seen from here'} ({', '.join(about)})"
