"""Which job a process belongs to, so that two jobs that meet at one port can tell each other apart."""

import os
import re
from collections.abc import Mapping
from typing import Any, TypedDict

from preflight.core import words
from preflight.sdk.files import read, stat_of

MPI_JOBS = ("PMIX_NAMESPACE", "PALS_APID", "FLUX_JOB_ID")
ARRAY = "SLURM_ARRAY_JOB_ID"
SCHEDULER_JOBS = {
    "SLURM_HET_JOB_ID": "Slurm job", ARRAY: "Slurm job", "SLURM_JOB_ID": "Slurm job", "PBS_JOBID": "PBS job",
    "LSB_JOBID": "LSF job",
}  # fmt: skip
"""A heterogeneous job of Slurm has a number of its own, and one for each part (sbatch(1)), an array one for each task;
the first that is set counts: one world may span the parts, or the tasks."""
NO_RUN_ID = "none"
"""torchrun's own default for --rdzv-id."""
OF_ONE_LAUNCH = ("Slurm step", "MPI job", "torchrun run")
"""Kinds of ids that two launches never share; a scheduler's job may hold several."""
LONGEST = 200
"""Characters of a text that another process has written."""


class JobOwner(TypedDict):
    """What a process knows about its own job."""

    kind: str
    """ "Slurm step", "Slurm job", "torchrun run", ...; "" if nothing names the job."""
    id: str
    rank: int | None
    pid: int
    node: str
    launcher: str
    """The parent process: its number, the time of its start, and the boot and the process namespace in which these
    mean it. "" if it is gone."""


class PortInUse(Exception):  # noqa: N818 -- a state of the world
    """Another job has this job's port. Its text says which."""


def owner(
    launcher: str, environ: Mapping[str, str], rank: int | None, node: str, parent: int | None = None
) -> JobOwner:
    """Of this process. `parent`: the training process that has started it; what started that is the launcher."""
    kind, id_ = named(launcher, environ)
    above = int(stat_of(parent)[1]) if parent and stat_of(parent) else os.getppid()
    return {"kind": kind, "id": id_, "rank": rank, "pid": os.getpid(), "node": node, "launcher": process_key(above)}


def named(launcher: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """(kind, id) by which a process's launcher names its job; ("", "") if it does not."""
    if launcher in ("torchrun", "own"):
        run = environ.get("TORCHELASTIC_RUN_ID", NO_RUN_ID)
        return ("", "") if run == NO_RUN_ID else ("torchrun run", run)
    of_step = {ARRAY} if launcher == "slurm" else set()  # each task's steps count from 0
    scheduler = next((name for name in SCHEDULER_JOBS if environ.get(name) and name not in of_step), "")
    if launcher == "slurm" and scheduler:
        return "Slurm step", f"{environ[scheduler]}.{environ.get('SLURM_STEP_ID', '')}"
    job = next((environ[name] for name in MPI_JOBS if environ.get(name)), "") if launcher == "mpi" else ""
    if job:
        return "MPI job", job
    number = re.sub(r"\[\d*\]", "", environ.get(scheduler, ""))  # PBS writes a task of an array so: 12[3].host
    return (SCHEDULER_JOBS[scheduler], number) if scheduler else ("", "")


def is_other_job(ours: JobOwner, theirs: JobOwner) -> bool:
    """Whether two processes surely belong to different jobs: their launchers name different ones, or both are rank 0
    and on one machine, and different processes have started them. (The other ranks of one job may well have several
    parents.)"""
    if (
        ours["kind"]
        and ours["kind"] == theirs["kind"]
        and (ours["id"] != theirs["id"] or ours["kind"] in OF_ONE_LAUNCH)
    ):
        return ours["id"] != theirs["id"]
    return ours["rank"] == theirs["rank"] == 0 and is_other_launcher(ours["launcher"], theirs["launcher"])


def is_other_launcher(ours: str, theirs: str) -> bool:
    """Whether both are known, of one machine, and not the same process."""
    same_place = ours.partition("|")[2] == theirs.partition("|")[2]
    return bool(ours and theirs) and same_place and ours != theirs


def described(job: JobOwner) -> str:
    """ "Slurm step 78.0 (process 42 on gpu-1)"."""
    return f"{called(job)} (process {job['pid']} on {job['node']})"


def called(job: JobOwner) -> str:
    """ "Slurm step 78.0", or "the launch by process 41": the same for all processes of one launcher."""
    launcher = job["launcher"].partition(" ")[0]
    if job["kind"]:
        return f"{job['kind']} {job['id']}"
    return f"the launch by process {launcher}" if launcher else "a launch without a job's number"


def from_json(data: Any) -> JobOwner | None:
    """What another process has written; None if that is not well formed."""
    kinds: Mapping[str, type | tuple[type, ...]] = {
        "kind": str,
        "id": str,
        "rank": (int, type(None)),
        "pid": int,
        "node": str,
        "launcher": str,
    }
    if not isinstance(data, dict) or not all(isinstance(data.get(name), kind) for name, kind in kinds.items()):
        return None
    text = {name: words.printable(data[name][:LONGEST]) for name in ("kind", "id", "node", "launcher")}
    return {
        "kind": text["kind"],
        "id": text["id"],
        "rank": data["rank"],
        "pid": data["pid"],
        "node": text["node"],
        "launcher": text["launcher"],
    }


def process_key(pid: int) -> str:
    """What tells a process from all others of its machine: "41 8812345|boot|pid:[4026531836]"."""
    fields = stat_of(pid)
    if len(fields) < 20:
        return ""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{pid} {fields[19]}|{read('/proc/sys/kernel/random/boot_id')}|{namespace}"
