"""Limits that are lowered on one node, and made-up facts of many."""

import gzip
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.check import Run, ranges
from preflight.checks.node import limits
from preflight.checks.node.limits import Facts
from preflight.planning import registry
from tests import made, running
from tests.faults import ELSEWHERE
from tests.hosts import cluster, needs_hosts
from tests.nodes import run_nodes
from tests.on_hosts import found_each_as, ranks_on
from tests.running import Finished

ONLY = ("--only", "node.limits")
needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts of a rank's own need root and unshare"
)


def is_told(name: str, finished: Finished) -> None:
    (found,) = finished.findings()
    assert ELSEWHERE[name].is_told_by([found]) and ELSEWHERE[name].says in found["message"], finished.told()
    assert "rank" not in found["where"] and "{" not in found["fix"], finished.told()


def limited(*options: str) -> str:
    """What a rank begins with to have these limits: `prlimit` would start it anew."""
    return " ".join(("prlimit --pid $PPID", *options))


def facts_of(folder: Path, rank: int) -> Facts:
    with gzip.open(folder / "facts.jsonl.gz", "rt") as lines:
        groups = [json.loads(line) for line in lines]
    (facts,) = (group["facts"] for group in groups if rank in ranges.from_text(group["ranks"]))
    return facts  # type: ignore[no-any-return]  # JSON


def test_this_machine_is_sound(tmp_path: Path) -> None:
    finished = run_nodes(tmp_path, 3, *ONLY)
    check = finished.check("node.limits")
    assert check["findings"] == [] and check["status"] == "pass", finished.told()
    assert list(tmp_path.glob("tmp*")) == [], "what was written is gone"


# Files


def test_limits_of_a_shell(tmp_path: Path) -> None:
    """The store's node may open too few files, another one few, by its soft limit, which limits CPU time, too, and a
    third one enough for any job, and much fewer than the rest."""
    before = {0: limited("--nofile=66"), 1: limited("--nofile=200:", "--cpu=3600"), 3: limited("--nofile=1024:")}
    rows = ("limits_store_files", "limits_files", "limits_cpu_time", "limits_files_beside")
    for node in (2, 4, 5):
        before[node] = limited("--nofile=16384:")
    found_each_as(run_nodes(tmp_path, 6, *ONLY, before=before), *rows)


# Cgroups, as this machine has them

SMALL_SHARED_MEMORY = "mount -t tmpfs -o size=64m none /dev/shm"
"""As docker's."""


@needs_mounts
def test_what_may_be_too_little(cgroups: Callable[..., str], tmp_path: Path) -> None:
    """A node each. The fifth has less of temporary files than is usual, and enough."""
    before, own = temporary(tmp_path / "small", "size=20m", 4)
    before |= {
        1: cgroups("memory", ("memory.limit_in_bytes", str(2**30)), ("memory.max", str(2**30))),
        2: cgroups("cpu", ("cpu.cfs_quota_us", "50000"), ("cpu.max", "50000 100000")),
        3: SMALL_SHARED_MEMORY,
    }
    wanted = {"memory_mib_a_rank": 2048, "cpus_a_rank": 1, "shm_mib": 1024, "disk_mib": 10}
    settings = [word for name, value in wanted.items() for word in ("--set", f"node.limits.{name}={value}")]
    finished = run_nodes(tmp_path, 5, *ONLY, *settings, before=before, own=own)
    found_each_as(finished, "limits_memory", "limits_quota", "limits_shm_small")


@pytest.mark.skipif(not shutil.which("taskset"), reason="taskset binds torchrun to a CPU")
@pytest.mark.more
def test_one_cpu_for_all_ranks(tmp_path: Path) -> None:
    run = running.Run(tmp_path)
    cpu = str(min(os.sched_getaffinity(0)))
    words = [*ONLY, "--set", "node.limits.cpus_a_rank=1", "--report", str(tmp_path)]
    run.start(["taskset", "-c", cpu, *running.torchrun(2, *words)], running.environment())
    is_told("limits_affinity", run.finish())


# File systems, and a user who is not root

