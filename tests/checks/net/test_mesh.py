"""net.mesh: what it says of facts that are made up. For real networks see test_mesh_hosts.py."""

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from preflight import testing
from preflight.check import Outcome
from preflight.checks.net import mesh, rounds
from preflight.checks.net.common_ends import Pair
from preflight.checks.net.pair_tables import Facts, Seen
from preflight.job import Job, Node
from tests import running

GOOD: Seen = {"round_trip_s": 0.0001, "rate": 1e9, "rate_back": 9e8}
Change = Callable[[dict[Pair, Seen]], None]


def cluster(size: int, **of_one: Any) -> dict[int, Facts]:
    """A rank a node, each with all others, or some. Node 1 has what is given."""
    facts: dict[int, Facts] = {}
    for rank in range(size):
        partners = sorted(partner for partner in rounds.partners(rank, size) if partner is not None)
        facts[rank] = {
            "takes_part": True, "interface": "eth0", "address": f"10.0.{rank // 256}.{rank % 256}", "why": "",
            "mtu": 1500, "switches": "", "cut": False, "pairs": {str(partner): {**GOOD} for partner in partners},
        }  # fmt: skip
    return {**facts, 1: {**facts[1], **of_one}} if of_one else facts  # type: ignore[typeddict-item]  # its own keys


def with_pairs(facts: dict[int, Facts], pairs: Iterable[Pair], seen: Seen) -> dict[int, Facts]:
    """`seen` by the first of each pair, for what it has."""
    for a, b in pairs:
        if str(b) in facts[a]["pairs"]:
            facts[a]["pairs"][str(b)] = seen
    return facts


def judged(facts: dict[int, Facts], **more: Any) -> list[dict[str, Any]]:
    return testing.judge(mesh, facts, nodes={f"node-{rank}": (rank,) for rank in facts}, **more)


def named(facts: dict[int, Facts], **more: Any) -> list[tuple[str, str, dict[str, Any]]]:
    return [(one["severity"], one["code"].rpartition(".")[2], one["where"]) for one in judged(facts, **more)]


def to(node: int, size: int) -> list[Pair]:
    return [(other, node) for other in range(size) if other != node]


def out_of(node: int, size: int) -> list[Pair]:
    return [(a, b) for b, a in to(node, size)]


@pytest.mark.parametrize("size", [2, 3, 5, 64, 65, 1024])
def test_a_sound_cluster_gives_no_finding(size: int) -> None:
    assert judged(cluster(size)) == []


@pytest.mark.parametrize("kind", mesh.KINDS)
def test_a_node_that_nobody_reaches_is_named_with_what_happens(kind: str) -> None:
    facts = with_pairs(cluster(4), to(2, 4), {"error": kind})
    (found,) = judged(facts)
    assert (found["severity"], found["code"]) == ("fail", f"net.mesh.{kind}")
    assert found["where"] == {"node": "node-2", "interface": "eth0"} and found["noticed_by"] == "0-1,3"
    told = "node-2 cannot be reached from 3 of 3 other nodes (node-0, node-1, node-3): "
    assert found["message"].startswith(told + mesh.KINDS[kind][1]), found["message"]
    assert "{" not in found["fix"], found["fix"]


def test_a_node_that_reaches_nobody_and_one_that_does_neither() -> None:
    where = {"node": "node-2", "interface": "eth0"}
    for bad, told in ((out_of(2, 4), "cannot connect to 3"), (to(2, 4) + out_of(2, 4), "nor be reached from, 3")):
        (found,) = judged(with_pairs(cluster(4), bad, {"error": "filtered"}))
        assert found["where"] == where and told in found["message"], found


def test_of_one_pair_neither_node_is_named() -> None:
    """Nor for a list of nodes to leave out."""
    for size, pairs, link in ((4, [(0, 1)], "node-0 to node-1"), (2, [(0, 1), (1, 0)], "node-0 and node-1")):
        facts = with_pairs(cluster(size), pairs, {"error": "filtered"})
        assert named(facts) == [("fail", "filtered", {"link": link})]


def test_what_happens_mostly_is_the_code() -> None:
    facts = with_pairs(cluster(4), to(2, 4), {"error": "filtered"})
    facts[0]["pairs"]["2"] = {"error": "refused"}
    (found,) = judged(facts)
    assert found["code"] == "net.mesh.filtered" and "no answer within 3.5 s, or refused" in found["message"]


