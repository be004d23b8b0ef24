"""What the checks of the family `node` find."""

import os
from typing import Any

from tests.faults.row import Fault, elsewhere, in_check
from tests.nodes import as_nodes
from tests.running import PLUGINS, ROOT


def _clock(name: str, story: str, made: str, *finds: str, world: int = 3, **more: Any) -> Fault:
    """A node for each rank: `node-0` and so on."""
    nodes = as_nodes(world, more.pop("environ_of"))
    path = os.pathsep.join(str(folder) for folder in (ROOT / "tests" / "clocks", ROOT, PLUGINS))
    environ = {"PYTHONPATH": path}
    return in_check(
        name, story, made, *finds, only="node.clock", world=world, environ=environ, environ_of=nodes, **more
    )


_AHEAD, _SKEWED = {"TEST_CLOCK_AHEAD_S": "3600"}, "warn node.clock.skewed"
CLOCK = (
    _clock("clock_ahead", "A node's clock is an hour ahead.", "`time.time` on rank 1", _SKEWED,
           culprit={"node": "node-1"}, environ_of={1: _AHEAD}, says="the clock is 60 min ahead of most"),
    _clock("clock_behind", "The clock that the others are compared with is an hour behind.", "`time.time` on rank 0",
           _SKEWED, culprit={"node": "node-0"}, environ_of={0: {"TEST_CLOCK_AHEAD_S": "-3600"}}, says="60 min behind"),
    _clock("clocks_of_two", "Two nodes' clocks are an hour apart.", "`time.time` on rank 1", _SKEWED, world=2,
           culprit={}, environ_of={1: _AHEAD}, says="the clock of node-1 is 60 min ahead of that of node-0"),
    _clock("clock_asked_and_killed", "A rank is killed while the clocks are compared.", "SIGKILL on rank 1",
           "fail node.clock.crashed", noticed_by="0,2", environ_of={1: {"TEST_CLOCK_DEED": "kill_itself"}}),
    _clock("clock_asked_and_stopped", "A rank is stopped while the clocks are compared.", "SIGSTOP on rank 1",
           "fail node.clock.timed_out", noticed_by="0,2", environ_of={1: {"TEST_CLOCK_DEED": "stop_itself"}}),
    _clock("clock_answer_killed", "The rank that the others ask for its time is killed.", "SIGKILL on rank 0",
           "fail node.clock.crashed", culprit={"rank": 0}, noticed_by="1-2",
           environ_of={0: {"TEST_CLOCK_DEED": "kill_itself"}}, more=True),
)  # fmt: skip

NODE_1 = {"node": "node-1"}


def _limit(name: str, story: str, made: str, severity: str, slug: str, node: int = 1, **more: Any) -> Fault:
    details = {"culprit": {"node": f"node-{node}"}, "exit_code": 1 if severity == "fail" else 0, **more}
    return elsewhere(f"limits_{name}", story, made, f"{severity} node.limits.{slug}", **details)


