"""What the checks `net.rdma` and `net.rdma_errors` find."""

from typing import Any

from tests.faults.row import Fault, elsewhere

_R, _E = "net.rdma", "net.rdma_errors"
_F = "net.efa"
_EFA = (
    # tests/checks/net/test_efa.py: real runs
    elsewhere("efa_unseen", "libfabric shows fewer EFA devices than a node has.",
              "a stub fi_info on the second of three nodes with EFA in /sys", f"fail {_F}.missing",
              culprit={"node": "node-1"}, says="libfabric shows 1 of 2 EFA devices, expected all; rdmap1s0 is missing"),
    elsewhere("efa_versions", "A node has another version of libfabric and of NCCL's plugin for it.",
              "a stub fi_info and a file with the plugin's version on the third node", f"warn {_F}.versions",
              culprit={"node": "node-2"}, exit_code=0, says="libfabric is 2.1.0amzn1.0, expected 2.4.0amzn5.0 as on 2"),
    elsewhere("efa_silent", "libfabric hangs on a node.", "a stub fi_info that sleeps on the second of two nodes",
              f"fail {_F}.no_answer", culprit={"node": "node-1"},
              says="fi_info -p efa: no answer within 5 s, expected its devices"),
    elsewhere("efa_no_plugin", "A node has EFA, but no plugin for NCCL.", "no such file on the first of two nodes",
              f"warn {_F}.no_plugin", culprit={"node": "node-0"}, exit_code=0,
              says="aws-ofi-nccl was not found, expected it as on 1 of 2 nodes"),
)  # fmt: skip
_RUN = (
    # tests/checks/net/test_rdma.py and test_rdma_errors.py: real runs
    elsewhere("rdma_sick_node", "Of a node's RoCE cards one is gone, one is down, one is slow and one has no address.",
              "a tree over /sys on the second of three nodes", f"fail {_R}.missing", f"fail {_R}.down",
              f"warn {_R}.slow", f"fail {_R}.no_gid", culprit={"node": "node-1"},
              says="mlx5_2 is DOWN (Polling), expected ACTIVE as on 2 of 3 nodes"),
    elsewhere("rdma_closed", "A container has the HCAs in /sys, but not in /dev/infiniband.",
              "a tree over /sys on the second of two nodes", f"warn {_R}.permission_denied", culprit={"node": "node-1"},
              exit_code=0, says="mlx5_0 and mlx5_1 are closed to this process (/dev/infiniband)"),
    elsewhere("rdma_errors", "A link gets worse during the run, and another goes down.",
              "a plugin changes counters and a state in a tree over /sys on the second of two nodes",
              f"warn {_E}.link", f"fail {_E}.went_down", culprit={"node": "node-1"},
              says="counting link errors: link_downed 3 to 4, symbol_error 7 to 5,000,007, expected none during"),
    elsewhere("rdma_resent", "A port resends packets during the run.", "a plugin changes that counter in the tree",
              f"info {_E}.retransmits", culprit={"node": "node-1", "device": "mlx5_0"}, exit_code=0,
              says="1 of 8 ports resent packets during the run (mlx5_0 of node-1: local_ack_timeout_err 3 to 9)"),
    elsewhere("rdma_full", "A link went down so often that its counter has stopped.", "link_downed: 255 in the tree",
              f"warn {_E}.counter_saturated", culprit={"node": "node-1", "device": "mlx5_3"}, exit_code=0,
              says="mlx5_3 is at the end of its counter link_downed (255), expected room to rise"),
    elsewhere("rdma_unused", "No RDMA port of any node is up.", "state: DOWN on all ports of two trees over /sys",
              f"info {_R}.no_active_port", culprit={}, exit_code=0,
              says="none of 4 ports is ACTIVE, expected some if NCCL"),
    elsewhere("rdma_too_many", "The nodes have more ports than NCCL uses.", "33 cards in two trees over /sys",
              f"info {_R}.too_many", culprit={"device": "mlx5_32"}, exit_code=0,
              says="mlx5_32 is beyond the 32 ports that NCCL uses on both nodes, expected at most 32"),
)  # fmt: skip


def _tree(name: str, story: str, made: str, find: str, **more: Any) -> Fault:
    """Of the second of three nodes, unless said otherwise."""
    details = {"culprit": {"node": "node-1"}, "exit_code": 1 if find.startswith("fail") else 0, **more}
    return elsewhere(f"rdma_{name}", story, made, find, **details)