def test_of_one_pair_the_fix_is_for_what_says_most() -> None:
    facts = with_pairs(with_pairs(cluster(3), [(0, 1)], {"error": "filtered"}), [(1, 0)], {"error": "no_route"})
    (found,) = judged(facts)
    assert found["code"] == "net.mesh.no_route" and found["fix"].startswith("On node-1: ip route get 10.0.0.0;"), found


def test_where_nothing_works_one_finding_says_so_and_names_nobody() -> None:
    facts = with_pairs(cluster(8), itertools.permutations(range(8), 2), {"error": "filtered"})
    (found,) = judged(facts)
    assert found["where"] == {} and "56 of 56 ordered pairs" in found["message"], found


def split(facts: dict[int, Facts], some: range, others: range, seen: Seen) -> dict[int, Facts]:
    return with_pairs(facts, [*itertools.product(some, others), *itertools.product(others, some)], seen)


def test_halves_that_do_not_reach_each_other_are_both_told() -> None:
    (found,) = judged(split(cluster(4), range(2), range(2, 4), {"error": "filtered"}))
    assert found["where"] == {}
    assert found["message"].startswith(
        "there are no connections between node-0, node-1 and node-2, node-3; within each"
    )


@pytest.mark.parametrize(("size", "where"), [(4, {}), (6, {"device": "leaf-0"})])
def test_the_smaller_side_behind_a_switch_is_named(size: int, where: dict[str, str]) -> None:
    facts = split(cluster(size), range(2), range(2, size), {"error": "filtered"})
    for rank, one in facts.items():
        one["switches"] = f"spine.leaf-{min(1, rank // 2)}"
    (found,) = judged(facts)
    assert found["where"] == where and "node-0, node-1 (behind leaf-0)" in found["message"], found


def test_all_nodes_of_a_switch_that_nobody_reaches_are_the_switch() -> None:
    facts = with_pairs(cluster(8), [*to(0, 8), *to(1, 8)], {"error": "filtered"})
    for rank, one in facts.items():
        one["switches"] = f"spine.leaf-{rank // 2}"
    (found,) = judged(facts)
    assert found["where"] == {"device": "leaf-0"} and found["message"].startswith("node-0, node-1, all behind leaf-0,")


def test_of_a_thousand_nodes_the_sick_ones_are_named_quickly() -> None:
    size = 1024
    facts = with_pairs(cluster(size), to(77, size) + out_of(500, size), {"error": "filtered"})
    with_pairs(facts, out_of(900, size), {**GOOD, "rate": 1e8})
    with_pairs(facts, to(900, size), {**GOOD, "rate_back": 1e8})
    start = time.process_time()
    found = named(facts)
    assert [(code, where["node"]) for _, code, where in found] == [
        ("filtered", "node-77"), ("filtered", "node-500"), ("slow", "node-900"),
    ]  # fmt: skip
    assert time.process_time() - start < 20, "seconds of one core: linear in the pairs"


def test_half_of_a_thousand_nodes_that_nobody_reaches_do_not_cost_minutes() -> None:
    size = 1024
    facts = with_pairs(cluster(size), [pair for node in range(512) for pair in to(node, size)], {"error": "filtered"})
    start = time.process_time()
    assert len(judged(facts)) == 512
    assert time.process_time() - start < 20, "seconds of one core"


def test_a_node_without_an_address_is_told_and_nobody_is_blamed_for_it() -> None:
    facts = cluster(3, why="gloo finds no address on this host", pairs={}, address="", interface="")
    for rank in (0, 2):
        del facts[rank]["pairs"]["1"]
    assert named(facts) == [("fail", "no_address", {"node": "node-1"})]


def test_one_address_on_several_nodes() -> None:
    everything = list(itertools.permutations(range(3), 2))
    facts = with_pairs(cluster(3), everything, {"error": "refused"})
    for one in facts.values():
        one |= {"address": "172.17.0.1", "interface": "docker0"}
    (found,) = judged(facts)
    assert (found["code"], found["where"]) == ("net.mesh.same_address", {"interface": "docker0"})
    assert "node-0, node-1, node-2 have the same address 172.17.0.1 (docker0)" in found["message"]


