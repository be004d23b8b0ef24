"""What `comm.rails`, `comm.nodes` and `comm.pairs` find. Several share a run: tests/checks/comm/test_links_hosts.py."""

from typing import Any

from tests.faults.row import Fault, elsewhere

FIRST = (
    ("first_p2p", "A job's first all-reduce hangs, since its GPUs cannot reach each other.",
     "whose all-reduces hang unless P2P is off", "without P2P", "timed_out", False),
    ("first_shm", "A job's first all-reduce hangs over shared memory.",
     "whose all-reduces hang unless shared memory is off", "without shared memory", "timed_out", False),
    ("first_cumem", "A job's first all-reduce hangs over cuMem on the host.",
     "whose all-reduces hang unless cuMem is off", "without cuMem", "timed_out", True),
    ("first_hangs_in_plugin", "A job's first all-reduce hangs in a network plugin.",
     "whose all-reduces hang unless no plugin is loaded", "without plugins", "timed_out", True),
    ("first_hangs_on_interface", "A job's first all-reduce hangs over the host's own address.",
     "whose all-reduces hang unless loopback is chosen", "over loopback", "timed_out", True),
    ("first_wrong", "A job's first sums are wrong over P2P.",
     "one of whose sums is wrong unless P2P is off", "without P2P", "wrong_sum", False),
)  # fmt: skip
"""(name, story, how, what works, what comm.init says, more): a first collective that has an answer."""

ALL: tuple[Fault, ...] = ()
"""Driven by tests/test_faults.py."""
EGRESS = "`tc tbf` at 200 Mbit/s on its {}"


def _row(name: str, story: str, made: str, code: str, noticed_by: str = "", **culprit: Any) -> Fault:
    return elsewhere(name, story, made, f"warn {code}", culprit=culprit, noticed_by=noticed_by, exit_code=0)


ELSEWHERE: tuple[Fault, ...] = (
    # tests/checks/comm/test_paths.py
    _row("slow_path", "One NCCL transport is slow.", "a stand-in for NCCL, whose all-reduces sleep unless P2P is off",
         "comm.paths.slow"),
    elsewhere("broken_path", "One NCCL transport hangs on one rank.",
              "a stand-in for NCCL, whose all-reduces sleep for ever on rank 1 unless NVLS is off",
              "fail comm.paths.broken", culprit={}, says="an all-reduce fails as the job runs it (rank"),
    *(elsewhere(name, story, f"a stand-in for NCCL, {how}", "fail comm.paths.broken", f"fail comm.init.{init}",
                culprit={}, says=f"and works {works}, twice", more=more)
      for name, story, how, works, init, more in FIRST),
    elsewhere("first_pair", "A job's first all-reduce hangs, since two of four GPUs cannot reach each other.",
              "a stand-in for NCCL, whose all-reduces hang where ranks 1 and 3 are in the group, unless P2P is off",
              "fail comm.paths.broken", "fail comm.init.timed_out", culprit={"link": "rank 1 and rank 3"},
              says="and works without P2P, twice; of 6 pairs of GPUs 1 cannot do it"),
    elsewhere("hangs_when_large", "All-reduces hang from 1 MiB on.",
              "a stand-in for NCCL, whose large all-reduces hang unless P2P is off", "fail comm.paths.broken",
              culprit={}, more=True, says="and works without P2P, twice",
              also=("fail gpu.inventory.no_gpu", "fail comm.transports.timed_out", "error comm.transports.timed_out",
                    "error comm.all_reduce.timed_out", "fail comm.all_reduce.timed_out",
                    "error preflight.run.deadline")),
    # tests/checks/comm/test_slow_link.py
    _row("rails_slower", "All links are slow, and were not so in the run that is the baseline.",
         "`tc tbf` at 80 Mbit/s on eth0 of all hosts", "comm.rails.slower_than_baseline"),
    _row("pairs_slower", "All links are slow, and were not so in the run that is the baseline.",
         "`tc tbf` at 80 Mbit/s on eth0 of all hosts", "comm.pairs.slower_than_baseline"),
    # tests/checks/comm/test_slow_rail.py
    _row("rails_slow_together", "A rail's links are sound one by one, and slow when all its nodes use them at once.",
         "all-reduces of the second rail take ten times as long; NCCL is a stand-in", "comm.rails.slow_together",
         local_rank=1),
    # tests/checks/comm/test_links_hosts.py
    _row("rails_slow_node", "Of four hosts one sends slowly.", EGRESS.format("eth0"), "comm.rails.slow_node",
         "1,3", node="host-c"),
    _row("pairs_slow_node", "Of four hosts one sends slowly.", EGRESS.format("eth0"), "comm.pairs.slow_node",
         "0-1,3", node="host-c"),
    _row("rails_slow_link", "Of four hosts two are slow with each other only.", "`tc htb` with a filter, on both",
         "comm.rails.slow_link", link="host-b and host-c"),
    _row("pairs_slow_link", "Of four hosts two are slow with each other only.", "`tc htb` with a filter, on both",
         "comm.pairs.slow_link", link="host-b and host-c"),
    _row("rails_one_way", "Of two hosts one sends slowly.", EGRESS.format("eth0"), "comm.rails.slow_link",
         link="host-b to host-a", local_rank=0),
    _row("rails_slow_rank", "One network card of a host is slow.", EGRESS.format("eth1"), "comm.rails.slow_rank",
         "1,5", node="host-b", rank=3, local_rank=1),
    _row("pairs_slow_rank", "One network card of a host is slow.", EGRESS.format("eth1"), "comm.pairs.slow_rank",
         "1,5", node="host-b", rank=3, local_rank=1),
    _row("rails_slow_rail", "The second network card of all hosts is slow.", EGRESS.format("eth1"),
         "comm.rails.slow_rail", local_rank=1),
    _row("pairs_slow_rail", "The second network card of all hosts is slow.", EGRESS.format("eth1"),
         "comm.pairs.slow_rail", local_rank=1),
    _row("nodes_slow_node", "Ranks of one host are slow with each other.", EGRESS.format("lo"),
         "comm.nodes.slow_node", node="host-c"),
    _row("nodes_slow_gpu", "One rank of a host is slow with its host's others.", "`tc htb` with a filter, on lo",
         "comm.nodes.slow_gpu", "7-8", node="host-c", rank=6, local_rank=0),
    _row("nodes_slow_pair", "Two ranks of a host are slow with each other.", "`tc htb` with a filter, on lo",
         "comm.nodes.slow_pair", node="host-b", link="rank 4 and rank 5"),
    elsewhere("slow_uplink", "Two hosts are on another switch than the other two, and its uplink is slow.",
              "`tc tbf` at 200 Mbit/s on both ends of it", "warn comm.rails.slow_link", "info comm.pairs.slow_sides",
              culprit={}, exit_code=0),
    *(elsewhere(f"{check}_slow_once", "A host is slow in the first measurement, but not in the second.",
                "`tc tbf` at 200 Mbit/s, removed after the first one", f"info comm.{check}.slow_once", culprit={},
                exit_code=0) for check in ("rails", "nodes", "pairs")),
    _row("nodes_unlike", "Of two hosts one is slow within itself.", EGRESS.format("lo"), "comm.nodes.slower_of_two"),
)  # fmt: skip
