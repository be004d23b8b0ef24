"""What `comm.init` and `comm.transports` find. There is no NCCL without a GPU: a stand-in (tests/nccl_at_work) writes a
log where NCCL would and raises what torch would, and the rest of the run is real. Each log has its source beside it, in
tests/checks/comm/recorded_starts.py."""

from typing import Any

from tests.checks.comm import recorded_starts
from tests.checks.comm.recorded_starts import STARTS
from tests.faults import comm
from tests.faults.row import Fault, elsewhere, in_check

ALL: tuple[Fault, ...] = (
    in_check("init_late", "A rank comes to the first collective seconds after the others.",
             "on rank 1, its device takes 4 s to start, as without persistence mode: `sick_comm.slow_device`",
             "warn comm.init.late_rank", only="comm.init",
             shares="init", noticed_by="0,2", environ_of={1: comm.sick("slow_device")},
             settings={"comm.init.slow_s": "1"}, exit_code=0),
    in_check("init_sum", "The first all-reduce gives one rank a wrong sum.", "on rank 2: `sick_comm.first_sum_off`",
             "fail comm.init.wrong_sum", only="comm.init", shares="init", culprit={"rank": 2},
             environ_of={2: comm.sick("first_sum_off")}, settings={"comm.init.slow_s": "1"},
             says="the first all-reduce gave 7, expected 6"),
    in_check("init_sum_once", "The first all-reduce gives one rank a wrong sum, and the second a right one.",
             "on rank 1: `sick_comm.sum_off_once`", "fail comm.init.wrong_sum", only="comm.init",
             environ_of={1: comm.sick("sum_off_once")}, says="the fault is intermittent", more=True),
)  # fmt: skip


def _start(slug: str, story: str, **culprit: Any) -> Fault:
    """A rank whose start of NCCL failed. All share a run, a rank per node: rank 0 lost its peers."""
    rank = list(STARTS).index(slug) + 1
    made = f"on rank {rank}, NCCL's log and torch's error: {STARTS[slug].source}"
    where = {"node": f"node-{rank}", "rank": rank, **culprit}
    return elsewhere(f"init_{slug}", story, made, f"fail comm.init.{slug}", culprit=where, noticed_by="0")


FAILED_STARTS = (
    _start("shared_memory", "/dev/shm of a node is full."),
    _start("no_interface", "NCCL_SOCKET_IFNAME names an interface that a node does not have.",
           variable="NCCL_SOCKET_IFNAME"),
    _start("fabric_manager", "The fabric manager of a node with NVSwitches is not running."),
    _start("driver", "A node's driver is older than CUDA's libraries need."),
    _start("gpu_failed", "A GPU has an uncorrectable ECC error."),
    _start("memlock", "A rank may not lock memory for RDMA."),
    _start("rdma", "A rank's RDMA connection times out."),
    _start("imex", "NVLinks connect the nodes, but IMEX does not work on one."),
    _start("open_files", "A rank may open too few files."),
    _start("plugin", "NCCL_NET names a plugin that a node does not have.", variable="NCCL_NET"),
)  # fmt: skip
TWINS = elsewhere(
    "init_duplicate_gpu", "Two ranks of a node take one GPU.", f"on both: {recorded_starts.twins(0, 1).source}",
    "fail comm.init.duplicate_gpu", culprit={"node": "node-0", "rank": 0, "peer_rank": 1}, noticed_by="2-3",
    says="rank 0 and rank 1 share one GPU (PCI 31000)",
)  # fmt: skip
MISMATCH = elsewhere(
    "init_versions", "A node has another NCCL than the others.",
    f"on all ranks: {recorded_starts.mismatch(0, '2.27.5', 1, '2.26.2').source}", "fail comm.init.versions",
    culprit={"node": "node-1", "rank": 1}, noticed_by="0,2", says="has NCCL 2.26.2, expected 2.27.5",
)  # fmt: skip
UNREACHABLE = elsewhere(
    "init_unreachable", "A host's firewall lets no one in but on the master port.",
    "`iptables` rejects connections to host-a's ephemeral ports; the stand-in for NCCL connects as its bootstrap does, "
    "and tells of the kernel's error in the words of NCCL 2.27.5, src/misc/socket.cc",
    "fail comm.init.unreachable", culprit={"node": "host-a"}, noticed_by="1-2", says="No route to host",
)  # fmt: skip


def _way(slug: str, node: int, story: str, made: str, **more: Any) -> Fault:
    """Nodes of one job, each with another fault, among others that are sound."""
    severity = "fail" if slug == "versions" else "warn"
    variable = {"variable": more["variable"]} if "variable" in more else {}
    rank = {"rank": more["rank"]} if "rank" in more else {}
    return elsewhere(
        f"transports_{slug}", story, f"NCCL's log on one of several made-up DGX H100: {made}",
        f"{severity} comm.transports.{slug}", culprit={"node": f"node-{node}", **variable, **rank},
        exit_code=int(severity == "fail"),
    )  # fmt: skip


BETWEEN = (
    _way("socket", 1, "NCCL uses sockets on a node that has RDMA.", "in the words of 2.27.5, `NCCL_IB_DISABLE=1`",
         variable="NCCL_IB_DISABLE"),
    _way("gdr_off", 2, "A node lacks nvidia_peermem.", "GPUDirect RDMA disabled for its HCAs, as in NVIDIA/nccl issue "
         "1537"),
    _way("nvls_off", 3, "A node's NVSwitches do not sum.", "in the words of 2.27.5, no NVLS"),
    _way("versions", 4, "A node has another NCCL.", "in the words of 2.26.2", rank=4),
    _way("plugin", 5, "One node has HPC-X's network plugin.", "in the words of 2.27.5, the plugin is loaded"),
    _way("differs", 6, "A node takes fewer HCAs than the others.", "in the words of 2.27.5, `NCCL_IB_HCA=^mlx5_7`",
         variable="NCCL_IB_HCA"),
)  # fmt: skip
"""A rank per node."""
INSIDE = (
    _way("p2p_off", 1, "NCCL copies between a node's GPUs through host memory.", "SHM as in NVIDIA/nccl issue 1817, "
         "`NCCL_P2P_DISABLE=1`", variable="NCCL_P2P_DISABLE"),
    _way("shm_off", 2, "A node's ranks reach each other over the network.", "in the words of 2.27.5, "
         "`NCCL_P2P_DISABLE=1` and `NCCL_SHM_DISABLE=1`", variable="NCCL_SHM_DISABLE"),
    _way("split_node", 3, "A node's ranks are in containers with host names of their own.", "in the words of 2.27.5, "
         "each rank is a node"),
)  # fmt: skip
"""Two ranks per node."""
ELSEWHERE = (*FAILED_STARTS, TWINS, MISMATCH, UNREACHABLE, *BETWEEN, *INSIDE)
"""tests/checks/comm/test_failed_starts.py, tests/checks/comm/test_transports_run.py"""
