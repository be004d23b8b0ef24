"""Sums of fewer and fewer ranks, simulated: one rank that makes them wrong is named, and no other ever is."""

import random
from collections.abc import Callable

import pytest

from preflight.checks.comm import all_reduce
from preflight.checks.comm.shared.readings import SmallerGroup
from preflight.checks.comm.shared.smaller_groups import TIMES, culprit, next_parts, tried_groups
from tests.checks.comm.test_verdict import judged, sound, wrong_on


def tried(members: tuple[int, ...], is_wrong: Callable[[tuple[int, ...]], bool]) -> list[SmallerGroup]:
    found: list[SmallerGroup] = []
    while parts := next_parts(members, found):
        assert sorted(sum(parts, ())) == [*members] and all(parts)
        more = tried_groups(parts, [[len(part) > 1 and is_wrong(part) for _ in range(TIMES)] for part in parts])
        if more is None:
            return []
        found += more
    return found


@pytest.mark.parametrize("world", [3, 4, 5, 7, 8, 64, 1023])
def test_the_rank_that_makes_sums_wrong_is_named(world: int) -> None:
    members = tuple(range(10, 10 + world))
    for sick in {*members[:4], members[world // 2], members[-1]}:
        found = tried(members, lambda part, sick=sick: sick in part)  # type: ignore[misc]
        assert culprit(members, found) == sick
        assert len(found) <= 2 * (world.bit_length() + 1)


def test_two_ranks_name_nobody() -> None:
    assert next_parts((0, 1), []) is None


@pytest.mark.parametrize("world", [3, 4, 5, 8, 33])
def test_a_link_between_two_names_neither(world: int) -> None:
    members = tuple(range(world))
    for first, second in ((0, 1), (0, world - 1), (1, 2)):
        found = tried(members, lambda part, pair={first, second}: pair <= {*part})  # type: ignore[misc]
        assert culprit(members, found) is None, found


@pytest.mark.parametrize("size", [2, 4])
def test_a_node_whose_network_is_bad_names_none_of_its_ranks(size: int) -> None:
    members, node = tuple(range(16)), {*range(size)}

    def is_wrong(part: tuple[int, ...]) -> bool:
        return bool(node & {*part}) and not node >= {*part}

    assert culprit(members, tried(members, is_wrong)) is None


def test_two_that_are_wrong_at_times_never_name_a_third() -> None:
    for seed in range(2000):
        at_times = random.Random(seed)
        members, share = tuple(range(at_times.randint(3, 20))), at_times.random()
        sick = set(at_times.sample(members, 2))
        found = tried(members, lambda part: any(rank in sick and at_times.random() < share for rank in part))  # noqa: B023
        assert culprit(members, found) in {None, *sick}, seed


def test_the_judge_names_whom_smaller_groups_have_found() -> None:
    facts = wrong_on(sound(), range(8))
    assert judged(all_reduce, facts)[0]["where"] == {}
    facts[0]["groups"] = tried(tuple(range(8)), lambda part: 5 in part)
    (found,) = judged(all_reduce, facts)
    assert found["where"] == {"node": "node-1", "rank": 5} and found["noticed_by"] == "0-4,6-7"
    facts[0]["groups"] = tried(tuple(range(8)), lambda part: {4, 5} <= {*part})
    assert judged(all_reduce, facts)[0]["where"] == {}