LIMITS = (
    in_check("limits_tmpdir", "TMPDIR is not there on one node.",
             "`TMPDIR=/no/such/folder` on the second of three nodes", "warn node.limits.disk", only="node.limits",
             culprit={**NODE_1, "file": "/no/such/folder"}, environ_of=as_nodes(3, {1: {"TMPDIR": "/no/such/folder"}}),
             says="TMPDIR (/no/such/folder) cannot be written to: No such file or directory"),
)  # fmt: skip
LIMITS_ELSEWHERE = (
    # tests/checks/node/test_limits.py
    _limit("store_files", "The store's node may open too few files.", "`ulimit -n 66` on the first of six nodes",
           "fail", "nofile", culprit={"node": "node-0"},
           says="a process may open 66 files, expected at least 70 for the connections to 6 ranks"),
    _limit("files", "A node may open few files.", "`ulimit -n 200` on the second of three nodes", "warn", "nofile",
           says="a process may open 200 files, expected at least 1,024 for a rank"),
    _limit("tasks_cgroup", "A container may start few processes.", "a cgroup's `pids.max`", "warn", "tasks",
           says=" more processes and threads may be started, of 60, expected at least 64 for 1 rank"),
    _limit("tasks_user", "A user may start few processes.", "another user, with `ulimit -u 60`", "warn", "tasks",
           node=2, says=" more processes and threads may be started, of 60, expected at least 64 for 1 rank"),
    _limit("memlock", "RDMA may lock too little memory.",
           "`ulimit -l 64`, no CAP_IPC_LOCK, and a folder of RDMA devices; judged as on nccl", "warn", "memlock",
           says="64 KiB of memory may be locked for 1 RDMA device, expected at least 32,768 MiB"),
    _limit("shm_small", "/dev/shm has docker's 64 MiB.", "a tmpfs of that size on one of five nodes",
           "warn", "shm", node=3, says="64 MiB are free in /dev/shm, of 64, expected at least 1,024 MiB"),
    _limit("shm_beside", "/dev/shm has docker's 64 MiB on one node, and gigabytes on the others.",
           "a tmpfs of that size on one of eight nodes, on gloo", "warn", "shm", node=7,
           says="/dev/shm has 64 MiB, expected about "),
    _limit("files_beside", "A node may open 1,024 files, and the others sixteen times as many.",
           "`ulimit -n 1024` on the fourth of six nodes, 16,384 on most others", "warn", "nofile", node=3,
           says="a process may open 1,024 files, expected about 16,384 as on node-2"),
    _limit("shm_full", "/dev/shm is full.", "a tmpfs with a file that fills it", "warn", "shm",
           node=5, says="0 MiB are free in /dev/shm, of 64, expected at least 1 MiB"),
    _limit("memory", "A container has little memory.", "a cgroup's memory limit of 1 GiB", "warn", "memory",
           says=" within a limit of 1,024 MiB, expected at least 2,048 MiB for 1 rank"),
    _limit("quota", "A container has few CPUs.", "a cgroup's quota of half a CPU", "warn", "cpus",
           node=2, says="the ranks may use 0.5 of the CPUs, expected at least 1 for 1 rank"),
    _limit("affinity", "All ranks of a node share one CPU.", "`taskset` before torchrun", "warn", "cpus",
           culprit={}, says="the ranks may use 1 of the CPUs, expected at least 2 for 2 ranks"),
    _limit("disk_full", "TMPDIR is full.", "a tmpfs with a file that fills it", "warn", "disk",
           node=5, says="cannot be written to: No space left on device; expected at least 100 MiB free"),
    _limit("disk_nearly_full", "TMPDIR is nearly full.", "a tmpfs of 20 MiB", "warn", "disk",
           node=3, says=" MiB free, expected at least 100 MiB"),
    _limit("inodes", "TMPDIR takes no more files.", "a tmpfs with `nr_inodes=50`", "warn", "disk",
           node=4, says=" more files (inodes), expected at least 1,000"),
    _limit("folder_full", "The current folder is full.", "a tmpfs with a file that fills it", "warn", "disk",
           node=5, says="the current folder ("),
    _limit("ports", "A node has few ephemeral ports.", "`sysctl net.ipv4.ip_local_port_range` on a host of its own",
           "warn", "ports", culprit={"node": "host-b"},
           says="50 ephemeral ports (40000-40049), expected at least 64 for 1 rank"),
    _limit("ports_beside", "A node has far fewer ephemeral ports than the others.",
           "`sysctl net.ipv4.ip_local_port_range` on a host of its own", "warn", "ports", culprit={"node": "host-c"},
           says="the ephemeral ports are 60000-60999, expected 32768-60999 as on 4 of 7 nodes"),
    _limit("ports_others", "A node has other ephemeral ports than the others, and enough.",
           "`sysctl net.ipv4.ip_local_port_range` on a host of its own", "info", "ports", culprit={"node": "host-d"},
           says="the ephemeral ports are 15000-60999, expected 32768-60999 as on 4 of 7 nodes"),
    _limit("conntrack", "A node's table of tracked connections is nearly full.",
           "a file over /proc/sys/net/netfilter/nf_conntrack_count", "warn", "conntrack",
           says=" more connections can be tracked, of "),
    _limit("file_max", "A node's table of open files is nearly full.", "a file over /proc/sys/fs/file-nr", "warn",
           "file_max", node=2, says="500 more files can be opened by all processes of the node, of 800,500"),
    _limit("pid_max", "All users of a node together run nearly as many processes as it can have.",
           "a file over /proc/sys/kernel/pid_max", "warn", "pid_max", node=3,
           says=" more processes and threads can be started on the node, of "),
    _limit("cpu_time", "The shell limits CPU time.", "`ulimit -t 3600`", "warn", "ulimit",
           says="a process may run for 3,600 s of CPU time (ulimit -t), expected unlimited"),
)  # fmt: skip


