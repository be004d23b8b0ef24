"""net.mesh: what it says of facts that are made up. For real networks see test_mesh_hosts.py."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from preflight import testing
from preflight.check import Outcome
from preflight.checks.net import mesh
from preflight.checks.net.mesh.pair_tables import Facts, Seen
from preflight.checks.net.mesh.timeouts import ALL_PAIRS
from preflight.core.job import Job, Node
from preflight.sdk.pairs import Pair, partners
from tests import running
from tests.large import timed

GOOD: Seen = {"round_trip_s": 0.0001, "rate": 1e9, "rate_back": 9e8, "sent": [50_000, 3, 3]}
Change = Callable[[dict[Pair, Seen]], None]


def cluster(size: int, **of_one: Any) -> dict[int, Facts]:
    """A rank a node, each with all others, or some. Node 1 has what is given."""
    facts: dict[int, Facts] = {}
    for rank in range(size):
        met = sorted(partner for partner in partners(rank, size, ALL_PAIRS) if partner is not None)
        facts[rank] = {
            "takes_part": True, "interface": "eth0", "address": f"10.0.{rank // 256}.{rank % 256}", "why": "",
            "mtu": 1500, "switches": "", "cut": False, "pairs": {str(partner): {**GOOD} for partner in met},
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
    return [
        (finding["severity"], finding["code"].rpartition(".")[2], finding["where"]) for finding in judged(facts, **more)
    ]


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
    for rank, of_rank in facts.items():
        of_rank["switches"] = f"spine.leaf-{min(1, rank // 2)}"
    (found,) = judged(facts)
    assert found["where"] == where and "node-0, node-1 (behind leaf-0)" in found["message"], found


def test_all_nodes_of_a_switch_that_nobody_reaches_are_the_switch() -> None:
    facts = with_pairs(cluster(8), [*to(0, 8), *to(1, 8)], {"error": "filtered"})
    for rank, of_rank in facts.items():
        of_rank["switches"] = f"spine.leaf-{rank // 2}"
    (found,) = judged(facts)
    assert found["where"] == {"device": "leaf-0"} and found["message"].startswith("node-0, node-1, all behind leaf-0,")


def test_of_1024_nodes_the_sick_ones_are_named() -> None:
    size = 1024
    facts = with_pairs(cluster(size), to(77, size) + out_of(500, size), {"error": "filtered"})
    with_pairs(facts, out_of(900, size), {**GOOD, "rate": 1e8})
    with_pairs(facts, to(900, size), {**GOOD, "rate_back": 1e8})
    with timed("net.mesh, 1,024 nodes of which 3 are sick"):
        found = named(facts)
    assert [(code, where["node"]) for _, code, where in found] == [
        ("filtered", "node-77"), ("filtered", "node-500"), ("slow", "node-900"),
    ]  # fmt: skip


def test_half_of_1024_nodes_that_nobody_reaches_are_named() -> None:
    size = 1024
    facts = with_pairs(cluster(size), [pair for node in range(512) for pair in to(node, size)], {"error": "filtered"})
    with timed("net.mesh, 1,024 nodes of which half are not reached"):
        assert len(judged(facts)) == 512


def test_a_node_without_an_address_is_told_and_nobody_is_blamed_for_it() -> None:
    facts = cluster(3, why="gloo finds no address on this host", pairs={}, address="", interface="")
    for rank in (0, 2):
        del facts[rank]["pairs"]["1"]
    assert named(facts) == [("fail", "no_address", {"node": "node-1"})]


def test_one_address_on_several_nodes() -> None:
    everything = list(itertools.permutations(range(3), 2))
    facts = with_pairs(cluster(3), everything, {"error": "refused"})
    for of_rank in facts.values():
        of_rank |= {"address": "172.17.0.1", "interface": "docker0"}
    (found,) = judged(facts)
    assert (found["code"], found["where"]) == ("net.mesh.same_address", {"interface": "docker0"})
    assert "node-0, node-1 and node-2 have the same address 172.17.0.1 (docker0)" in found["message"]


def test_two_nodes_with_one_address_make_nobody_else_suspect() -> None:
    facts = with_pairs(cluster(4), [(1, 2), (2, 1), (0, 2), (3, 1)], {"error": "stranger"})
    facts[2]["address"] = facts[1]["address"]
    assert [code for _, code, _ in named(facts)] == ["same_address"]


def test_several_nodes_of_one_host_share_its_address() -> None:
    facts = cluster(3)
    for of_rank in facts.values():
        of_rank["address"] = "127.0.0.1"
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
    assert "MTU 1500 on node-0 and node-2; 9000 on node-1" in judged(facts)[0]["message"]


def test_large_messages_between_two_nodes() -> None:
    facts = with_pairs(with_pairs(cluster(4), [(1, 2)], HOLE), [(2, 1)], SEES_HOLE)
    assert named(facts) == [("fail", "mtu", {"link": "node-1 to node-2"})]


def test_where_data_stalls_one_way_the_other_way_is_not_timed() -> None:
    """Seen in CI: 120 MB/s to a host that sent the same large message again and again."""
    disturbed: Seen = {**SEES_HOLE, "rate": 1.2e8}
    facts = with_pairs(with_pairs(cluster(3), out_of(1, 3), {**HOLE, "rate_back": 1.2e8}), to(1, 3), disturbed)
    assert named(facts) == [("fail", "mtu", {"node": "node-1", "interface": "eth0"})]


SLOW: Seen = {**GOOD, "rate": 1.2e7}
SEES_SLOW: Seen = {**GOOD, "rate_back": 1.2e7}


@pytest.mark.parametrize("size", [3, 4, 5, 64])
def test_a_node_that_sends_slowly_is_named(size: int) -> None:
    facts = with_pairs(with_pairs(cluster(size), out_of(1, size), SLOW), to(1, size), SEES_SLOW)
    (found,) = judged(facts)
    assert (found["severity"], found["code"]) == ("warn", "net.mesh.slow")
    assert found["where"] == {"node": "node-1", "interface": "eth0"}
    assert "12 MB/s at best; expected about 1 GB/s as usual, or 1 GB/s as in the other direction" in found["message"]


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


def losing(*in_bursts: int, bulk: tuple[int, int, int] = (30_000, 900, 4)) -> Seen:
    """What a node saw of a partner: segments, resent, twice."""
    return {**GOOD, "sent": [*bulk], "in_bursts": [*in_bursts]}


LOSES = losing(640, 20, 1)


@pytest.mark.parametrize("size", [3, 4, 64, pytest.param(1024, marks=pytest.mark.more)])
def test_a_node_that_loses_what_it_gets_or_sends_is_named_with_the_way(size: int) -> None:
    where = {"node": "node-1", "interface": "eth0"}
    for pairs, told in (
        (to(1, size), "node-1 loses packets that it receives from "),
        (out_of(1, size), "node-1 loses packets that it sends to "),
        (to(1, size) + out_of(1, size), "node-1 loses packets to and from "),
    ):
        (found,) = judged(with_pairs(cluster(size), pairs, LOSES))
        assert (found["severity"], found["code"], found["where"]) == ("warn", "net.mesh.loss", where)
        assert (
            found["message"].startswith(told) and "(2.97%) did not arrive; expected less than 0.10%" in found["message"]
        )
        assert "{" not in found["fix"] and found["evidence"]["measured"]["lost"] == 19, found


def test_a_pair_that_loses_blames_no_node_and_where_all_lose_none_is_named() -> None:
    assert named(with_pairs(cluster(5), [(3, 4)], LOSES)) == [("warn", "loss", {"link": "node-3 to node-4"})]
    assert named(with_pairs(cluster(2), [(1, 0)], LOSES)) == [("warn", "loss", {"link": "node-1 to node-0"})]
    assert named(with_pairs(cluster(4), itertools.permutations(range(4), 2), LOSES)) == [("warn", "loss", {})]
    (found,) = judged(split(cluster(4), range(2), range(2, 4), LOSES))
    assert found["where"] == {} and "within each of them all is well" in found["message"]


@pytest.mark.parametrize(
    "seen",
    [
        losing(2_000, 0, 0),  # bulk alone lost packets: it had filled a queue
        losing(2_000, 12, 12),  # all had arrived before they were resent: busy cores
        losing(2_000, 2, 0),  # too few to be sure
        losing(9_000, 4, 0),  # 0.04 %
        losing(400, 1, 0),
        losing(2_000, 3, 9),  # copied on the way
        {"round_trip_s": 0.0001, "rate": 1e9, "rate_back": 9e8},  # an old kernel
    ],
    ids=["queue", "busy", "few", "rare", "one", "copied", "old kernel"],
)
def test_resent_packets_that_are_no_loss_are_no_finding(seen: Seen) -> None:
    assert judged(with_pairs(cluster(4), to(2, 4), seen)) == []
    assert judged(with_pairs(cluster(4), itertools.permutations(range(4), 2), seen)) == []


def test_packets_that_were_resent_without_a_second_look_are_no_pass_where_no_other_pair_tells() -> None:
    unseen: Seen = {**GOOD, "sent": [30_000, 900, 4]}
    assert (
        judged(with_pairs(with_pairs(cluster(4), to(2, 4), unseen), [(0, 1), (1, 3), (3, 0)], losing(2_000, 0, 0)))
        == []
    )
    (found,) = judged(with_pairs(cluster(4), itertools.permutations(range(4), 2), unseen))
    assert (
        found["not_measured"] and found["code"] == "net.mesh.loss" and "896 of 30,000 were resent" in found["message"]
    )


def test_who_lost_too_few_to_be_sure_is_no_witness_for_the_node() -> None:
    """Of three others two are sure, and one has lost one packet of many."""
    facts = with_pairs(with_pairs(cluster(4), to(2, 4), LOSES), [(3, 2)], losing(2_000, 1, 0))
    assert named(facts) == [("warn", "loss", {"node": "node-2", "interface": "eth0"})]
    with_pairs(facts, [(3, 2)], losing(2_000, 0, 0))
    assert [where for *_, where in named(facts)] == [{"link": "node-0 to node-2"}, {"link": "node-1 to node-2"}]


def test_a_limit_of_the_users_own_for_losses() -> None:
    facts = with_pairs(cluster(4), to(2, 4), losing(1_000, 20, 0))
    assert judged(facts, settings={"lost_share": 0.05}) == [] and len(judged(facts)) == 1


def test_losses_that_another_finding_explains_are_not_told_beside_it() -> None:
    """A wrong MTU, a saturated link; and a link that is slow since it loses packets is told once."""
    hole: Seen = {**HOLE, "sent": [3_000, 700, 0], "in_bursts": [80, 72, 0]}
    facts = with_pairs(with_pairs(cluster(3), out_of(1, 3), hole), to(1, 3), SEES_HOLE)
    assert [code for _, code, _ in named(facts)] == ["mtu"]
    far: Seen = {**LOSES, "round_trip_s": 0.03}
    assert [code for _, code, _ in named(with_pairs(cluster(3), to(1, 3) + out_of(1, 3), far))] == ["high_latency"]
    slow: Seen = {**LOSES, "rate": 1.2e7}
    facts = with_pairs(with_pairs(cluster(3), out_of(1, 3), slow), to(1, 3), SEES_SLOW)
    (found,) = judged(facts)
    assert found["code"] == "net.mesh.loss" and found["evidence"]["measured"]["bytes_per_s"] == 1.2e7


def test_a_kernel_that_does_not_count_losses_is_told_in_the_summary() -> None:
    run: Any = None
    assert "kernels" not in mesh.summarize(cluster(3), run)
    facts = with_pairs(cluster(3), [(0, 1)], {"round_trip_s": 0.0001, "rate": 1e9, "rate_back": 9e8})
    assert mesh.summarize(facts, run).endswith("at least; not all kernels count what is lost")


def test_one_try_of_the_other_side_alone_is_not_judged() -> None:
    facts = with_pairs(cluster(3), to(1, 3), {"error": "filtered"})
    for other in (0, 2):
        facts[1]["pairs"][str(other)] = {**GOOD, "rate_back": 1e6}
    assert [code for _, code, _ in named(facts)] == ["filtered"]


def test_a_far_node_is_named_and_a_slow_network_is_not() -> None:
    far: Seen = {**GOOD, "round_trip_s": 0.03}
    facts = with_pairs(cluster(3), to(1, 3) + out_of(1, 3), far)
    assert named(facts) == [("warn", "high_latency", {"node": "node-1", "interface": "eth0"})]
    assert judged(facts, settings={"far_s": 0.05}) == []
    assert judged(with_pairs(cluster(3), itertools.permutations(range(3), 2), far)) == []


def behind_a_far_link(arrived: int) -> dict[int, Facts]:
    """Of what node 1 sends in large messages."""
    out: Seen = {"round_trip_s": 0.012, "stalled": arrived}
    return with_pairs(with_pairs(cluster(5), out_of(1, 5), out), to(1, 5), {**SEES_HOLE, "round_trip_s": 0.012})


@pytest.mark.parametrize(("arrived", "told"), [(0, "none of"), (1448, "at most 1,448 of"), (20_000, "20,000 of")])
def test_what_stalls_behind_a_far_link_may_be_the_mtu(arrived: int, told: str) -> None:
    """As behind a tunnel: nothing has shown that large packets pass."""
    where = {"node": "node-1", "interface": "eth0"}
    found = judged(behind_a_far_link(arrived))
    assert [(finding["code"], finding["where"]) for finding in found] == [
        ("net.mesh.mtu", where),
        ("net.mesh.high_latency", where),
    ]
    both = "while small messages pass and round trips take 12 ms or more: a wrong MTU on the way, or a saturated link"
    assert found[0]["severity"] == "fail" and told in found[0]["message"] and both in found[0]["message"], found


def test_where_large_packets_pass_a_far_link_is_full() -> None:
    found = judged(behind_a_far_link(100_000))
    assert [finding["code"] for finding in found] == ["net.mesh.slow", "net.mesh.high_latency"]
    assert "can send only slowly to 4 of 4" in found[0]["message"] and "33.3 kB/s at best" in found[0]["message"]


LEG: list[Pair] = [(3, 0), (0, 3), (3, 2), (5, 3), (6, 3), (3, 9)]
"""A third of the connections of node 3, as a bond spreads them over its legs."""


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"error": "filtered"}, "cannot connect to, or be reached from, 5 of 15 other nodes: no answer within 3.5 s"),
        (HOLE, "cannot exchange large messages with 5 of 15"),
        ({"round_trip_s": 0.05}, "has slow round trips with 5 of 15"),
    ],
)
def test_one_leg_of_a_bond_names_its_node(seen: Seen, words: str) -> None:
    facts = with_pairs(cluster(16), LEG, seen)
    (found,) = [finding for finding in judged(facts) if finding["code"] != "net.mesh.untried"]
    assert found["where"] == {"node": "node-3", "interface": "eth0"}, found
    assert words in found["message"] and "in 6 of its 30 ordered pairs (as" in found["message"]
    assert found["fix"].startswith("If node-3 has a bond (cat /proc/net/bonding/*)")
    more = with_pairs(facts, [(8, 7)], seen)
    (found,) = [finding for finding in judged(more) if finding["code"] != "net.mesh.untried"]
    assert found["where"] == {} and "in 7 of " in found["message"] and "no single node explains" in found["message"]


def test_racks_that_are_slow_to_each_other_are_worth_knowing_and_no_switch_is_named() -> None:
    """A fifth of what is usual within them."""
    facts = split(cluster(20), range(6), range(6, 20), {**GOOD, "rate": 2e8, "rate_back": 2e8})
    for rank, of_rank in facts.items():
        of_rank["switches"] = f"spine.leaf-{int(rank >= 6)}"
    (found,) = judged(facts)
    assert (found["severity"], found["code"], found["where"]) == ("info", "net.mesh.slow", {})
    assert "2 more (behind leaf-0) and node-6" in found["message"] and found["fix"].startswith("Check the uplinks")


def hcas(state: str, **settings: str) -> dict[str, Any]:
    port = {"port": 1, "layer": "InfiniBand", "state": state}
    return {"hcas": [{"name": "mlx5_0", "opens": True, "ports": [port]}], "silent": {}, "settings": settings}


@pytest.mark.parametrize(
    ("backend", "of_node_2", "severity"),
    [
        ("nccl", hcas("ACTIVE"), "info"),
        ("nccl", hcas("DOWN"), "warn"),
        ("nccl", hcas("ACTIVE", NCCL_IB_DISABLE="1"), "warn"),
        ("nccl", None, "warn"),
        ("gloo", hcas("ACTIVE"), "warn"),
    ],
)
def test_where_rdma_carries_the_data_slow_sockets_are_worth_knowing(
    backend: str, of_node_2: dict[str, Any] | None, severity: str
) -> None:
    facts = with_pairs(with_pairs(cluster(3), out_of(1, 3), SLOW), to(1, 3), SEES_SLOW)
    rdma = {0: hcas("ACTIVE"), 1: hcas("ACTIVE"), 2: of_node_2}
    reads = {"net.rdma": {rank: of_rank for rank, of_rank in rdma.items() if of_rank}}
    (found,) = judged(facts, backend=backend, reads=reads)
    assert found["severity"] == severity and ("uses RDMA" in found["message"]) == (severity == "info")


def test_an_error_of_the_nodes_own_system_blames_no_partner() -> None:
    no_port: Seen = {"error": "other", "why": "cannot assign requested address"}
    facts = with_pairs(cluster(4), out_of(1, 4), no_port)
    (found,) = judged(facts)
    assert (found["severity"], found["code"], found["where"]) == ("fail", "net.mesh.local_error", {"node": "node-1"})
    assert "node-1 cannot open connections to 3 of 3 other nodes: its own system says cannot" in found["message"]
    assert found["noticed_by"] == "" and "{" not in found["fix"], found
    assert named(with_pairs(cluster(4), to(2, 4), no_port)) == [
        ("fail", "local_error", {"node": f"node-{rank}"}) for rank in (0, 1, 3)
    ]


def test_what_a_dead_node_leaves_blames_nobody() -> None:
    facts = with_pairs(cluster(4), to(3, 4), {"error": "reset"})
    with_pairs(facts, [(0, 1)], {"error": "left"})
    del facts[3]
    killed = {3: Outcome("crashed", signal="SIGKILL")}
    found = testing.judge(mesh, facts, nodes={f"node-{rank}": (rank,) for rank in range(4)}, outcomes=killed)
    assert [finding["code"] for finding in found] == ["net.mesh.untried"] and found[0]["where"] == {}


def test_pairs_for_which_no_time_was_left_are_told_and_blame_nobody() -> None:
    facts = with_pairs(cluster(4), [(0, 1), (2, 3)], {"error": "late"})
    with_pairs(facts, [(3, 1)], {"error": "reset"})
    facts[1]["cut"] = True
    (found,) = judged(facts)
    assert (found["severity"], found["code"], found["where"]) == ("warn", "net.mesh.untried", {})
    assert "3 of 12 ordered pairs were not fully tested" in found["message"]


def test_the_summary_says_how_many_pairs() -> None:
    def told(size: int) -> str:
        nodes = tuple(Node(f"node-{rank}", rank, (rank,)) for rank in range(size))
        run: Any = Job("env", size, "gloo", nodes)
        return mesh.summarize(cluster(size), run)

    assert told(4) == ("12 ordered pairs of 4 nodes: round trip 0.1 ms, 1 GB/s median, 1 GB/s at least")
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
