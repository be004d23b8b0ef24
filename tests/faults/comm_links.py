"""What `comm.rails`, `comm.nodes` and `comm.pairs` find. Several share a run: tests/checks/comm/test_links_hosts.py."""

from typing import Any

from tests.faults.row import Fault, elsewhere

ALL: tuple[Fault, ...] = ()
"""Driven by tests/test_faults.py."""
EGRESS = "`tc tbf` at 200 Mbit/s on its {}"


def _row(name: str, story: str, made: str, code: str, noticed_by: str = "", **culprit: Any) -> Fault:
    return elsewhere(name, story, made, f"warn {code}", culprit=culprit, noticed_by=noticed_by, exit_code=0)


ELSEWHERE: tuple[Fault, ...] = (
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
    _row("nodes_unlike", "Of two hosts one is slow within itself.", EGRESS.format("lo"), "comm.nodes.unlike"),
)  # fmt: skip