def test_two_nodes_with_one_address_make_nobody_else_suspect() -> None:
    facts = with_pairs(cluster(4), [(1, 2), (2, 1), (0, 2), (3, 1)], {"error": "stranger"})
    facts[2]["address"] = facts[1]["address"]
    assert [code for _, code, _ in named(facts)] == ["same_address"]


def test_several_nodes_of_one_host_share_its_address() -> None:
    facts = cluster(3)
    for one in facts.values():
        one["address"] = "127.0.0.1"
    assert judged(facts) == []


HOLE: Seen = {"round_trip_s": 0.0001, "rate_back": 9e8, "stalled": 1448}
SEES_HOLE: Seen = {"round_trip_s": 0.0001, "rate": 1e9, "stalled_back": 0}


def test_large_messages_that_stall_name_their_sender_and_the_mtus() -> None:
    facts = with_pairs(with_pairs(cluster(3), out_of(1, 3), HOLE), to(1, 3), SEES_HOLE)
    (found,) = judged(facts)
    assert (found["code"], found["where"]) == ("net.mesh.mtu", {"node": "node-1", "interface": "eth0"})
    assert "at most 1,448 of 1,048,576 bytes arrive, while small messages pass" in found["message"]
    assert "the MTU of their interfaces is 1500" in found["message"] and "ping -M do -s" in found["fix"]
    facts[1]["mtu"] = 9000
    assert "MTU 1500 on node-0, node-2; 9000 on node-1" in judged(facts)[0]["message"]


def test_large_messages_between_two_nodes() -> None:
    facts = with_pairs(with_pairs(cluster(4), [(1, 2)], HOLE), [(2, 1)], SEES_HOLE)
    assert named(facts) == [("fail", "mtu", {"link": "node-1 to node-2"})]


SLOW: Seen = {**GOOD, "rate": 1.2e7}
SEES_SLOW: Seen = {**GOOD, "rate_back": 1.2e7}


@pytest.mark.parametrize("size", [3, 4, 5, 64])
def test_a_node_that_sends_slowly_is_named(size: int) -> None:
    facts = with_pairs(with_pairs(cluster(size), out_of(1, size), SLOW), to(1, size), SEES_SLOW)
    (found,) = judged(facts)
    assert (found["severity"], found["code"]) == ("warn", "net.mesh.slow")
    assert found["where"] == {"node": "node-1", "interface": "eth0"}
    assert "12 MB/s at best; expected about 1.0 GB/s as is usual, or 1.0 GB/s as the other way" in found["message"]


@pytest.mark.parametrize("size", [3, 4, 5])
def test_a_node_that_is_slow_both_ways_is_named(size: int) -> None:
    """Also where most pairs are slow for it."""
    slow: Seen = {**SLOW, "rate_back": 1.2e7}
    facts = with_pairs(cluster(size), out_of(1, size) + to(1, size), slow)
    (found,) = judged(facts)
    assert found["where"] == {"node": "node-1", "interface": "eth0"} and "only slowly with" in found["message"]


def test_of_two_nodes_the_slow_way_is_told() -> None:
    facts = with_pairs(with_pairs(cluster(2), [(0, 1)], SLOW), [(1, 0)], SEES_SLOW)
    assert named(facts) == [("warn", "asymmetric", {"link": "node-0 to node-1"})]


def test_rates_that_differ_as_they_do_are_no_finding() -> None:
    """A third of what is usual, in any pattern; and two nodes of which both ways are slow."""
    facts = cluster(8)
    for number, (a, b) in enumerate(itertools.permutations(range(8), 2)):
        facts[a]["pairs"][str(b)] = {**GOOD, "rate": 1e9 / (1 + number % 3), "rate_back": 1e8}
    assert judged(facts) == []
    both: Seen = {**SLOW, "rate_back": 1.2e7}
    assert judged(with_pairs(cluster(2), [(0, 1), (1, 0)], both)) == []
    facts = with_pairs(cluster(3), [(0, 1)], {**GOOD, "rate": 4e8})
    facts[1]["pairs"]["0"]["rate_back"] = 3e8
    assert judged(facts) == [] and len(judged(facts, settings={"much_slower": 2})) == 1


