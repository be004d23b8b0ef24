"""comm.rails, comm.nodes and comm.pairs on hosts of their own, whose links are really slow."""

from pathlib import Path

import pytest

from tests.faults import ELSEWHERE
from tests.hosts import Host, cluster, needs_hosts
from tests.on_hosts import ranks_on
from tests.running import Finished

pytestmark = [pytest.mark.hosts, needs_hosts]
RATE = "200mbit"


def run_on(folder: Path, hosts: list[Host], cards: int, *checks: str) -> Finished:
    """A rank for each network card of each host, which gloo then takes."""
    place = {"LOCAL_WORLD_SIZE": str(cards)}
    environ = [
        place | {"NODE_RANK": str(node), "LOCAL_RANK": str(card), "GLOO_SOCKET_IFNAME": f"eth{card}"}
        for node in range(len(hosts))
        for card in range(cards)
    ]
    only = ",".join(f"comm.{check}" for check in checks)
    return ranks_on(folder, [host for host in hosts for _ in range(cards)], "--only", only, environ=environ)


def told_as(finished: Finished, *names: str) -> None:
    """Each finding is that of one row, and there is one for each."""
    found = finished.findings()
    assert len(found) == len(names) and finished.left_over == [], finished.told()
    for name in names:
        row = ELSEWHERE[name]
        mine = [one for one in found if f"{one['severity']} {one['code']}" in row.finds]
        assert len(mine) == 1 and row.is_told_by(mine) and mine[0]["noticed_by"] == row.noticed_by, finished.told()
        assert row.culprit or mine[0]["where"] == {}, finished.told()
        assert "{" not in mine[0]["fix"], finished.told()
    assert finished.report["exit_code"] == 0, finished.told()


def picture(finished: Finished, check: str) -> str:
    return "\n".join(finished.check(check)["picture"])


def test_a_host_that_sends_slowly(tmp_path: Path) -> None:
    with cluster(4) as hosts:
        hosts[2].slow_down(RATE)
        finished = run_on(tmp_path, hosts, 1, "rails", "pairs")
    told_as(finished, "rails_slow_node", "pairs_slow_node")
    marked = [line.split()[1] for line in finished.check("comm.pairs")["picture"] if "!" in line.partition("(")[0]]
    assert marked == ["host-c"] and picture(finished, "comm.rails").count("!") == 2, finished.told()


def test_two_hosts_that_are_slow_with_each_other_only(tmp_path: Path) -> None:
    with cluster(4) as hosts:
        hosts[1].slow_down_to(hosts[2].address, RATE)
        hosts[2].slow_down_to(hosts[1].address, RATE)
        finished = run_on(tmp_path, hosts, 1, "rails", "pairs")
    told_as(finished, "rails_slow_link", "pairs_slow_link")
    assert picture(finished, "comm.pairs").count("!") == 3, finished.told()


def test_a_slow_card_and_a_host_that_is_slow_within(tmp_path: Path) -> None:
    with cluster(3) as hosts:
        hosts[2].slow_down(RATE, "lo")
        for host in hosts:
            host.more_cards(1)
        hosts[1].slow_down(RATE, "eth1")
        finished = run_on(tmp_path, hosts, 2, "rails", "nodes", "pairs")
    told_as(finished, "rails_slow_rank", "nodes_slow_node", "pairs_slow_rank")


def test_a_slow_rail_a_slow_rank_and_a_slow_pair_of_ranks(tmp_path: Path) -> None:
    """gloo's rank of the higher number connects to the address of the lower one, and the kernel takes the same address
    for its own end: on lo a filter for an address finds the pairs in which that rank has the lower number."""
    with cluster(3) as hosts:
        for host in hosts:
            host.more_cards(2)
            host.slow_down(RATE, "eth1")
        hosts[1].slow_down_to("10.78.0.2", RATE, "lo")
        hosts[2].slow_down_to("10.77.0.3", RATE, "lo")
        finished = run_on(tmp_path, hosts, 3, "rails", "nodes", "pairs")
    told_as(finished, "rails_slow_rail", "nodes_slow_gpu", "nodes_slow_pair", "pairs_slow_rail")


def test_of_two_hosts_nobody_can_be_named(tmp_path: Path) -> None:
    with cluster(2) as hosts:
        for host in hosts:
            host.more_cards(1)
        hosts[1].slow_down(RATE)
        hosts[1].slow_down(RATE, "lo")
        finished = run_on(tmp_path, hosts, 2, "rails", "nodes")
    told_as(finished, "rails_one_way", "nodes_unlike")