def _kernel(name: str, story: str, made: str, *finds: str, **more: Any) -> Fault:
    exit_code = 1 if any(find.startswith("fail") for find in finds) else 0
    found = tuple(find.replace(" ", " node.kernel.") for find in finds)
    return elsewhere(f"kernel_{name}", story, made, *found, **{"culprit": NODE_1, "exit_code": exit_code, **more})


_LOG = "a file over /dev/kmsg on the second of three nodes"
KERNEL_ELSEWHERE = (
    # tests/checks/node/test_kernel.py
    _kernel("xid", "A GPU has fallen off the bus, another asks for a reboot, a third does not start, and a link of an "
            "NVSwitch has failed.", _LOG, "fail xid", "fail sxid", "fail recovery", "fail driver",
            culprit={**NODE_1, "device": "0000:c1:00.0", "link": 30},
            says="ago: the GPU does not answer over PCIe any more (it has fallen off the bus); expected none"),
    _kernel("troubles", "PCIe errors, a hung and a killed task, a memory error, a hot CPU, a network card whose "
            "firmware has failed, a link that flaps, and a driver of another version.", _LOG, "warn aer", "warn hung",
            "warn out_of_memory", "warn memory_error", "warn throttled", "warn nic", "warn link_down", "warn mismatch",
            says="tasks hung in the kernel: python3 ("),
    _kernel("storage", "The kernel hit a bug, a disk has errors, an NFS server does not answer, and no more files can "
            "be opened.", _LOG, "warn kernel_bug", "warn disk", "warn file_server", "warn open_files",
            says="the NFS server 10.7.192.16 does not answer, "),
    _kernel("apart", "GPUs and network cards do not reach each other (and no fabric manager runs, if that is seen).",
            "trees of files over /sys and /proc: a proprietary driver on an old kernel, ACS, an IOMMU, an NVSwitch",
            "warn peermem", "warn acs", "warn iommu", also=("fail node.kernel.fabric_manager",), exit_code=1,
            says="1 RDMA device, but nvidia_peermem is not loaded and the driver's proprietary modules on Linux 5.4"),
    # tests/checks/gpu/test_fabric_manager.py
    _kernel("fabric_manager", "No fabric manager runs on a node with NVSwitches.", "a made-up machine that has all its "
            "processes to itself, and no nv-fabricmanager among them", "fail fabric_manager", culprit={}, world=1,
            says="nv-fabricmanager is not running, expected on a node with NVSwitches (4 here)"),
)  # fmt: skip

LEFTOVERS_ELSEWHERE = (
    # tests/checks/node/test_leftovers.py
    elsewhere("leftovers_process", "A process of a Slurm job outlives it.", "a process with the job's number in its "
              "environment", "warn node.leftovers.process", culprit={}, exit_code=0, world=1,
              says="job 4711000 has left processes, 0.3 s after its end: sleep"),
    elsewhere("leftovers_shm", "A Slurm job leaves a file in /dev/shm.", "a file of a user who runs nothing",
              "warn node.leftovers.shm_files", culprit={}, exit_code=0, world=1,
              says="the user of job 4711000 has left 1 file of 4 KiB in /dev/shm: torch_"),
)  # fmt: skip

ALL: tuple[Fault, ...] = (*CLOCK, *LIMITS)
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = (*LIMITS_ELSEWHERE, *KERNEL_ELSEWHERE, *LEFTOVERS_ELSEWHERE)
