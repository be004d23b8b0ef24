"""comm.rails, comm.nodes and comm.pairs on hosts of their own, whose links are really slow."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import drawn
from tests.faults import ELSEWHERE
from tests.hosts import Host, behind_an_uplink, cluster, needs_hosts
from tests.on_hosts import ranks_on
from tests.running import PLUGINS, ROOT, Finished

pytestmark = [pytest.mark.hosts, needs_hosts]
RATE = "200mbit"


def run_on(
    folder: Path, hosts: list[Host], cards: int, *checks: str, own: Mapping[int, Mapping[str, str]] | None = None
) -> Finished:
    """A rank for each network card of each host, which gloo then takes. `own`: further variables, by rank."""
    place = {"LOCAL_WORLD_SIZE": str(cards)}
    environ = [
        place | {"NODE_RANK": str(node), "LOCAL_RANK": str(card), "GLOO_SOCKET_IFNAME": f"eth{card}"}
        for node in range(len(hosts))
        for card in range(cards)
    ]
    for rank, more in (own or {}).items():
        environ[rank] |= more
    only = ",".join(f"comm.{check}" for check in checks)
    return ranks_on(folder, [host for host in hosts for _ in range(cards)], "--only", only, environ=environ)


def told_as(finished: Finished, *names: str) -> None:
    """Each finding is that of one row, and there is one for each."""
    found = finished.findings()
    assert len(found) == len(names) and finished.left_over == [], finished.told()
    for name in names:
        row = ELSEWHERE[name]
        mine = [finding for finding in found if f"{finding['severity']} {finding['code']}" in row.finds]
        assert len(mine) == 1 and row.is_told_by(mine) and mine[0]["noticed_by"] == row.noticed_by, finished.told()
        assert row.culprit or mine[0]["where"] == {}, finished.told()
        assert "{" not in mine[0]["fix"], finished.told()
        assert mine[0]["evidence"]["confirmed"] == "2 of 2", finished.told()
    assert finished.report["exit_code"] == 0, finished.told()


def picture(finished: Finished, check: str) -> str:
    return "\n".join(drawn.of(finished.check(check)))


@pytest.mark.more
def test_a_host_that_sends_slowly(tmp_path: Path) -> None:
    with cluster(4) as hosts:
        hosts[2].slow_down(RATE)
        finished = run_on(tmp_path, hosts, 1, "rails", "pairs")
    told_as(finished, "rails_slow_node", "pairs_slow_node")
    lines = picture(finished, "comm.pairs").splitlines()
    marked = [line.split()[0] for line in lines if "!" in line.partition("(")[0]]
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


def test_two_switches_whose_uplink_is_slow(tmp_path: Path) -> None:
    """Links of the ring are told, since any two part it; that it is the uplink, from all pairs."""
    row = ELSEWHERE["slow_uplink"]
    kinds = {"SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}
    own = {n: {**kinds, "SLURM_TOPOLOGY_ADDR": f"spine.leaf-{n // 2}.host-{'abcd'[n]}"} for n in range(4)}
    with cluster(4) as hosts:
        behind_an_uplink(hosts[2:], RATE)
        finished = run_on(tmp_path, hosts, 1, "rails", "pairs", own=own)
    *links, sides = finished.findings(finds=row.finds)
    assert row.is_told_by([*links, sides]) and finished.left_over == [], finished.told()
    assert [finding["where"] for finding in links] == [{"link": "host-a and host-d"}, {"link": "host-b and host-c"}]
    between = "links between switch leaf-0 (host-a, host-b) and switch leaf-1 (host-c, host-d) are slow"
    assert sides["message"].startswith(between), finished.told()
    assert sides["evidence"]["confirmed"] == "2 of 2", finished.told()
    assert finished.report["exit_code"] == 0, finished.told()


def test_of_two_hosts_nobody_can_be_named(tmp_path: Path) -> None:
    with cluster(2) as hosts:
        for host in hosts:
            host.more_cards(1)
        hosts[1].slow_down(RATE)
        hosts[1].slow_down(RATE, "lo")
        finished = run_on(tmp_path, hosts, 2, "rails", "nodes")
    told_as(finished, "rails_one_way", "nodes_unlike")


SLOWED = f"tbf rate {RATE} burst {{}} latency 400ms"


@pytest.mark.more
def test_what_is_slow_in_the_first_look_only_is_not_blamed(tmp_path: Path) -> None:
    """host-b sends slowly until comm.rails has looked once, then is slow within itself until comm.nodes has, then sends
    slowly until comm.pairs has."""
    lo, eth0 = f"add dev lo root {SLOWED.format('256kb')}", f"add dev eth0 root {SLOWED.format('64kb')}"
    turns = [["del dev eth0 root", lo], ["del dev lo root", eth0], ["del dev eth0 root"]]
    patched = os.pathsep.join(map(str, (ROOT / "tests" / "slow_once", ROOT, PLUGINS)))
    own = {2: {"PYTHONPATH": patched, "PREFLIGHT_TEST_SLOW_ONCE": json.dumps(turns)}}
    with cluster(3) as hosts:
        for host in hosts:
            host.more_cards(1)
        hosts[1].slow_down(RATE)
        finished = run_on(tmp_path, hosts, 2, "rails", "nodes", "pairs", own=own)
    rows = [ELSEWHERE[name] for name in ("rails_slow_once", "nodes_slow_once", "pairs_slow_once")]
    found = finished.findings(finds=[find for row in rows for find in row.finds])
    assert len(found) == 3 and all("host-b" in finding["fix"] for finding in found), finished.told()
    assert all(row.is_told_by([finding]) for row, finding in zip(rows, found, strict=True)), finished.told()
    assert {finding["evidence"]["confirmed"] for finding in found} == {"1 of 2"}, finished.told()
    assert finished.report["verdict"] == "pass", finished.told()
