"""What the checks of the family `env` find."""

from typing import Any

from tests.faults.row import Fault, elsewhere, in_check
from tests.nodes import as_nodes


def _variable(name: str, value: str, story: str, *finds: str, **more: Any) -> Fault:
    """Of rank 1 of three."""
    culprit = {"rank": 1, "variable": name.partition("+")[0]}
    return in_check(
        f"variable_{name.lower()}_{len(value)}", story, f"`{name}={value}` on rank 1", *finds, only="env.variables",
        environ_of={1: {name: value}}, culprit=culprit, shares="variables", **more,
    )  # fmt: skip


_V = "env.variables"
VARIABLES = (
    _variable("NCCL_CROSS_NIC", "1", "An NCCL variable is set on one rank only.", f"fail {_V}.differs"),
    _variable("OMP_NUM_THREADS", "2", "OMP_NUM_THREADS differs on one rank.", f"warn {_V}.differs"),
    _variable("NCCL_SOCKET_IFNAM", "eth0", "A variable is misspelt.", f"warn {_V}.unknown", f"warn {_V}.differs"),
    _variable("NCCL_IB_DISABLE", "true", "A number is written as a word.", f"fail {_V}.differs",
              f"warn {_V}.wrong_value"),
    _variable("NCCL_TIMEOUT", "1800", "A variable that NCCL never had.", f"warn {_V}.no_effect"),
    _variable("NCCL_IB_CUDA_SUPPORT", "1", "A variable that NCCL has no more.", f"warn {_V}.no_effect"),
    _variable("NCCL_BLOCKING_WAIT", "1", "A variable under its old name, on one rank.", f"info {_V}.deprecated",
              f"warn {_V}.differs"),
    _variable("CUDA_LAUNCH_BLOCKING", "1", "A debugging variable is left over.", f"warn {_V}.leftover",
              f"warn {_V}.differs"),
    _variable("GLOO_SOCKET_IFNAME", "^lo", "gloo's interface is given in NCCL's grammar.",
              f"fail {_V}.wrong_grammar", f"warn {_V}.differs"),
)  # fmt: skip


def _varies(name: str, story: str, made: str, finds: str, node: int = 1, **more: Any) -> Fault:
    details = {"culprit": {"node": f"node-{node}"}, "exit_code": 1 if finds.startswith("fail") else 0, **more}
    return elsewhere(f"software_{name}", story, f"{made}, on one of several nodes", finds, **details)


SOFTWARE = (
    in_check("software_image", "A node runs another container image.", "`APPTAINER_NAME` on the second of three nodes",
             "warn env.software.image", only="env.software", culprit={"node": "node-1"},
             environ_of=as_nodes(3, {1: {"APPTAINER_NAME": "old.sif"}}), says="old.sif, expected"),
)  # fmt: skip

