"""Limits: open files, tasks, locked memory, /dev/shm, memory, CPUs and disk are enough for each node's ranks.

Reads the limits that the processes inherit from the launcher (ulimit), the cgroups, those of the whole node (ephemeral
ports, tracked connections, open files, processes), and the file systems of /dev/shm, TMPDIR and the current folder,
where it writes 4 KiB. A node with less than a quarter of what most nodes have is
reported on any backend. The minimum for any job depends on the backend: docker's 64 MiB of /dev/shm are enough for
gloo, but not for NCCL or for DataLoader workers that feed a GPU.
"""

import os
import re
import resource
from collections.abc import Callable, Iterator, Mapping
from typing import NotRequired, TypedDict

from preflight.check import (
    Code,
    Context,
    Finding,
    Job,
    Level,
    Node,
    Plan,
    Run,
    Scope,
    Trait,
    entries,
    option,
    ranges,
    read,
    traits,
)
from preflight.checks.node.limits import kernel_limits, process, side_by_side
from preflight.checks.node.limits.kernel_limits import KernelLimits
from preflight.checks.node.limits.surroundings import FIXES, surroundings
from preflight.checks.node.shared import disks
from preflight.sdk import cgroups
from preflight.sdk.cgroups import Room

PLAN = Plan(Scope.NODE, Level.QUICK, deadline_s=20, estimate_s=0.1)
PARTS = (kernel_limits,)

MEMLOCK_MIB = option(int, 32 * 1024, "locked memory that RDMA needs")
TASKS_A_RANK = option(int, 64, "processes and threads that a rank still has to start")
SHM_MIB = option(int, 0, "free /dev/shm that a node needs; 0 is 1024 on nccl, and 1 per rank on gloo")
MEMORY_MIB_A_RANK = option(int, 0, "memory that a rank still needs; 0 is 1024 on nccl and 128 on gloo")
CPUS_A_RANK = option(float, 0.0, "CPUs that a rank needs; 0 is 1 on nccl and a tenth on gloo")
DISK_MIB = option(int, 100, "free space that TMPDIR and the current folder need")

MEMLOCK = Code(
    "RDMA may lock too little memory.",
    fix="Write `* - memlock unlimited` into /etc/security/limits.d and log in again; in a unit: LimitMEMLOCK=infinity.",
)
NOFILE = Code(
    "A process may open too few files.",
    fix="Run `ulimit -n {expected}` before the launcher; if that is refused, raise nofile in /etc/security/limits.d.",
)
TASKS = Code(
    "The ranks may start too few processes and threads.",
    fix="End what is left over (ps -eLf), or raise nproc in /etc/security/limits.d; in a unit: TasksMax=infinity.",
)
SHM = Code(
    "The shared memory in /dev/shm is too small, or full.",
    fix="Remove what dead jobs left (ls -l /dev/shm), or enlarge it: mount -o remount,size=50% /dev/shm",
)
MEMORY = Code(
    "The ranks may use too little memory.", fix="End what uses it (see top), or raise the MemoryMax of the unit."
)
CPUS = Code("The ranks may use too few CPUs.", fix="Look for taskset, numactl or the CPUQuota of a unit.")
DISK = Code(
    "A folder that jobs write to is full or not writable.",
    fix="See df -h {file} and df -i {file}: empty it, or use another folder (TMPDIR).",
)
ULIMIT = Code(
    "A limit of the shell would end a long job.", fix="Start where `ulimit -a` says unlimited; login nodes often limit."
)
COMPARED = {"nofile": NOFILE, "tasks": TASKS, "shm": SHM, "memory": MEMORY, "cpus": CPUS}
"""Codes by the limit's name in side_by_side.py."""

