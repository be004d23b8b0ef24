"""Only what is slow in both looks is blamed: by simulated clusters. On real links: test_links_hosts.py."""

import random
from typing import Any

import pytest

from preflight import testing
from preflight.checks.comm import nodes, pairs, rails
from preflight.checks.comm.shared import meetings
from tests.checks.comm.made_links import job, nodes_of, of_nodes, sound, twice

Found = list[dict[str, Any]]
MANY, BEHIND_A_SWITCH = 1024, 32


def judged(module: Any, facts: dict[int, Any], width: int = 1) -> Found:
    return testing.judge(module, facts, nodes=nodes_of(len(facts) // width, width), backend="nccl")


def culprits(found: Found) -> list[tuple[str, str, dict[str, Any]]]:
    return [(finding["severity"], finding["code"].split(".")[-1], finding["where"]) for finding in found]


def in_pairs(first: Any, again: Any, size: int, width: int = 1, seed: int = 0) -> tuple[Found, list[dict[int, int]]]:
    steps = meetings.steps_between(job(size, width), range(size * width))
    found, more = twice(steps, size, width, first, again, noise=0.05, seed=seed)
    return judged(pairs, found, width), [*steps, *more]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.more) for n in range(2, 100))])
def test_of_1024_nodes_two_bad_ones_and_a_bad_switch_are_found(seed: int) -> None:
    """At most 3 log2 N rounds; no healthy node is named, also not those behind the switch: its uplink is slow."""
    chance = random.Random(seed)
    bad = set(chance.sample(range(MANY), 2))
    order = chance.sample(range(MANY), MANY) if seed % 2 else [*range(MANY)]  # ranks placed at random, or by rack
    behind = {node: order[node] // BEHIND_A_SWITCH == seed % BEHIND_A_SWITCH for node in range(MANY)}

    def slow(a: int, b: int, _: int) -> float:
        return 0.4 if {a, b} & bad or behind[a] != behind[b] else 1.0

    found, steps = in_pairs(slow, slow, MANY, seed=seed)
    assert len(steps) <= 2 * 3 * 10, "a round is two steps: one way, and the other"
    named = [finding for finding in found if finding["where"]]
    assert sorted(finding["where"]["node"] for finding in named) == sorted(f"node-{node}" for node in bad)
    assert {finding["evidence"]["confirmed"] for finding in found} == {"2 of 2"}
    (sides,) = [finding for finding in found if not finding["where"]]
    assert (sides["severity"], sides["code"]) == ("info", "comm.pairs.slow_sides"), sides


def test_a_node_that_is_slow_once_is_not_blamed() -> None:
    for size, width in ((4, 1), (8, 4), (256, 1)):
        found, _ = in_pairs(lambda a, b, _: 0.2 if 1 in (a, b) else 1.0, sound, size, width)
        assert culprits(found) == [("info", "slow_once", {})], found
        assert found[0]["evidence"]["confirmed"] == "1 of 2" and "no rank is blamed" in found[0]["message"]
        assert "node-1" in found[0]["message"] and "node-1" in found[0]["fix"]


def test_of_two_slow_nodes_the_one_that_stays_so_is_blamed() -> None:
    for size in (8, 256):
        found, _ = in_pairs(
            lambda a, b, _: 0.2 if {a, b} & {1, 5} else 1.0, lambda a, b, _: 0.2 if 5 in (a, b) else 1.0, size
        )
        blamed, cleared = culprits(found)
        assert blamed == ("warn", "slow_node", {"node": "node-5"}) and cleared == ("info", "slow_once", {}), found


def test_what_is_slow_only_in_the_second_look_is_not_blamed() -> None:
    found, _ = in_pairs(lambda a, b, _: 0.2 if 1 in (a, b) else 1.0, lambda a, b, _: 0.2 if {a, b} & {1, 3} else 1.0, 8)
    assert culprits(found) == [("warn", "slow_node", {"node": "node-1"})], found


def test_the_fabric_between_two_halves_is_named_with_both_sides() -> None:
    for size in (8, 128):
        slow = lambda a, b, _, size=size: 1.0 if (a < size // 2) == (b < size // 2) else 0.2  # noqa: E731
        (found,), _ = in_pairs(slow, slow, size)
        assert (
            found["code"] == "comm.pairs.slow_sides"
            and found["where"] == {}
            and "within each of them all is well" in (found["message"])
        ), found


def test_a_rail_that_is_slow_once_is_not_blamed() -> None:
    steps = meetings.ring_steps(meetings.group_by_rail(job(8, 4), range(32)))
    slow = lambda _a, _b, rail: 0.2 if rail == 2 else 1.0  # noqa: E731
    for again, expected in ((slow, ("warn", "slow_rail", {"local_rank": 2})), (sound, ("info", "slow_once", {}))):
        found, _ = twice(steps, 8, 4, slow, again)
        assert culprits(judged(rails, found, 4)) == [expected]


def test_an_all_reduce_that_is_slow_once_is_not_blamed() -> None:
    first = of_nodes(8, 4)
    for rank in range(4, 8):
        first[rank]["reduce_s"] *= 5
    look = {rank: {**of, "again": {"links": [], "reduce_s": of["reduce_s"]}} for rank, of in first.items()}
    assert culprits(judged(nodes, look, 4)) == [("warn", "slow_node", {"node": "node-1"})]
    for rank in range(4, 8):
        look[rank]["again"]["reduce_s"] /= 5
    assert culprits(judged(nodes, look, 4)) == [("info", "slow_once", {})]


def test_where_time_is_short_the_finding_says_that_it_is_not_confirmed() -> None:
    steps = meetings.steps_between(job(8, 1), range(8))
    slow = lambda a, b, _: 0.2 if 1 in (a, b) else 1.0  # noqa: E731
    found, _ = twice(steps, 8, 1, slow, slow)
    (told,) = judged(pairs, {rank: {**of, "again": None} for rank, of in found.items()})
    assert told["severity"] == "warn" and told["evidence"]["confirmed"] == "1 of 1", told
    assert told["message"].endswith("; not confirmed: there was no time to measure it again"), told


def test_a_second_look_takes_at_most_log2_of_the_nodes_in_rounds() -> None:
    for size in (65, 100, 1000, 1024):
        steps = meetings.steps_between(job(size, 1), range(size))
        everything = {link for step in steps for link in step.items()}
        for bad in (everything, {link for link in everything if 3 in link}, set()):
            more = meetings.steps_again(steps, bad, job(size, 1), with_each_other=True)
            assert len(more) <= 2 * (size - 1).bit_length() and bool(more) == bool(bad)
