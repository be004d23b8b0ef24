"""Who meets whom, and which culprit bad pairs have in common. What the checks say of it: test_mesh.py in net, and
test_links_judged.py in comm."""

import itertools
from collections.abc import Iterable

import pytest

from preflight.sdk import pairs
from preflight.sdk.pairs import RECEIVES, SENDS, Common, Pair, Wording, common_cause

BOTH = (SENDS, RECEIVES)


def of(nodes: int, bad: Iterable[Pair]) -> Common:
    return common_cause(list(itertools.permutations(range(nodes), 2)), list(bad))


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


def by_tens(member: int) -> int:
    return member // 10


def test_units_that_do_badly_with_most_of_theirs_are_named_the_worst_first() -> None:
    """Members in tens: 10 to 19 are unit 1."""
    tried = [(a, b) for a in range(0, 60, 10) for b in range(1, 60, 10) if a // 10 != b // 10]
    from_one = [(a, b) for a, b in tried if a == 10]
    assert pairs.bad_with_most(from_one, tried, by_tens, partners=2) == {1: {SENDS}}
    assert pairs.bad_with_most(from_one[:3], tried, by_tens, partners=2) == {1: {SENDS}}
    assert pairs.bad_with_most(from_one[:2], tried, by_tens, partners=2) == {}, "two are no pattern"
    both = {*from_one, *((a, b) for a, b in tried if b == 31)}
    assert pairs.bad_with_most(both, tried, by_tens, partners=2) == {1: {SENDS}, 3: {RECEIVES}}


def test_one_bad_partner_is_no_witness_against_a_unit() -> None:
    tried = [(rank, 10 + other) for rank in range(3) for other in range(3)]
    assert pairs.bad_with_most(tried, tried, by_tens, partners=2) == {}
    assert pairs.bad_with_most([], tried, by_tens, partners=1) == {}


def test_sides_leave_out_culprits_and_a_member_by_itself_is_no_side() -> None:
    good = [(0, 1), (2, 3)]
    assert pairs.split_sides(range(4), good, [(0, 2)], ()) == ((0, 1), (2, 3))
    assert pairs.split_sides(range(5), good, [(0, 2)], ()) == (), "4 is by itself"
    assert pairs.split_sides(range(5), good, [(0, 2)], (4,)) == ((0, 1), (2, 3))
    assert pairs.split_sides(range(4), good, [(0, 1)], ()) == (), "a bad pair within a side"
    assert pairs.split_sides(range(4), good, [], ()) == ()


def test_sentences_say_which_way_it_is() -> None:
    words = Wording("sends badly to", "gets badly from", "is bad with", "{a} to {b}", "{a} and {b} are apart", "or")
    assert words.culprit("a", (SENDS,), 1, 1) == "a sends badly to 1 of 1 other node"
    assert words.culprit("a", (RECEIVES,), 2, 3) == "a gets badly from 2 of 3 other nodes"
    assert words.culprit("a", BOTH, 2, 3) == "a is bad with 2 of 3 other nodes"
    assert words.culprit("a", BOTH, 2, 3, both_ways=False) == "a or 2 of 3 other nodes"
    assert words.between_sides(["a", "b", "c"]) == "a and b or c are apart; within each of them all is well"


# Schedule

ALL_PAIRS = 64


def held(members: int, at_most: int | None = None) -> list[tuple[int | None, ...]]:
    """The partners of all members, by round."""
    return list(zip(*(pairs.partners(member, members, ALL_PAIRS, at_most) for member in range(members)), strict=True))


@pytest.mark.parametrize("members", range(2, 66))
def test_all_meet_all_once_and_each_has_one_partner_at_a_time(members: int) -> None:
    met = []
    for turn, partners in enumerate(held(members, at_most=members)):
        together = [(member, partner) for member, partner in enumerate(partners) if partner is not None]
        assert all(partners[partner] == member and partner != member for member, partner in together)
        assert members - len(together) == members % 2, "one sits out where their number is odd"
        assert {*pairs.meeting(range(members), turn)} == {(a, b) for a, b in together if a < b}
        met += together
    assert sorted(met) == [(a, b) for a in range(members) for b in range(members) if a != b]
    assert pairs.meeting(range(members), len(held(members, members))) == [], "no round is left"


@pytest.mark.parametrize(("members", "expected"), [(1, 0), (2, 1), (3, 3), (5, 5), (64, 63), (65, 14), (1024, 20)])
def test_of_many_each_has_some_partners(members: int, expected: int) -> None:
    everyone = [{*pairs.partners(member, members, ALL_PAIRS)} - {None} for member in range(members)]
    assert len(pairs.rounds(members, ALL_PAIRS)) == expected
    assert min(map(len, everyone)) >= expected - members % 2
    if members == 1024:  # near and far ones
        assert all(max(partners) - min(partners) > members // 2 for partners in everyone)  # type: ignore[type-var, operator]  # no None is left


def test_a_culprits_other_pairs_are_its_fault_too() -> None:
    bad = [(0, 2), (1, 2), (2, 0)]
    assert of(3, bad) == Common({2: BOTH}, (), ())