def test_one_try_of_the_other_side_alone_is_not_judged() -> None:
    facts = with_pairs(cluster(3), to(1, 3), {"error": "filtered"})
    for other in (0, 2):
        facts[1]["pairs"][str(other)] = {**GOOD, "rate_back": 1e6}
    assert [code for _, code, _ in named(facts)] == ["filtered"]


def test_a_far_node_is_named_and_a_slow_network_is_not() -> None:
    far: Seen = {**GOOD, "round_trip_s": 0.03}
    facts = with_pairs(cluster(3), to(1, 3) + out_of(1, 3), far)
    assert named(facts) == [("warn", "far", {"node": "node-1", "interface": "eth0"})]
    assert judged(facts, settings={"far_s": 0.05}) == []
    assert judged(with_pairs(cluster(3), itertools.permutations(range(3), 2), far)) == []


def test_on_a_full_link_what_stalls_is_slow_and_no_wrong_mtu() -> None:
    far = {"round_trip_s": 0.07}
    facts = with_pairs(cluster(3), out_of(1, 3), {**HOLE, **far})  # type: ignore[typeddict-item]  # its own keys
    with_pairs(facts, to(1, 3), {**SEES_HOLE, **far})  # type: ignore[typeddict-item]
    where = {"node": "node-1", "interface": "eth0"}
    assert named(facts) == [("warn", "slow", where), ("warn", "far", where)]


def test_what_a_dead_node_leaves_blames_nobody() -> None:
    facts = with_pairs(cluster(4), to(3, 4), {"error": "reset"})
    with_pairs(facts, [(0, 1)], {"error": "left"})
    del facts[3]
    killed = {3: Outcome("crashed", signal="SIGKILL")}
    found = testing.judge(mesh, facts, nodes={f"node-{rank}": (rank,) for rank in range(4)}, outcomes=killed)
    assert [one["code"] for one in found] == ["net.mesh.untried"] and found[0]["where"] == {}


def test_pairs_for_which_no_time_was_left_are_told_and_blame_nobody() -> None:
    facts = with_pairs(cluster(4), [(0, 1), (2, 3)], {"error": "late"})
    with_pairs(facts, [(3, 1)], {"error": "reset"})
    facts[1]["cut"] = True
    (found,) = judged(facts)
    assert (found["severity"], found["code"], found["where"]) == ("warn", "net.mesh.untried", {})
    assert "3 of 12 ordered pairs were not tried to the end" in found["message"]


def test_the_summary_says_how_many_pairs() -> None:
    def told(size: int) -> str:
        nodes = tuple(Node(f"node-{rank}", rank, (rank,)) for rank in range(size))
        run: Any = Job("env", size, "gloo", nodes)
        return mesh.summarize(cluster(size), run)

    assert told(4) == ("12 ordered pairs of 4 nodes: round trip 0.1 ms, 1.0 GB/s in the middle, 1.0 GB/s at least")
    assert told(1024).startswith("20,480 ordered pairs of 1,024 nodes, each with 20 others: ")


def test_the_deadline_grows_with_the_rounds() -> None:
    def deadline_s(size: int) -> float:
        return mesh._deadline(Job("env", size, "gloo", tuple(Node(str(rank), rank, (rank,)) for rank in range(size))))

    assert 40 < deadline_s(2) < deadline_s(64) < 80 and deadline_s(1024) < deadline_s(64)


def test_one_node_has_no_pairs(tmp_path: Any) -> None:
    finished = running.run_ranks(tmp_path, running.plain_ranks(2), "--only", "net.mesh")
    assert finished.check("net.mesh")["skipped"].startswith("one node: there is no pair"), finished.told()


def test_nodes_of_one_machine_are_sound(tmp_path: Any) -> None:
    """Six ranks on three nodes: three of them meet."""
    ranks = [{**env, "NODE_RANK": str(rank // 2)} for rank, env in enumerate(running.plain_ranks(6))]
    finished = running.run_ranks(tmp_path, ranks, "--only", "net.mesh")
    assert finished.findings() == [] and finished.exit_codes == [0] * 6 and finished.left_over == [], finished.told()
    assert finished.check("net.mesh")["summary"].startswith("6 ordered pairs of 3 nodes: "), finished.told()