FILL = "head -c 99999999 /dev/zero >{0}/full 2>/dev/null || [ -s {0}/full ]"
needs_setpriv = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="setpriv makes root another user, with fewer capabilities"
)


def temporary(folder: Path, options: str, node: int, then: str = "true") -> tuple[dict[int, Any], dict[int, Any]]:
    """What makes a TMPDIR of its own for a node: lines that it begins with, and variables."""
    folder.mkdir()
    script = f"mount -t tmpfs -o {options} none {folder} && {then}"
    return {node: script}, {node: {"TMPDIR": str(folder)}}


def full(folder: Path, node: int) -> tuple[dict[int, Any], dict[int, Any]]:
    """/dev/shm, TMPDIR and the current folder of a node."""
    before, own = temporary(folder / "full", "size=1m", node, FILL.format(folder / "full"))
    for place, size in (("/dev/shm", "64m"), (folder / "work", "1m")):
        before[node] += f"\nmount -t tmpfs -o size={size} none {place}\n{FILL.format(place)}"
    return before, own


@needs_mounts
@needs_setpriv
def test_what_is_too_little_for_any_job(cgroups: Callable[..., str], tmp_path: Path) -> None:
    """A node each. Sound are the first, the sixth, whose current folder is read-only as that of a container or a prolog
    may be. The seventh has docker's shared memory, which is enough for gloo, and much less than the others have."""
    made = [
        temporary(tmp_path / "small", "size=20m", 3), temporary(tmp_path / "few", "nr_inodes=50", 4), full(tmp_path, 5)
    ]  # fmt: skip
    before, own = ({node: what for parts in made for node, what in parts[part].items()} for part in (0, 1))
    # Who may read our files, which lie below folders of root's.
    user = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    places = {5: tmp_path / "work", 6: tmp_path / "read_only"}
    for place in places.values():
        place.mkdir()
    before |= {
        1: cgroups("pids", ("pids.max", "60"), ("pids.max", "60")),
        6: f"mount -t tmpfs -o ro,size=1m none {places[6]}",
        7: SMALL_SHARED_MEMORY,
    }
    wrap = {2: [*user, "prlimit", "--nproc=60"]}
    finished = run_nodes(tmp_path, 8, *ONLY, before=before, wrap=wrap, own=own, places=places)
    of_processes = ("tasks_cgroup", "tasks_user", "shm_full", "shm_beside")
    names = (*of_processes, "disk_nearly_full", "inodes", "folder_full", "disk_full")
    found_each_as(finished, *(f"limits_{name}" for name in names))
    left = facts_of(tmp_path, 2)["tasks_left"]
    assert left is not None and 0 < left < 60, "its own are counted"


@needs_mounts
@needs_setpriv
def test_little_locked_memory_for_rdma(tmp_path: Path) -> None:
    """gloo does not need it: the same facts are judged as on nccl."""
    no_lock = ["setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock"]
    devices = "mount -t tmpfs none /sys/class && mkdir -p /sys/class/infiniband/mlx5_0"
    before = {1: f"{devices} && {limited('--memlock=65536')}"}
    finished = run_nodes(tmp_path, 2, *ONLY, before=before, wrap={1: no_lock})
    assert finished.check("node.limits")["findings"] == [], finished.told()
    facts = {rank: facts_of(tmp_path, rank) for rank in range(2)}
    assert (facts[1]["memlock"], facts[1]["rdma"]) == (65536, 1)
    roomy = {rank: {**measured, "shm_free_mib": 2048, "memory_left_mib": 2048} for rank, measured in facts.items()}
    found = testing.judge(limits, roomy, nodes={f"node-{rank}": [rank] for rank in range(2)}, backend="nccl")
    assert ELSEWHERE["limits_memlock"].is_told_by(found) and len(found) == 1
    assert ELSEWHERE["limits_memlock"].says in found[0]["message"]


