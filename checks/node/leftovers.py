"""Leftovers: a finished Slurm job has left no process and no file in /dev/shm on its node.

With --set node.leftovers.job=NUMBER (SLURM_JOB_ID in an Epilog), finds processes by that number in their environment.
With node.leftovers.uid, finds that user's files in /dev/shm, unless a process of the user still runs: another job may
use them.
"""

import os
import time
from collections.abc import Iterator, Mapping
from typing import NotRequired, TypedDict

from preflight.check import Code, Context, Finding, Level, Plan, Run, Scope, count, entries, option, read, words
from preflight.checks.node.shared.disks import SHM
from preflight.sdk.files import state_of

JOB = option(count, 0, "number of the Slurm job that has ended (SLURM_JOB_ID)")
PLAN = Plan(Scope.NODE, lambda asked: Level.QUICK if asked.sets(JOB) else None, deadline_s=30.0)

UID = option(int, -1, "number of its user (SLURM_JOB_UID); -1 ignores /dev/shm")
WAIT_S = option(float, 3.0, "seconds after which the job must have released everything")

PROCESS = Code(
    "A process of a finished job is still there.",
    fix="On {node}, as root: kill -9 {pid}. In state D it waits in the kernel, and no signal kills it: see "
    "cat /proc/{pid}/stack; drain and reboot the node. ProctrackType=proctrack/cgroup ends what jobs leave.",
)
SHM_FILES = Code(
    "Files of the job's user are left in /dev/shm, but none of the user's processes.",
    fix="On {node}, as root: rm {file}; they take the next job's memory. job_container/tmpfs gives each its own.",
)

HIDDEN_PROCESSES = Code(
    "Processes of other users could not be looked at.",
    fix="Run it as root, as Slurm runs prologs and epilogs, or as the job's user.",
)

PAUSE_S = 0.2
OWN = "SLURM_SCRIPT_CONTEXT="
"""Slurm sets it in prologs and epilogs, which have the job's number but do not belong to the job."""


class LeftProcess(TypedDict):
    pid: int
    name: str
    state: str
    """As in ps(1); D is uninterruptible."""


class LeftFile(TypedDict):
    name: str
    size: int
    """Bytes."""


class Facts(TypedDict):
    job: int
    processes: list[LeftProcess]
    files: list[LeftFile]
    blind: NotRequired[bool]
    """Whether this user may not see which job the processes of the job's user belong to."""


def measure(ctx: Context) -> Facts:
    end = time.monotonic() + ctx[WAIT_S]
    while True:
        left: Facts = {"job": ctx[JOB], "processes": _processes(ctx[JOB]), "files": _files(ctx[UID])}
        left["blind"] = os.geteuid() not in (0, ctx[UID])
        if not (left["processes"] or left["files"]) or time.monotonic() > end:
            return left
        ctx.doing("waiting until the job's processes have ended")
        time.sleep(PAUSE_S)


def _processes(job: int) -> list[LeftProcess]:
    found = [int(pid) for pid in entries("/proc") if pid.isdecimal() and _is_of(job, pid)]
    states = {pid: state_of(pid) for pid in found}  # "": it has ended just now
    return [{"pid": pid, "name": read(f"/proc/{pid}/comm"), "state": state} for pid, state in states.items() if state]


def _is_of(job: int, pid: str) -> bool:
    environ = read(f"/proc/{pid}/environ").split("\0")
    return f"SLURM_JOB_ID={job}" in environ and not any(line.startswith(OWN) for line in environ)


def _files(uid: int) -> list[LeftFile]:
    """The user's files in /dev/shm; none if a process of the user runs."""
    if uid < 0 or any(_owner(f"/proc/{pid}") == uid for pid in filter(str.isdecimal, entries("/proc"))):
        return []
    paths = {name: os.path.join(SHM, name) for name in entries(SHM)}
    return [{"name": name, "size": _size(path)} for name, path in sorted(paths.items()) if _owner(path) == uid]


def _owner(path: str) -> int:
    try:
        return os.lstat(path).st_uid
    except OSError:  # it has just gone
        return -1


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    for rank, left in facts.items():
        node, job = run.job.node_of(rank).node, f"job {left['job']}"
        if left.get("blind"):
            text = f"the environment of other users' processes cannot be read, so none of {job} would be seen"
            yield HIDDEN_PROCESSES.not_measured(f"{text}; expected to run as root or as the job's user", node=node)
        if processes := left["processes"]:
            who = words.some([f"{each['name']} (pid {each['pid']}, state {each['state']})" for each in processes])
            text = f"{job} has left processes, {run[WAIT_S]:g} s after its end: {who}; expected none"
            yield PROCESS.warn(text, node=node, evidence={"pid": processes[0]["pid"]})
        if files := left["files"]:
            size = words.size(sum(file["size"] for file in files))
            names = words.some([file["name"] for file in files])
            text = f"the user of {job} has left {words.count(len(files), 'file')} of {size} in /dev/shm: {names}"
            yield SHM_FILES.warn(f"{text}; expected none", node=node, file=f"{SHM}/{files[0]['name']}")


def summarize(facts: Mapping[int, Facts], _: Run) -> str:
    return f"after job {next(iter(facts.values()))['job']}"
