import itertools
from collections.abc import Iterable

import pytest

from preflight.checks.net.common_ends import RECEIVES, SENDS, Common, Pair, common, switch_of, switches

BOTH = (SENDS, RECEIVES)


def of(nodes: int, bad: Iterable[Pair]) -> Common:
    return common(list(itertools.permutations(range(nodes), 2)), list(bad))


def to(node: int, nodes: int) -> list[Pair]:
    return [(other, node) for other in range(nodes) if other != node]


def out_of(node: int, nodes: int) -> list[Pair]:
    return [(node, other) for other in range(nodes) if other != node]


def between(some: Iterable[int], others: Iterable[int]) -> list[Pair]:
    one_way = list(itertools.product(some, others))
    return [*one_way, *((b, a) for a, b in one_way)]


NOTHING = Common({}, (), ())


@pytest.mark.parametrize(
    ("nodes", "bad", "expected"),
    [
        (4, [], NOTHING),
        (3, to(2, 3), Common({2: (RECEIVES,)}, (), ())),
        (3, out_of(2, 3), Common({2: (SENDS,)}, (), ())),
        (3, [*to(2, 3), *out_of(2, 3)], Common({2: BOTH}, (), ())),
        (4, [*to(2, 4), *to(3, 4)], Common({2: (RECEIVES,), 3: (RECEIVES,)}, (), ())),
        (5, [*to(2, 5), *out_of(4, 5)], Common({2: (RECEIVES,), 4: (SENDS,)}, (), ())),
    ],
)  # fmt: skip
def test_a_node_that_does_badly_with_all_others_is_named(nodes: int, bad: list[Pair], expected: Common) -> None:
    assert of(nodes, bad) == expected


@pytest.mark.parametrize(
    ("nodes", "bad"),
    [(2, [(0, 1)]), (2, [(0, 1), (1, 0)]), (3, [(0, 1)]), (4, [(0, 1), (2, 3)]), (5, [(0, 1), (0, 2)])],
)  # fmt: skip
def test_a_bad_pair_may_be_the_fault_of_either(nodes: int, bad: list[Pair]) -> None:
    assert of(nodes, bad) == Common({}, (), tuple(sorted(bad)))


def test_where_nothing_works_nobody_is_named() -> None:
    everything = list(itertools.permutations(range(4), 2))
    assert of(4, everything) == Common({}, (), tuple(everything))
    assert of(4, everything[1:]).ends == {}, "one good pair has one witness an end"


def test_a_node_that_does_badly_with_most_is_named_if_it_explains_all() -> None:
    assert of(7, to(2, 7)[:4]) == Common({2: (RECEIVES,)}, (), ())
    assert of(7, to(2, 7)[:3]).ends == {}, "half of them are not most"
    assert of(16, to(2, 16)[:5]) == Common({2: (RECEIVES,)}, (), ()), "and five are many"
    assert of(16, [*to(2, 16)[:5], *to(7, 16)]) == Common({7: (RECEIVES,), 2: (RECEIVES,)}, (), ()), "beside another"
    assert of(16, [*to(2, 16), *out_of(2, 16)[:5]]) == Common({2: BOTH}, (), ())
    assert of(16, [*to(2, 16)[:2], *out_of(2, 16)[2:4]]).ends == {}, "four are not"
    assert of(7, [*to(2, 7)[:4], (5, 6)]).ends == {}, "it does not explain all"


@pytest.mark.parametrize(
    ("some", "others"),
    [((0, 1), (2, 3)), ((0, 1), (2, 3, 4, 5)), ((1, 4), (0, 2, 3))],
)  # fmt: skip
def test_two_sides_are_told(some: tuple[int, ...], others: tuple[int, ...]) -> None:
    found = of(len(some) + len(others), between(some, others))
    assert (found.ends, found.sides) == ({}, (some, others))


def test_a_sick_node_beside_two_sides() -> None:
    found = of(7, {*between((0, 1, 2), (3, 4, 5)), *to(6, 7), *out_of(6, 7)})
    assert (found.ends, found.sides) == ({6: BOTH}, ((0, 1, 2), (3, 4, 5)))


def test_switches_are_read_as_slurm_writes_them() -> None:
    assert switch_of("spine.leaf-1.node-7", "switch.switch.node") == "spine.leaf-1"
    assert switch_of("s[0-1].leaf-1.node-7.example.org", "switch.switch.node") == "s[0-1].leaf-1"
    for addr, pattern in (("node-7", "node"), ("", ""), ("b1.node-7", "block.node"), ("leaf", "switch.node")):
        assert switch_of(addr, pattern) == ""
    behind = switches({0: "spine.leaf-0", 1: "spine.leaf-0", 2: "spine.leaf-1", 3: ""})
    assert behind == {frozenset({0, 1}): "leaf-0", frozenset({2}): "leaf-1", frozenset({0, 1, 2}): "spine"}