@needs_mounts
@needs_setpriv
def test_a_bare_container_is_sound(tmp_path: Path) -> None:
    """What docker gives to root: 64 MiB of shared memory, 64 KiB of locked memory, few capabilities."""
    few = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
    small = f"{SMALL_SHARED_MEMORY} && {limited('--memlock=65536')}"
    both = range(2)
    finished = run_nodes(tmp_path, 2, *ONLY, before=dict.fromkeys(both, small), wrap=dict.fromkeys(both, few))
    assert facts_of(tmp_path, 1)["memlock"] == 65536
    assert finished.check("node.limits")["findings"] == [], finished.told()


# What the kernel keeps for the whole node


@needs_hosts
def test_ephemeral_ports_that_are_few_or_others(tmp_path: Path) -> None:
    """A host each: few, far fewer than the others have, and others, which is only said."""
    with cluster(7) as hosts:
        for host, ports in zip(hosts[1:4], ("40000 40049", "60000 60999", "15000 60999"), strict=True):
            host.run("sysctl", "-qw", f"net.ipv4.ip_local_port_range={ports}")
        finished = ranks_on(tmp_path, hosts, *ONLY)
    found_each_as(finished, "limits_ports", "limits_ports_beside")
    (info,) = [finding for finding in finished.check("node.limits")["findings"] if finding["severity"] == "info"]
    row = ELSEWHERE["limits_ports_others"]
    assert row.is_told_by([info]) and row.says in info["message"] and "'32768 60999'" in info["fix"], finished.told()


@needs_mounts
def test_tables_of_the_kernel_that_are_nearly_full(tmp_path: Path) -> None:
    """A node each."""

    def over(path: str, text: str) -> str:
        name = tmp_path / path.rpartition("/")[2]
        return f"echo {text} >{name} && mount --bind {name} {path}"

    most = int(Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text())
    tasks = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    before = {
        1: over("/proc/sys/net/netfilter/nf_conntrack_count", str(most - 200)),
        2: over("/proc/sys/fs/file-nr", "799999 0 800500"),
        3: over("/proc/loadavg", f"'9 9 9 1/{tasks} 9'") + " && " + over("/proc/sys/kernel/pid_max", str(tasks + 60)),
    }
    finished = run_nodes(tmp_path, 5, *ONLY, before=before)
    found_each_as(finished, "limits_conntrack", "limits_file_max", "limits_pid_max")


# Made-up facts


def node(**changed: Any) -> Facts:
    """A node with eight GPUs."""
    disk = {"called": "TMPDIR", "path": "/scratch", "free_mib": 65536, "inodes": 65536, "error": ""}
    sound: dict[str, Any] = {
        "surroundings": "host", "rdma": 8, "memlock": None, "nofile": 65536, "nofile_hard": 1048576, "tasks": 65536,
        "tasks_left": 65536, "shm_mib": 65536, "shm_free_mib": 65536, "memory_mib": 131072, "memory_left_mib": 131072,
        "cpus": 64.0, "ulimits": {}, "disks": [{**disk, **changed.pop("disk", {})}],
    }  # fmt: skip
    return {**sound, **changed}  # type: ignore[typeddict-item]  # names are checked by those who read them


LAPTOP = node(
    memlock=65536, rdma=0, nofile=1024, tasks=4096, tasks_left=2000, shm_mib=64, shm_free_mib=64, memory_mib=None,
    memory_left_mib=2000, cpus=2.0, disk={"called": "the temporary folder", "path": "/tmp", "inodes": None},
)  # fmt: skip


def judged(
    facts: Mapping[int, Facts],
    backend: str = "nccl",
    ranks_a_node: int = 8,
    settings: Mapping[str, object] | None = None,
) -> Any:
    nodes = {f"node-{n}": range(n * ranks_a_node, (n + 1) * ranks_a_node) for n in range(len(facts))}
    by_rank = {n * ranks_a_node: measured for n, measured in facts.items()}
    return testing.judge(limits, by_rank, nodes=nodes, backend=backend, settings=settings)