STORE_FILES = 4
"""Per rank: its store client, those of its process groups, and those of an attempt that is just ending."""
SPARE_FILES, LEAST_FILES = 64, 1024
"""Files a rank has open besides its connections (some 30 with torch imported), and Linux's default per process
(INR_OPEN_CUR of include/uapi/linux/fs.h): with less, someone lowered it."""
SHM_NCCL, SHM_GLOO_A_RANK, SHM_FULL = 1024, 1, 1
"""MiB: the size in NCCL's guide for a container (troubleshooting, --shm-size=1g); what semaphores take; as good as
full. NCCL's proxies share their queues over /dev/shm even if no data goes through it (src/proxy.cc)."""
MEMORY_OF, CPUS_OF = {"nccl": 1024, "gloo": 128}, {"nccl": 1.0, "gloo": 0.1}
"""Per rank. MiB: a CUDA context and pinned buffers, or the smallest models. On gloo, tests share few cores."""
LEAST_INODES = 1000
ULIMITS = {"t": resource.RLIMIT_CPU, "f": resource.RLIMIT_FSIZE, "v": resource.RLIMIT_AS}
CALLED = {"t": "a process may run for {:,} s of CPU time", "f": "a file may have {:,} bytes",
          "v": "a process may have {:,} bytes of addresses, and CUDA maps more than there is memory"}  # fmt: skip


SAYS_NOTHING = re.compile(
    "Google Compute Engine|Virtual Machine|KVM|HVM domU|VMware.*|VirtualBox|OpenStack.*|Standard PC.*|Bochs|RHEL.*|"
    "QEMU.*|pc-.*|To be filled by O.E.M.|System Product Name|Default string|Not Specified|None|N/A|Unknown|",
    re.IGNORECASE,
)
"""What clouds and hypervisors call each of their machines, and what a vendor has left as it was."""


class Facts(TypedDict):
    """None means unlimited or unknown."""

    surroundings: str
    rdma: int
    """Devices."""
    memlock: int | None
    """Bytes."""
    nofile: int | None
    nofile_hard: int | None
    tasks: int | None
    """The most that the user or the cgroup may have."""
    tasks_left: int | None
    shm_mib: int | None
    shm_free_mib: int | None
    memory_mib: int | None
    """The cgroup's limit."""
    memory_left_mib: int | None
    cpus: float | None
    ulimits: dict[str, int]
    """By ulimit's option letter."""
    disks: list[disks.Disk]
    kernel: NotRequired[KernelLimits]
    instance: NotRequired[str]
    """The type of the machine; not there where it is not known."""


def measure(ctx: Context) -> Facts:
    tasks = cgroups.tightest((process.tasks(), cgroups.tasks()))
    memory = cgroups.tightest((cgroups.memory(), _available()))
    cpus = [count for count in (cgroups.cpus(), _shared_cpus(ctx)) if count is not None]
    ctx.doing("looking at /dev/shm")
    shm, shm_free, _ = disks.space(disks.SHM)
    facts: Facts = {
        "surroundings": surroundings(ctx.environ),
        "rdma": len(entries("/sys/class/infiniband")),
        "memlock": process.memlock(),
        "nofile": process.limit(resource.RLIMIT_NOFILE),
        "nofile_hard": process.limit(resource.RLIMIT_NOFILE, hard=True),
        "tasks": tasks.limit if tasks else None,
        "tasks_left": disks.rounded(tasks.left) if tasks else None,
        "shm_mib": shm,
        "shm_free_mib": disks.rounded(shm_free),
        "memory_mib": memory.limit >> 20 if memory and memory.limit else None,
        "memory_left_mib": disks.rounded(memory.left >> 20) if memory else None,
        "cpus": min(cpus, default=None),
        "ulimits": {letter: limit for letter, kind in ULIMITS.items() if (limit := process.limit(kind)) is not None},
        "disks": list(disks.written_to(ctx)),
        "kernel": kernel_limits.measure(),
    }
    if instance := _instance_type():
        facts["instance"] = instance
    return facts