_IN_TURN = {
    rank: {"NODE_RANK": str(rank % 2), "SLURMD_NODENAME": f"node-{rank % 2}", "LOCAL_RANK": str(rank // 2),
           "LOCAL_WORLD_SIZE": "2"} for rank in range(4)
}  # fmt: skip
_UNEVEN = {
    rank: {"NODE_RANK": str(rank // 2), "SLURMD_NODENAME": f"node-{rank // 2}", "LOCAL_WORLD_SIZE": str(2 - rank // 2)}
    for rank in range(3)
}
LAUNCH = (
    in_check("ranks_in_turn", "Ranks are distributed round-robin over the nodes.",
             "ranks 0 and 2 call themselves node-0, 1 and 3 node-1", "warn env.launch.not_grouped", only="env.launch",
             world=4, culprit={}, environ_of=_IN_TURN,
             says="over 2 nodes: node-0 has 0,2, node-1 has 1,3; expected consecutive ranks on each node"),
    in_check("uneven_nodes", "A node has fewer ranks than another.", "ranks 0 and 1 call themselves node-0, 2 node-1",
             "warn env.launch.uneven", only="env.launch", culprit={"node": "node-1"}, environ_of=_UNEVEN,
             says="1 rank, expected 2 as on most nodes"),
    in_check("all_on_gpu_0", "All ranks of a node take GPU 0.", "`LOCAL_RANK=0` on both",
             "fail env.launch.local_rank_taken", only="env.launch", world=2, environ={"LOCAL_RANK": "0"},
             culprit={"rank": 1, "peer_rank": 0}, says="LOCAL_RANK is 0, which rank 0 on this node has, too"),
    in_check("launch_openmp_core", "A variable of OpenMP binds each rank to the same core when torch is imported.",
             "`OMP_PROC_BIND=close` on both, with two CPUs or more", "warn env.launch.shared_cores", only="env.launch",
             world=2, environ={"OMP_PROC_BIND": "close"}, culprit={}, noticed_by="0-1",
             says="ranks 0-1 share core ", more=True),
)  # fmt: skip

ALL: tuple[Fault, ...] = (*VARIABLES, *SOFTWARE, *LAUNCH)
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = (
    # tests/checks/env/test_variables.py
    elsewhere("nccl_conf", "NCCL's configuration file sets a variable on one rank, another line names none.",
              "NCCL_CONF_FILE: a file of its own on rank 1, one that is not there on the others",
              "fail env.variables.differs", "warn env.variables.conf_line", "warn env.variables.conf_missing",
              "warn env.variables.leftover", culprit={"rank": 1}),
    elsewhere("nccl_parameters", "An environment plugin of NCCL sets a parameter on one rank, which no variable shows.",
              "a stand-in for libnccl (tests/standin/nccl.c) with another value on rank 1",
              "fail env.variables.differs", culprit={"rank": 1, "variable": "NCCL_CROSS_NIC"},
              says="NCCL itself reads NCCL_CROSS_NIC as '2', expected '<unset>' as on 2 of 3 ranks"),
    elsewhere("nccl_parameters_hang", "An environment plugin of NCCL hangs on one rank.",
              "the stand-in pauses on rank 2", "warn env.variables.parameters", culprit={"rank": 2}, exit_code=0,
              says="NCCL was asked for its parameters: no answer within 3.0 s"),
    # tests/checks/env/test_launch.py
    elsewhere("no_local_rank", "Ranks that share a node's GPUs have no LOCAL_RANK.",
              "two ranks without it, and torch counts 8 GPUs (tests/nccl_at_work)", "info env.launch.no_local_rank",
              culprit={"variable": "LOCAL_RANK"}, exit_code=0),
    # tests/checks/env/test_cores.py
    elsewhere("launch_shared_core", "Two ranks of a node are bound to one core, and none to another one.",
              "`taskset` on both", "warn env.launch.shared_cores", culprit={}, exit_code=0, world=2,
              says="ranks 0-1 share core "),
    elsewhere("launch_few_cores", "A rank is bound to fewer cores than those of other nodes.",
              "`taskset` on the second of three nodes", "warn env.launch.few_cores",
              culprit={"node": "node-1", "rank": 1}, exit_code=0, says="the rank may use core "),
    # tests/test_launchers.py
    elsewhere("single_process", "accelerate launch starts one process where two were meant.",
              "`accelerate launch --cpu --num_processes 2`", "warn env.launch.single_process",
              culprit={"variable": "RANK"}, exit_code=0,
              says="accelerate launch has started one process (ACCELERATE_USE_CPU is set, RANK is not)"),
    # tests/checks/env/test_node_groups.py
    elsewhere("bad_groups", "The file of groups has a line that is none, or cannot be read.",
              "`rack7` without `=`; no such file", "warn env.launch.bad_groups", culprit={}, exit_code=0),
    elsewhere("few_groups", "The file of groups lacks nodes of the job.", "a file with one of three nodes",
              "info env.launch.bad_groups", culprit={}, exit_code=0),
    elsewhere("variable_of_a_switch", "An NCCL variable is set on all nodes behind one switch.",
              "`NCCL_CROSS_NIC=1` on two of five nodes, with Slurm's `SLURM_TOPOLOGY_ADDR`",
              "fail env.variables.differs", culprit={"group": "switch leaf-0", "variable": "NCCL_CROSS_NIC"},
              says="both nodes of switch leaf-0 (node-1, node-2), and no other, have this; on node-1: "),
    elsewhere("variable_of_a_rack", "OMP_NUM_THREADS differs on all nodes of one rack.",
              "`OMP_NUM_THREADS=3` on two of five nodes, and a file of racks", "warn env.variables.differs",
              culprit={"group": "rack 8", "variable": "OMP_NUM_THREADS"}, exit_code=0),
    # tests/test_launch_faults.py
    elsewhere("late", "A rank joins too late.", "rank 2 is started when a check is running",
              "fail env.launch.late", culprit={"rank": 2}),
    # tests/checks/env/test_software.py
    _varies("python", "A node has another Python.", "a `sys.version` of 3.9.1", "warn env.software.python",
            says="Python is 3.9, expected 3."),
    _varies("torch", "A node has another torch.", "a torch folder with another `version.py`",
            "fail env.software.torch", node=3,
            says="torch is 2.0.0"),
    _varies("cuda", "A node's torch is built for another CUDA.", "a torch folder with another `version.py`",
            "fail env.software.cuda", node=4, says="torch's CUDA is 11.8, expected "),
    _varies("nccl", "A node has loaded another NCCL.", "a torch folder whose `cuda/nccl.py` answers otherwise",
            "fail env.software.nccl", says="NCCL is 2.20.5, expected 2.21.5 as on 2 of 3 nodes"),
    _varies("preloaded", "A node has another NCCL than its torch was built with.",
            "LD_PRELOAD of a libnccl (tests/standin/nccl.c) whose `ncclGetVersion` answers otherwise",
            "fail env.software.nccl", says="NCCL is 2.28.9, expected 2.32.3 as on 2 of 3 nodes"),
    _varies("cudnn", "A node has loaded another cuDNN.", "a torch folder whose `backends/cudnn` answers otherwise",
            "warn env.software.cudnn", says="cuDNN is 8907, expected 90100 as on 2 of 3 nodes"),
    _varies("paths", "A node has the same torch at another path.", "a folder of links to torch's files, on PYTHONPATH",
            "info env.software.paths", node=5),
    _varies("driver", "A node has another GPU driver.", "another `/sys/module/nvidia/version`",
            "warn env.software.driver", says="the GPU driver is 535.54.03, expected 550.54.15 as on 2 of 3 nodes"),
    _varies("kernel", "A node runs another kernel.", "`setarch --uname-2.6`", "warn env.software.kernel",
            says="the kernel is 2.6."),
    _varies("packages", "A node has other Python packages.", "a folder with other `.dist-info` on PYTHONPATH",
            "warn env.software.packages",
            says="2 packages different from most nodes: left-over is 1.2, expected none; psutil is 0.0.1, expected "),
    _varies("commit", "A node has another commit checked out.", "a clone with one more commit, seen at the same path",
            "fail env.software.sources", says="; different: train.py"),
    _varies("edits", "A node's code was edited.", "a clone with an edited file, seen at the same path",
            "fail env.software.sources", node=2, says=" with edits"),
    _varies("folder", "A node's code differs, and lies elsewhere.", "another clone as current folder",
            "warn env.software.sources", node=4, says="; different: train.py"),
    _varies("code", "The folder of --code differs on a node.", "another file in it", "fail env.software.sources",
            says="; different: net.py"),
    _varies("edits_version_4", "A node's code was edited, and its index has version 4.",
            "a clone with `git update-index --index-version 4` and an edited file", "fail env.software.sources", node=3,
            says=" with edits"),
    _varies("edits_split", "A node's code was edited, and its index is split.",
            "a clone with `git update-index --split-index` and an edited file", "fail env.software.sources", node=4,
            says=" with edits"),
    _varies("edits_sha256", "A node's code was edited, in a repository of SHA-256.",
            "clones of `git init --object-format=sha256`, and an edited file", "fail env.software.sources",
            says=" with edits"),
    _varies("edits_many", "A node's code was edited, among more than 20,000 files.",
            "clones with 20,001 more files, and an edited file", "fail env.software.sources", says=" with edits"),
    _varies("edits_untracked", "A node has another version of a file that git does not track.",
            "another content of a module that train.py imports", "warn env.software.sources", node=5,
            says="; different: own.py"),
    _varies("no_index", "A node's repository cannot be read.", "a clone whose index has version 9",
            "info env.software.no_sources", node=6,
            says=" could not be compared: git's index has version 9; 2 to 4 are known"),
    _varies("patched", "A node's torch was patched.", "a file mounted over one of torch's",
            "fail env.software.patched", says=": torch/nn/functional.py is not as pip installed it, expected "),
    _varies("library", "A node has loaded another OpenMP library.",
            "`LD_PRELOAD` of a copy of libgomp with one byte more", "warn env.software.library", node=2,
            says="libgomp.so.1 has other bytes than on most of 4 nodes"),
    _varies("no_code", "The folder of --code is missing on a node.", "no such folder",
            "fail env.software.no_sources", node=2, says="src cannot be compared: there is no such folder"),
)  # fmt: skip
