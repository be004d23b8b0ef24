"""Whom comm.rails, comm.nodes and comm.pairs name, by made-up facts; what needs no real link is tested here."""

import json
from types import ModuleType
from typing import Any

import pytest

from preflight import testing
from preflight.check import Run
from preflight.checks.comm import nodes, pairs, rails
from preflight.checks.comm.shared import meetings
from tests import drawn
from tests.checks.comm.made_links import job, nodes_of, of_nodes, of_pairs, of_rails
from tests.history import past

MANY = 512
BOTH = [(rails, of_rails), (pairs, of_pairs)]


def judged(
    module: ModuleType, facts: dict[int, Any], width: int, backend: str = "nccl", **more: Any
) -> list[dict[str, Any]]:
    return testing.judge(module, facts, nodes=nodes_of(len(facts) // width, width), backend=backend, **more)


def named(found: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(finding["code"].split(".")[-1], finding["where"]) for finding in found]


@pytest.mark.parametrize(("module", "made"), BOTH)
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3, 0.45])
def test_sound_nodes_are_silent_whatever_the_noise(module: ModuleType, made: Any, noise: float) -> None:
    for seed in range(3):
        assert judged(module, made(64, 8, noise=noise, seed=seed), 8) == []
        for size in (2, 3, 4, 5, 9):
            assert judged(module, made(size, 2, noise=noise, seed=seed), 2, "gloo") == []
            assert judged(module, made(size, 1, noise=noise, seed=seed), 1) == []


@pytest.mark.parametrize(("module", "made"), BOTH)
def test_of_512_nodes_a_slow_one_is_named(module: ModuleType, made: Any) -> None:
    slow = made(MANY, 8, lambda a, b, _: 0.5 if 77 in (a, b) else 1.0, noise=0.04)
    (found,) = judged(module, slow, 8)
    assert named([found]) == [("slow_node", {"node": "node-77"})]
    assert "is slow with " in found["message"] and "on all 8 local ranks" in found["message"]
    assert "expected about 40 GB/s" in found["message"].replace("39.9", "40").replace("40.1", "40")
    assert found["noticed_by"] and not {*range(616, 624)} & {int(n) for n in found["noticed_by"].split("-")[:1]}