def _instance_type(root: str = "") -> str | None:
    """DMI's product name: on AWS the instance type (p5.48xlarge), on bare metal the model (DGXH100). None where it says
    nothing about the type, or the kernel shows none."""
    name = read(f"{root}/sys/class/dmi/id/product_name")
    return None if SAYS_NOTHING.fullmatch(name) else name[:100]


def _available() -> Room | None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", read("/proc/meminfo"), re.MULTILINE)
    return Room(None, int(found[1]) * 1024) if found else None


def _shared_cpus(ctx: Context) -> float | None:
    """The CPUs that all ranks of the node share: one process that starts them passes on its affinity. None under Slurm
    and MPI, which bind each rank separately."""
    return float(len(os.sched_getaffinity(0))) if ctx.job.launcher in ("torchrun", "own", "local") else None


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    named = set()
    for rank, measured in facts.items():
        node = run.job.node_of(rank)
        for judged in (_memlock, _nofile, _tasks, _shm, _memory, _cpus, _full_disks, _ulimits):
            for finding in judged(measured, node, run):
                named.add((rank, finding.code))
                yield finding
    yield from kernel_limits.findings({rank: each["kernel"] for rank, each in facts.items() if "kernel" in each}, run)
    for less in side_by_side.find_less(facts, run.job):  # what is too little for any job is already reported
        if (rank := less.rank, code := COMPARED[less.name]) not in named:
            yield _say(code.warn, less.name, facts[rank], run.job.node_of(rank), less.text, less.usual)


def record(reading: Facts, _job: Job) -> Iterator[Trait]:
    names = {"memlock": "bytes of locked memory", "nofile": "open files", "tasks": "processes", "cpus": "CPUs"}
    names |= {"shm_mib": "MiB of shared memory", "memory_mib": "MiB of memory"}
    yield from traits("limit", {called: reading.get(name) for name, called in names.items()})
    yield from traits("hardware", {"instance type": reading.get("instance")})


def summarize(facts: Mapping[int, Facts], run: Run) -> str:  # noqa: ARG001
    files = [measured["nofile"] for measured in facts.values() if measured["nofile"] is not None]
    shm = [measured["shm_free_mib"] for measured in facts.values() if measured["shm_free_mib"] is not None]
    memory = [measured["memory_left_mib"] for measured in facts.values() if measured["memory_left_mib"] is not None]
    least = [(files, "open files"), (shm, "MiB of shared memory"), (memory, "MiB of memory")]
    return f"at least {', '.join(f'{min(values):,} {of}' for values, of in least if values)}"


def _say(say: Callable[..., Finding], what: str, measured: Facts, node: Node, text: str, expected: float) -> Finding:
    fix = FIXES[what].get(measured["surroundings"])
    return say(text, node=node.node, evidence={"expected": expected}, fix=fix)


def _of_ranks(node: Node) -> str:
    return f"for {ranges.count(len(node.ranks), 'rank')}"


def _memlock(measured: Facts, node: Node, run: Run) -> Iterator[Finding]:
    """Not on gloo, which uses no RDMA."""
    limit, least = measured["memlock"], run[MEMLOCK_MIB]
    if run.job.backend == "nccl" and measured["rdma"] and limit is not None and limit >> 20 < least:
        devices = ranges.count(measured["rdma"], "RDMA device")
        text = f"{limit >> 10:,} KiB of memory may be locked for {devices}, expected at least {least:,} MiB"
        yield _say(MEMLOCK.warn, "memlock", measured, node, text, least)


def _nofile(measured: Facts, node: Node, run: Run) -> Iterator[Finding]:
    """The store's server has connections to all ranks, and on gloo so does every rank."""
    limit, world, serves = measured["nofile"], run.job.world_size, 0 in node.ranks
    if limit is None:
        return
    connected = f"for the connections to {ranges.count(world, 'rank')}"
    say, least, why = NOFILE.warn, LEAST_FILES, "for a rank"
    if serves and limit < STORE_FILES * world:
        least, why = STORE_FILES * world, f"since the store serves {ranges.count(world, 'rank')}"
    if (serves or run.job.backend == "gloo") and limit < world + SPARE_FILES:
        say, least, why = NOFILE.fail, world + SPARE_FILES, connected
    if limit < least:
        text = f"a process may open {limit:,} files, expected at least {least:,} {why}"
        yield _say(say, "nofile", measured, node, text, least)


