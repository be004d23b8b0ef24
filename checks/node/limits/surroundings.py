"""Who sets a process's limits (Kubernetes, Slurm, a container engine or the host), and how to raise them there."""

import os
from collections.abc import Mapping

KUBERNETES, SLURM, CONTAINER, HOST = "kubernetes", "slurm", "container", "host"


def surroundings(environ: Mapping[str, str], root: str = "") -> str:
    """Who sets the limits here. In a Slurm job it is Slurm, even in containers of enroot and apptainer: they inherit
    limits and /dev/shm from the job, and may contain the .dockerenv of an image that docker saved."""
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return KUBERNETES
    if environ.get("SLURM_JOB_ID"):
        return SLURM
    signs = (f"{root}/.dockerenv", f"{root}/run/.containerenv")  # of docker and of podman
    return CONTAINER if any(map(os.path.exists, signs)) else HOST


FIXES: Mapping[str, Mapping[str, str]] = {
    "memlock": {
        KUBERNETES: "Give the container the capability IPC_LOCK, or containerd's unit LimitMEMLOCK=infinity.",
        SLURM: "Give slurmd's unit LimitMEMLOCK=infinity, and slurm.conf PropagateResourceLimitsExcept=MEMLOCK.",
        CONTAINER: "Start the container with --ulimit memlock=-1.",
    },
    "nofile": {
        KUBERNETES: "Run `ulimit -n {expected}` before the launcher, or give containerd's unit a higher LimitNOFILE.",
        SLURM: "Run `ulimit -n {expected}` in the batch script; if that is refused, raise slurmd's LimitNOFILE.",
        CONTAINER: "Start the container with --ulimit nofile=1048576.",
    },
    "tasks": {
        KUBERNETES: "Raise podPidsLimit of the kubelet.",
        SLURM: "Give slurmd's unit TasksMax=infinity, and slurm.conf PropagateResourceLimitsExcept=NPROC.",
        CONTAINER: "Start the container with --pids-limit=-1 and --ulimit nproc=-1.",
    },
    "shm": {
        KUBERNETES: "Mount an emptyDir with `medium: Memory` at /dev/shm; its size counts as memory of the pod.",
        CONTAINER: "Start the container with --ipc=host, or with --shm-size=8g.",
    },
    "memory": {
        KUBERNETES: "Raise resources.limits.memory of the pod.",
        SLURM: "Ask for more with --mem (--mem=0 is all of the node's).",
        CONTAINER: "Start the container with a larger --memory, or without it.",
    },
    "cpus": {
        KUBERNETES: "Raise resources.limits.cpu of the pod.",
        SLURM: "Ask for more with --cpus-per-task, and give it to srun as well (SRUN_CPUS_PER_TASK).",
        CONTAINER: "Start the container with more --cpus or --cpuset-cpus, or without them.",
    },
}
"""Fixes that replace the code's own, which is for a bare host."""