@pytest.mark.parametrize(("module", "made"), BOTH)
def test_of_512_nodes_a_half_speed_pair_is_named(module: ModuleType, made: Any) -> None:
    met = next(iter(meetings.steps_between(job(MANY, 8), range(MANY * 8))[0].items()))
    a, b = sorted((met[0] // 8, met[1] // 8)) if module is pairs else (200, 201)
    slow = made(MANY, 8, lambda x, y, _: 0.5 if {x, y} == {a, b} else 1.0, noise=0.04)
    (found,) = judged(module, slow, 8)
    assert named([found]) == [("slow_link", {"link": f"node-{a} and node-{b}"})] and found["noticed_by"] == ""


@pytest.mark.parametrize(("module", "made"), BOTH)
def test_of_512_nodes_a_slow_rail_is_named(module: ModuleType, made: Any) -> None:
    slow = made(MANY, 8, lambda _a, _b, rail: 0.5 if rail == 3 else 1.0, noise=0.04)
    assert named(judged(module, slow, 8)) == [("slow_rail", {"local_rank": 3})]


@pytest.mark.parametrize(("module", "made"), BOTH)
@pytest.mark.parametrize("way", ["sends", "receives", pytest.param("both", marks=pytest.mark.more)])
def test_of_512_nodes_a_slow_card_is_named(module: ModuleType, made: Any, way: str) -> None:
    def slow(a: int, b: int, rail: int) -> float:
        ends = {"sends": (a,), "receives": (b,), "both": (a, b)}[way]
        return 0.5 if rail == 5 and 300 in ends else 1.0

    (found,) = judged(module, made(MANY, 8, slow, noise=0.04), 8)
    assert named([found]) == [("slow_rank", {"node": "node-300", "rank": 2405, "local_rank": 5})]
    words = {"sends": "sends slowly to", "receives": "receives slowly from", "both": "is slow with"}
    assert words[way] in found["message"]


@pytest.mark.parametrize(("module", "made"), BOTH)
def test_several_culprits_of_several_kinds(module: ModuleType, made: Any) -> None:
    def slow(a: int, b: int, rail: int) -> float:
        return 0.1 if 5 in (a, b) or (30 in (a, b) and rail == 0) or rail == 7 or a == 50 else 1.0

    assert named(judged(module, made(64, 8, slow, noise=0.1), 8)) == [
        ("slow_rail", {"local_rank": 7}),
        ("slow_node", {"node": "node-5"}),
        ("slow_node", {"node": "node-50"}),
        ("slow_rank", {"node": "node-30", "rank": 240, "local_rank": 0}),
    ]


@pytest.mark.parametrize(("module", "made"), BOTH)
@pytest.mark.parametrize("size", [3, 4, 5, 8])
def test_of_few_nodes_the_slow_one_is_named(module: ModuleType, made: Any, size: int) -> None:
    for backend, share in (("gloo", 0.1), ("nccl", 0.1)):
        slow = made(size, 1, lambda a, b, _, share=share: share if 1 in (a, b) else 1.0, noise=0.2)
        found = judged(module, slow, 1, backend)
        assert named(found) == [("slow_node", {"node": "node-1"})], (size, found)


def test_half_the_rate_is_told_on_nccl_and_not_on_gloo() -> None:
    slow = of_rails(8, 2, lambda a, b, _: 0.5 if 3 in (a, b) else 1.0, noise=0.02)
    assert named(judged(rails, slow, 2)) == [("slow_node", {"node": "node-3"})]
    assert judged(rails, slow, 2, "gloo") == []
    assert len(judged(rails, slow, 2, "gloo", settings={"much_slower": 1.8})) == 1
    assert judged(rails, slow, 2, "nccl", settings={"slower": 2.5}) == []


@pytest.mark.parametrize(("module", "made"), BOTH)
def test_of_two_nodes_a_link_is_named_and_no_node(module: ModuleType, made: Any) -> None:
    one_way = made(2, 1, lambda a, *_: 0.1 if a == 1 else 1.0)
    (found,) = judged(module, one_way, 1)
    assert named([found]) == [("slow_link", {"link": "node-1 to node-0"})] and "as the other way" in found["message"]
    one_card = made(2, 4, lambda _a, _b, rail: 0.1 if rail == 2 else 1.0)
    assert named(judged(module, one_card, 4)) == [("slow_link", {"link": "node-0 and node-1", "local_rank": 2})]


def test_neighbours_in_a_ring_of_which_no_one_stands_out_are_one_finding() -> None:
    """A sick node on either side of a healthy one: the rings do not tell which of the three is sick; pairs do."""

    def slow(a: int, b: int, _: int) -> float:
        return 0.1 if a in (1, 3) else 1.0

    (found,) = judged(rails, of_rails(9, 1, slow), 1)
    assert found["where"] == {} and "no single node explains this" in found["message"], found
    assert "4 of 18 links are slow (node-1 to node-0, node-1 to node-2, node-3 to node-2" in found["message"], found
    assert named(judged(pairs, of_pairs(9, 1, slow), 1)) == [
        ("slow_node", {"node": "node-1"}),
        ("slow_node", {"node": "node-3"}),
    ]


def test_half_of_the_rails_name_nobody() -> None:
    (found,) = judged(rails, of_rails(8, 4, lambda _a, _b, rail: 0.1 if rail < 2 else 1.0), 4)
    assert found["where"] == {} and "32 of 64 links are slow" in found["message"], found


def test_what_is_slow_with_most_others_is_named() -> None:
    """As with a bond of which two legs of three are sick."""
    node = of_pairs(16, 1, lambda a, b, _: 0.1 if a == 5 and b < 10 else 1.0)
    assert named(judged(pairs, node, 1)) == [("slow_node", {"node": "node-5"})]
    card = of_pairs(16, 4, lambda a, b, rail: 0.1 if a == 5 and b < 10 and rail == 2 else 1.0)
    assert named(judged(pairs, card, 4)) == [("slow_rank", {"node": "node-5", "rank": 22, "local_rank": 2})]


def test_many_slow_pairs_name_nobody() -> None:
    slow = of_rails(64, 1, lambda a, b, _: 0.1 if min(a, b) % 8 == 0 and abs(a - b) == 1 else 1.0)
    (found,) = judged(rails, slow, 1)
    assert found["where"] == {} and "16 of 128 links are slow (as node-0 to node-1, " in found["message"], found


def test_groups_that_are_slow_with_each_other_are_worth_knowing_and_no_node_is_named() -> None:
    """Racks of 6 and 14 nodes, whose uplinks carry a fifth."""
    racks = of_pairs(20, 1, lambda a, b, _: 1.0 if (a < 6) == (b < 6) else 0.2)
    (found,) = judged(pairs, racks, 1)
    assert (found["severity"], found["where"], found["code"]) == ("info", {}, "comm.pairs.slow_sides")
    assert "between node-0, node-1, node-2 and 3 more and node-6, node-7, node-8 and 11 more" in found["message"]


def test_two_halves_that_are_slow_with_each_other_and_two_slow_cables_of_a_ring() -> None:
    halves = of_pairs(8, 2, lambda a, b, _: 1.0 if (a < 4) == (b < 4) else 0.1)
    assert [(finding["severity"], finding["where"]) for finding in judged(pairs, halves, 2)] == [("info", {})]
    cables = of_rails(8, 2, lambda a, b, _: 0.1 if {a, b} in ({1, 2}, {5, 6}) else 1.0)
    where = [{"link": "node-1 and node-2"}, {"link": "node-5 and node-6"}]
    assert named(judged(rails, cables, 2)) == [("slow_link", place) for place in where]


def test_a_rail_that_is_slow_only_under_load_is_named() -> None:
    facts = of_rails(8, 4, noise=0.02)
    for rank, of_rank in facts.items():
        of_rank["reduce_s"] *= 2.5 if rank % 4 == 2 else 1.0
    assert judged(rails, facts, 4, "gloo") == []
    for rank, of_rank in facts.items():
        of_rank["reduce_s"] *= 2.5 if rank % 4 == 2 else 1.0
    (found,) = judged(rails, facts, 4)
    assert named([found]) == [("slow_together", {"local_rank": 2})]
    assert "as on 3 other rails" in found["message"] and found["fix"].startswith("Check the switch of rail 2")


def test_what_a_lost_rank_leaves_is_judged() -> None:
    """Rails of unequal lengths: members are asked, and the others' places stay what they are."""
    made = job(4, 2)
    present = [rank for rank in range(8) if rank != 3]
    assert meetings.group_by_rail(made, present) == [[0, 2, 4, 6], [1, 5, 7]]
    facts = of_rails(4, 2, lambda a, b, _: 0.1 if 2 in (a, b) else 1.0)
    del facts[3]
    assert named(testing.judge(rails, facts, nodes=nodes_of(4, 2), backend="nccl"))[0][0] in ("slow_node", "slow_rank")


# Nodes by themselves


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_sound_nodes_are_silent_by_themselves(noise: float) -> None:
    for size in (1, 2, 3, 64):
        assert judged(nodes, of_nodes(size, 8, noise=noise), 8) == []


def test_gpus_that_are_wired_unevenly_by_design_are_sound() -> None:
    """NVLink within the halves, PCIe between them, on all nodes."""
    halves = of_nodes(16, 8, lambda a, b: 1.0 if a % 8 // 4 == b % 8 // 4 else 0.1, noise=0.1)
    assert judged(nodes, halves, 8) == []


def test_a_gpu_that_is_wired_otherwise_by_design_is_sound() -> None:
    assert judged(nodes, of_nodes(16, 8, lambda a, b: 0.1 if 7 in (a % 8, b % 8) else 1.0, noise=0.1), 8) == []


def test_of_three_gpus_the_slow_one_is_named() -> None:
    """Four of six links: most."""
    slow = of_nodes(8, 3, lambda a, b: 0.1 if 6 in (a, b) else 1.0)
    assert named(judged(nodes, slow, 3)) == [("slow_gpu", {"node": "node-2", "rank": 6, "local_rank": 0})]


def test_a_node_that_is_slow_by_itself_is_named() -> None:
    slow = of_nodes(MANY, 8, lambda a, _: 0.5 if a // 8 == 9 else 1.0, noise=0.02)
    (found,) = judged(nodes, slow, 8)
    assert named([found]) == [("slow_node", {"node": "node-9"})] and "nvidia-smi nvlink -s" in found["fix"]


def test_a_slow_gpu_and_a_slow_pair_are_named_and_not_their_nodes() -> None:
    def slow(a: int, b: int) -> float:
        return 0.5 if 42 in (a, b) or {a, b} == {80, 81} else 1.0

    assert named(judged(nodes, of_nodes(32, 8, slow, noise=0.02), 8)) == [
        ("slow_gpu", {"node": "node-5", "rank": 42, "local_rank": 2}),
        ("slow_pair", {"node": "node-10", "link": "rank 80 and rank 81"}),
    ]


def test_one_node_against_one_names_nobody() -> None:
    slow = of_nodes(2, 4, lambda a, _: 0.1 if a < 4 else 1.0)
    (found,) = judged(nodes, slow, 4)
    assert (found["code"], found["where"]) == ("comm.nodes.slower_of_two", {}) and "on node-0 and " in found["message"]


def test_of_two_nodes_the_one_with_a_slow_pair_is_no_riddle() -> None:
    slow = of_nodes(2, 4, lambda a, b: 0.1 if {a, b} == {1, 2} else 1.0)
    assert named(judged(nodes, slow, 4)) == [("slow_pair", {"node": "node-0", "link": "rank 1 and rank 2"})]


def test_a_job_on_one_node_has_a_slow_pair() -> None:
    slow = of_nodes(1, 8, lambda a, b: 0.1 if {a, b} == {2, 6} else 1.0)
    assert named(judged(nodes, slow, 8)) == [("slow_pair", {"node": "node-0", "link": "rank 2 and rank 6"})]


# Baseline, facts, pictures


@pytest.mark.parametrize(("module", "made"), BOTH)
def test_links_that_are_all_slower_than_in_the_baseline_are_told(module: ModuleType, made: Any) -> None:
    before, halved, placed = made(4, 2), made(4, 2, lambda *_: 0.5), job(4, 2)
    assert past.slower(module, before, before, placed) == []
    (told,) = past.slower(module, before, halved, placed)
    assert told == "rate of a link 20 GB/s is 50% of 40, the baseline's (spread 0.0%), expected at least 80%"


def test_facts_stay_small() -> None:
    """1,024 nodes of 8 ranks: what each rank hands over."""
    steps = meetings.steps_between(job(1024, 8), range(8192))
    assert len(steps) == 40
    partners = sum(5 in step.values() for step in steps)
    assert partners == 20 and len(json.dumps([[1234, 0.0012345]] * partners)) < 500


def picture(module: ModuleType, facts: dict[int, Any], width: int, columns: int) -> list[str]:
    made = job(len(facts) // width, width)
    return drawn.lines(module, facts, Run(made, tuple(facts), {}), columns)


@pytest.mark.parametrize(("module", "made"), [*BOTH, (nodes, lambda size, width, *_, **_more: of_nodes(size, width))])
@pytest.mark.parametrize("size", [2, 4, 40, MANY])
@pytest.mark.parametrize("columns", [74, 114, 194])
def test_pictures_fit_and_show_what_is_slow(module: ModuleType, made: Any, size: int, columns: int) -> None:
    facts = made(size, 4, lambda a, *_: 0.1 if a == 1 and size > 2 else 1.0, noise=0.1)
    lines = picture(module, facts, 4, columns)
    assert 2 <= len(lines) <= 32 and max(map(len, lines)) <= columns
    if module is not nodes and size > 2:
        (row,) = [line for line in lines if "node-1 " in line]
        assert "!" in row or "1" in row.split("node-1 ")[1], row


def test_a_picture_of_many_nodes_marks_the_slow_row_only() -> None:
    lines = picture(pairs, of_pairs(40, 1, lambda a, *_: 0.3 if a == 7 else 1.0), 1, 74)
    slow = [line for line in lines if "!" in line and line.startswith("node-")]
    assert len(slow) == 1 and slow[0].startswith("node-7 ") and slow[0].count("!") == 12, slow  # of its partners


# Who meets whom


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 31, 32])
def test_all_pairs_of_few_nodes_meet_once_each_way(size: int) -> None:
    steps = meetings.steps_between(job(size, 2), range(2 * size))
    links = [(a, b) for step in steps for a, b in step.items()]
    assert len(links) == len(set(links)) == size * (size - 1) * 2
    assert all(a % 2 == b % 2 and a // 2 != b // 2 for a, b in links)
    for step in steps:
        ends = [*step, *step.values()]
        assert len(ends) == len(set(ends)), "in a step a rank has one partner, and one of the two sends"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7])
def test_rings_give_each_rank_its_neighbours_both_ways(size: int) -> None:
    steps = meetings.ring_steps(meetings.group_by_rail(job(size, 3), range(3 * size)))
    links = {(a // 3, b // 3) for step in steps for a, b in step.items()}
    assert links == {(n, (n + way) % size) for n in range(size) for way in (1, -1) if size > 1}
    for step in steps:
        ends = [*step, *step.values()]
        assert len(ends) == len(set(ends))


def test_many_nodes_meet_some_of_the_others() -> None:
    steps = meetings.steps_between(job(1024, 1), range(1024))
    partners: dict[int, set[int]] = {}
    for step in steps:
        for a, b in step.items():
            partners.setdefault(a, set()).add(b)
    assert {len(others) for others in partners.values()} <= {19, 20} and len(partners) == 1024