_TREES = (
    # tests/checks/net/test_rdma.py: trees of /sys, read by the real code and judged together
    _tree("silent", "A driver waits for its card, and whoever reads of it waits, too.",
          "a pipe in the place of a file of /sys", f"fail {_R}.no_answer",
          culprit={"node": "node-1", "device": "mlx5_3"},
          says="mlx5_3 is silent: reading its files in /sys did not end within"),
    _tree("leaf_down", "The leaf switch of most nodes is dead.", "state: DOWN and Polling on all ports of 5 of 8 nodes",
          f"fail {_R}.down", culprit={},
          says="is DOWN on node-0, node-1 and 3 more, ACTIVE on node-5, node-6 and node-7"),
    _tree("rail_down", "The leaf switch of one rail died under all nodes.",
          "state: DOWN and Polling, and link_downed: 2, of the fourth card of all", f"warn {_R}.down",
          culprit={"device": "mlx5_3"}, says="expected ACTIVE as most of its siblings, and as before"),
    _tree("state_of_two", "Of two nodes with one HCA each, one is up and one is down.", "state: DOWN",
          f"fail {_R}.down", culprit={"device": "mlx5_0"}, says="ACTIVE on node-0, DOWN on node-1"),
    _tree("no_subnet_manager", "The links of all nodes are up, but there is no subnet manager.", "state: INIT",
          f"warn {_R}.down", culprit={}, says="are INIT (LinkUp) on all 3 nodes"),
    _tree("extra_port", "A node has one active port more.", "one more card with state: ACTIVE",
          f"fail {_R}.unequal", culprit={"device": "mlx5_8"},
          says="the number of ports that NCCL uses is 8 on node-0 and node-2, 9 on node-1"),
    _tree("selects_nothing", "NCCL_IB_HCA selects nothing on a node.", "`NCCL_IB_HCA==mlx5`",
          f"fail {_R}.no_port_selected", culprit={"node": "node-1", "variable": "NCCL_IB_HCA"},
          says="left out by NCCL_IB_HCA='=mlx5'"),
    _tree("selects_fewer", "NCCL_IB_HCA selects fewer ports on a node.", "`NCCL_IB_HCA==mlx5_1`",
          f"fail {_R}.unequal", culprit={"node": "node-1", "variable": "NCCL_IB_HCA"},
          says="NCCL uses 1 port, expected 8"),
    _tree("stale_name", "NCCL_IB_HCA names a device that no node has.", "`NCCL_IB_HCA==mlx5_0,mlx5_9` on all",
          f"warn {_R}.unmatched", culprit={"variable": "NCCL_IB_HCA"},
          says="mlx5_9 is not there, but named by NCCL_IB_HCA"),
    _tree("link_layer", "A card of a node is set to Ethernet.", "link_layer: Ethernet", f"fail {_R}.link_layer",
          culprit={"node": "node-1", "device": "mlx5_2"}, says="mlx5_2 is at Ethernet, expected InfiniBand"),
    _tree("pcie", "A card of a node has half its PCIe lanes.", "current_link_width: 8", f"warn {_R}.pcie",
          culprit={"node": "node-1", "device": "mlx5_2"}, says="mlx5_2 is at 32.0 GT/s x8, expected 32.0 GT/s x16"),
    _tree("firmware", "A card of a node has older firmware.", "fw_ver", f"warn {_R}.firmware",
          culprit={"node": "node-1", "device": "mlx5_2"}, says="expected 28.39.2048 as on 23 of 24 HCAs of its board"),
    _tree("gid_index", "The GID that NCCL_IB_GID_INDEX names is empty on a node.",
          "`NCCL_IB_GID_INDEX=3` on all, and no IPv4 address on the second", f"fail {_R}.gid_index",
          culprit={"node": "node-1", "variable": "NCCL_IB_GID_INDEX"}, says="without a usable GID at index 3, which"),
    _tree("disabled", "NCCL_IB_DISABLE=1 stands on most nodes.", "`NCCL_IB_DISABLE=1` on two of three",
          f"fail {_R}.unequal", culprit={"variable": "NCCL_IB_DISABLE"},
          says="NCCL_IB_DISABLE is '1' on node-0 and node-2, not set on node-1"),
    _tree("vanished", "An HCA vanishes during the run.", "the second look at the second of two nodes finds none",
          f"fail {_E}.went_down", culprit={"node": "node-1", "device": "mlx5_1"},
          says="mlx5_1 is gone after the run"),
)  # fmt: skip

ALL: tuple[Fault, ...] = ()
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = (*_RUN, *_TREES, *_EFA)