@pytest.mark.parametrize(
    ("facts", "backend", "ranks_a_node"),
    [
        ([node()] * 128, "nccl", 8),
        ([node()] * 1024, "nccl", 1),
        ([LAPTOP], "gloo", 8),
        ([LAPTOP] * 2, "gloo", 8),
        ([node(nofile=None, tasks=None, tasks_left=None, shm_mib=None, shm_free_mib=None, memory_left_mib=None,
               cpus=None)], "nccl", 8),
        ([node(memlock=65536, rdma=0)], "nccl", 8),
        ([node(memlock=65536), node(ulimits={"v": 10**10})], "gloo", 8),
        ([node(disk={"free_mib": None, "inodes": None})], "nccl", 8),
        ([node(nofile=1024)] * 32, "nccl", 8),
    ],
    ids=["128", "1024", "laptop", "two laptops", "unlimited", "no RDMA", "gloo", "odd disk", "256 ranks with 1024"],
)  # fmt: skip
def test_a_sound_node_gives_no_finding(facts: list[Facts], backend: str, ranks_a_node: int) -> None:
    assert judged(dict(enumerate(facts)), backend, ranks_a_node) == []


@dataclass
class Low:
    finds: str
    facts: Facts
    says: str
    node: int = 1
    backend: str = "nccl"


LOW = [
    Low("warn memlock", node(memlock=8 << 20),
        "8,192 KiB of memory may be locked for 8 RDMA devices, expected at least 32,768 MiB"),
    Low("fail nofile", node(nofile=79),
        "a process may open 79 files, expected at least 80 for the connections to 16 ranks", node=0),
    Low("warn nofile", node(nofile=80), "a process may open 80 files, expected at least 1,024 for a rank", node=0),
    Low("warn nofile", node(nofile=79), "a process may open 79 files, expected at least 1,024 for a rank"),
    Low("fail nofile", node(nofile=79),
        "a process may open 79 files, expected at least 80 for the connections to 16 ranks", backend="gloo"),
    Low("warn tasks", node(tasks_left=511, tasks=4096),
        "511 more processes and threads may be started, of 4,096, expected at least 512 for 8 ranks"),
    Low("warn shm", node(shm_free_mib=64, shm_mib=64),
        "64 MiB are free in /dev/shm, of 64, expected at least 1,024 MiB"),
    Low("fail shm", node(shm_free_mib=0), "0 MiB are free in /dev/shm, of 65,536, expected at least 1,024 MiB"),
    Low("fail shm", node(shm_free_mib=0, shm_mib=0),
        "there is no /dev/shm, or it has no room at all, expected at least 1,024 MiB"),
    Low("warn shm", node(shm_free_mib=7), "7 MiB are free in /dev/shm, of 65,536, expected at least 8 MiB",
        backend="gloo"),
    Low("warn memory", node(memory_left_mib=8191),
        "8,191 MiB of memory are left, within a limit of 131,072 MiB, expected at least 8,192 MiB for 8 ranks"),
    Low("warn memory", node(memory_left_mib=1023, memory_mib=None),
        "1,023 MiB of memory are left, expected at least 1,024 MiB for 8 ranks", backend="gloo"),
    Low("warn cpus", node(cpus=7.5), "the ranks may use 7.5 of the CPUs, expected at least 8 for 8 ranks"),
    Low("warn cpus", node(cpus=0.5), "the ranks may use 0.5 of the CPUs, expected at least 0.8 for 8 ranks",
        backend="gloo"),
    Low("warn disk", node(disk={"free_mib": 99}), "TMPDIR (/scratch) has 99 MiB free, expected at least 100 MiB"),
    Low("warn disk", node(disk={"inodes": 9}),
        "TMPDIR (/scratch) has room for 9 more files (inodes), expected at least 1,000"),
    Low("warn disk", node(disk={"error": "Permission denied"}),
        "TMPDIR (/scratch) cannot be written to: Permission denied; expected at least 100 MiB free"),
    Low("warn ulimit", node(ulimits={"f": 1000}), "a file may have 1,000 bytes (ulimit -f), expected unlimited"),
    Low("warn ulimit", node(ulimits={"v": 10**10}), "a process may have 10,000,000,000 bytes of addresses"),
]  # fmt: skip


