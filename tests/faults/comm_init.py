"""What the checks `comm.init` and `comm.transports` find in NCCL's log. There is no NCCL without a GPU: the log is that
of a stand-in (tests/nccl_at_work), or the row is driven on a machine with a GPU."""

from tests.faults.row import Fault, elsewhere

ELSEWHERE = (
    # tests/checks/comm/test_transports_run.py
    elsewhere("nccl_socket", "NCCL goes over sockets on a node that has RDMA.",
              "a log of NCCL's with `NCCL_IB_DISABLE=1`, and a tree over /sys, on the second of three nodes",
              "warn comm.transports.socket", culprit={"node": "node-1", "variable": "NCCL_IB_DISABLE"}, exit_code=0),
    elsewhere("nccl_shared_memory", "/dev/shm is full on a node, and all ranks fail.",
              "a log of NCCL's on the second of three nodes, and an error on all", "fail comm.init.shared_memory",
              culprit={"node": "node-1", "rank": 1}, noticed_by="0,2"),
)  # fmt: skip
ALL: tuple[Fault, ...] = ()