def _tasks(measured: Facts, node: Node, run: Run) -> Iterator[Finding]:
    least = run[TASKS_A_RANK] * len(node.ranks)
    if measured["tasks_left"] is not None and measured["tasks_left"] < least:
        left = f"{measured['tasks_left']:,} more processes and threads may be started, of {measured['tasks']:,}"
        yield _say(TASKS.warn, "tasks", measured, node, f"{left}, expected at least {least:,} {_of_ranks(node)}", least)


def _shm(measured: Facts, node: Node, run: Run) -> Iterator[Finding]:
    nccl, free = run.job.backend == "nccl", measured["shm_free_mib"]
    least = run[SHM_MIB] or (SHM_NCCL if nccl else SHM_GLOO_A_RANK * len(node.ranks))
    if free is not None and free < least:
        full = nccl and run.job.world_size > 1 and free < SHM_FULL
        there = f"{free:,} MiB are free in /dev/shm, of {measured['shm_mib']:,}"
        there = there if measured["shm_mib"] else "there is no /dev/shm, or it has no room at all"
        text = f"{there}, expected at least {least:,} MiB"
        yield _say(SHM.fail if full else SHM.warn, "shm", measured, node, text, least)


def _memory(measured: Facts, node: Node, run: Run) -> Iterator[Finding]:
    a_rank = run[MEMORY_MIB_A_RANK] or MEMORY_OF[run.job.backend]
    least, room = a_rank * len(node.ranks), measured["memory_left_mib"]
    if room is not None and room < least:
        limit = "" if measured["memory_mib"] is None else f", within a limit of {measured['memory_mib']:,} MiB"
        text = f"{room:,} MiB of memory are left{limit}, expected at least {least:,} MiB {_of_ranks(node)}"
        yield _say(MEMORY.warn, "memory", measured, node, text, least)


def _cpus(measured: Facts, node: Node, run: Run) -> Iterator[Finding]:
    least = (run[CPUS_A_RANK] or CPUS_OF[run.job.backend]) * len(node.ranks)
    if measured["cpus"] is not None and measured["cpus"] < least:
        text = f"the ranks may use {measured['cpus']:g} of the CPUs, expected at least {least:g} {_of_ranks(node)}"
        yield _say(CPUS.warn, "cpus", measured, node, text, least)


def _full_disks(measured: Facts, node: Node, run: Run) -> Iterator[Finding]:
    for disk in measured["disks"]:
        place, least = f"{disk['called']} ({disk['path']})", f"{run[DISK_MIB]:,} MiB"
        text = ""
        if disk["error"]:
            text = f"{place} cannot be written to: {disk['error']}; expected at least {least} free"
        elif disk["free_mib"] is not None and disk["free_mib"] < run[DISK_MIB]:
            text = f"{place} has {disk['free_mib']:,} MiB free, expected at least {least}"
        elif disk["inodes"] is not None and disk["inodes"] < LEAST_INODES:
            text = f"{place} has room for {disk['inodes']:,} more files (inodes), expected at least {LEAST_INODES:,}"
        if text:
            yield DISK.warn(text, node=node.node, file=disk["path"])


def _ulimits(measured: Facts, node: Node, run: Run) -> Iterator[Finding]:
    for letter, limit in measured["ulimits"].items():
        if letter != "v" or run.job.backend == "nccl":
            text = f"{CALLED[letter].format(limit)} (ulimit -{letter}), expected unlimited"
            yield ULIMIT.warn(text, node=node.node)