@pytest.mark.parametrize("low", LOW, ids=lambda low: f"{low.finds}: {low.says[:20]}")
@pytest.mark.parametrize("surroundings", ["host", "container", "slurm", "kubernetes"])
def test_the_node_is_named(low: Low, surroundings: str) -> None:
    odd: Facts = {**low.facts, "surroundings": surroundings}
    (found,) = judged({0: node(), 1: node(), low.node: odd}, low.backend)
    severity, slug = low.finds.split()
    assert (found["severity"], found["code"]) == (severity, f"node.limits.{slug}")
    assert found["where"]["node"] == f"node-{low.node}" and "rank" not in found["where"]
    assert low.says in found["message"] and "{" not in found["fix"]


ALMOST = node(nofile=16384, tasks=16384, tasks_left=16384, shm_mib=16384, memory_left_mib=32768, cpus=16.0)
"""A quarter of what the others have."""


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_node_with_much_less_than_most_is_named(backend: str) -> None:
    most = dict.fromkeys(range(4), node())
    assert judged({**most, 2: ALMOST}, backend) == []
    less = {"nofile": 16383, "tasks": 16383, "shm_mib": 16383, "memory_left_mib": 32767, "cpus": 15.9}
    found = judged({**most, 2: node(**less)}, backend)
    assert [finding["code"].rpartition(".")[2] for finding in found] == ["nofile", "tasks", "shm", "memory", "cpus"]
    assert {(finding["severity"], finding["where"]["node"]) for finding in found} == {("warn", "node-2")}
    text = "a process may open 16,383 files, expected about 65,536 as on node-0, node-1 and node-3"
    assert found[0]["message"] == text and "ulimit -n 65536" in found[0]["fix"]


def kernel(**changed: tuple[int, int] | None) -> Facts:
    """What the kernel keeps for the node."""
    usual: dict[str, Any] = {
        "ports": (32768, 60999), "tracked": (900, 262144), "open_files": (9000, 2**63 - 1), "all_tasks": (900, 32768),
    }  # fmt: skip
    return node(kernel={**usual, **changed})


@pytest.mark.parametrize(
    "facts",
    [
        [kernel()] * 128,
        [node(), kernel()],
        [kernel(ports=None, tracked=None, open_files=None, all_tasks=None)],
        [kernel(ports=(32768, 60999)), kernel(ports=(1024, 65535))],  # either may be meant
        [kernel(ports=(1024, 65535))] * 4,
        [kernel(tracked=(260000, 262144))],
        [kernel(all_tasks=(32000, 32768))],
    ],
    ids=["128", "not all", "unknown", "two", "all", "some room", "some tasks"],
)
def test_what_the_kernel_keeps_is_enough(facts: list[Facts]) -> None:
    assert judged(dict(enumerate(facts))) == []


def test_a_range_of_ports_that_is_another_is_told_and_warned_of_where_it_is_far_smaller() -> None:
    most = dict.fromkeys(range(3), kernel())
    (other,) = judged({**most, 3: kernel(ports=(15000, 60999))})
    assert (other["severity"], other["where"]) == ("info", {"node": "node-3"})
    (small,) = judged({**most, 3: kernel(ports=(60000, 60999))})
    assert (small["severity"], small["code"]) == ("warn", "node.limits.ports")
    (few,) = judged({**most, 3: kernel(ports=(60000, 60099))})
    assert few["message"] == "100 ephemeral ports (60000-60099), expected at least 512 for 8 ranks"


TABLES = [
    (
        {"tracked": (262000, 262144)},
        "conntrack",
        "144 more connections can be tracked, of 262,144, expected at least 1",
    ),
    ({"open_files": (800_000, 800_500)}, "file_max", "500 more files can be opened by all processes of the node"),
    ({"all_tasks": (32700, 32768)}, "pid_max", "68 more processes and threads can be started on the node, of 32,768"),
]


@pytest.mark.parametrize(("changed", "slug", "says"), TABLES)
def test_the_node_whose_table_is_nearly_full_is_named(changed: Any, slug: str, says: str) -> None:
    (found,) = judged({0: kernel(), 1: kernel(**changed), 2: kernel()})
    assert (found["severity"], found["code"], found["where"]) == ("warn", f"node.limits.{slug}", {"node": "node-1"})
    assert found["message"].startswith(says) and "{" not in found["fix"], found


def test_of_two_nodes_the_one_with_less_is_named_and_of_many_with_little_none() -> None:
    (found,) = judged({0: node(shm_mib=8192, shm_free_mib=8192), 1: node(shm_mib=64, shm_free_mib=64)}, "gloo")
    assert found["where"] == {"node": "node-1"} and "64 MiB, expected about 8,192 as on node-0" in found["message"]
    assert judged({**dict.fromkeys(range(3), node(nofile=1024)), 3: node()}) == []


def test_nodes_with_other_numbers_of_ranks_share_other_amounts() -> None:
    facts = {0: node(cpus=64.0), 8: node(cpus=8.0, memory_left_mib=8192, tasks=8192, tasks_left=8192)}
    assert testing.judge(limits, facts, nodes={"node-0": range(8), "node-1": [8]}, backend="gloo") == []


def test_every_code_is_tested() -> None:
    tested = {*(low.finds.split()[1] for low in LOW), *(slug for _, slug, _ in TABLES), "ports"}
    assert tested == set(registry.load(registry.sources()["node.limits"]).codes)


def test_the_store_of_a_large_world_wants_more_files() -> None:
    (found,) = judged({n: node(nofile=2048 if n == 0 else 1024) for n in range(128)})
    assert (found["severity"], found["where"]) == ("warn", {"node": "node-0"})
    assert found["message"] == (
        "a process may open 2,048 files, expected at least 4,096 since the store serves 1,024 ranks"
    )
    assert found["fix"].startswith("Run `ulimit -n 4096` before the launcher")


@pytest.mark.parametrize(
    ("surroundings", "fix"),
    [
        ("container", "Start the container with --ipc=host, or with --shm-size=8g."),
        ("kubernetes", "Mount an emptyDir with `medium: Memory` at /dev/shm; its size counts as memory of the pod."),
        ("slurm", limits.SHM.fix),
        ("host", limits.SHM.fix),
    ],
)
def test_the_fix_is_that_of_the_surroundings(surroundings: str, fix: str) -> None:
    (found,) = judged({0: node(shm_free_mib=64, surroundings=surroundings)})
    assert found["fix"] == fix


@pytest.mark.parametrize(
    ("setting", "value", "facts"),
    [
        ("memlock_mib", 1, node(memlock=1 << 20)),
        ("tasks_a_rank", 1, node(tasks_left=8)),
        ("shm_mib", 64, node(shm_free_mib=64)),
        ("memory_mib_a_rank", 100, node(memory_left_mib=800)),
        ("cpus_a_rank", 0.5, node(cpus=4.0)),
        ("disk_mib", 1, node(disk={"free_mib": 1})),
    ],
)
def test_what_is_needed_can_be_set(setting: str, value: object, facts: Facts) -> None:
    assert len(judged({0: facts})) == 1
    assert judged({0: facts}, settings={setting: value}) == []


def test_the_summary_is_of_the_node_with_least() -> None:
    run = Run(made.job(1, 1), (0, 1), {})
    facts = {0: node(nofile=1024), 1: node(shm_free_mib=64, memory_left_mib=None)}
    text = "at least 1,024 open files, 64 MiB of shared memory, 131,072 MiB of memory"
    assert limits.summarize(facts, run) == text


def test_the_type_of_a_machine_is_what_its_firmware_says(tmp_path: Path) -> None:
    folder = tmp_path / "sys" / "class" / "dmi" / "id"
    folder.mkdir(parents=True)
    assert limits._instance_type(str(tmp_path)) is None
    types = {"p5.48xlarge\n": "p5.48xlarge", "DGXH100\n": "DGXH100", "Google Compute Engine\n": None, "\n": None,
             "Standard PC (Q35 + ICH9, 2009)\n": None, "Virtual Machine\n": None}  # fmt: skip
    for text, expected in types.items():
        (folder / "product_name").write_text(text)
        assert limits._instance_type(str(tmp_path)) == expected
