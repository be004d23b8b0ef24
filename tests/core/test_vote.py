from preflight.core.vote import compare, vote


def test_the_odd_one_of_three_is_named() -> None:
    found = vote({0: "a", 1: "b", 2: "a"})
    assert (found.usual, list(found.odd())) == ("a", [(1, "b")])
    assert found.among() == "'a' as on 2 of 3 ranks"


def test_one_against_one_names_nobody() -> None:
    found = vote({0: "a", 1: None})
    assert not found.decided and list(found.odd()) == []
    assert found.sides() == "'a' on rank 0, not set on rank 1"


def test_the_commonest_of_three_values_needs_more_than_half() -> None:
    assert not vote({0: 1, 1: 1, 2: 2, 3: 3}).decided
    assert list(vote({0: 1, 1: 1, 2: 1, 3: 3, 4: 4}).odd()) == [(3, 3), (4, 4)]


def test_where_all_agree_nobody_is_odd() -> None:
    found = vote([(0, "a"), (5, "a")])
    assert found.unanimous and list(found.odd()) == []
    assert vote({}).unanimous and not vote({}).decided


def test_many_sides_are_cut() -> None:
    assert vote({rank: rank for rank in range(9)}).sides(2) == "0 on rank 0, 1 on rank 1, 7 other values"


def test_two_values_are_not_one_mind() -> None:
    assert not vote({0: "a", 1: "b"}).unanimous
    assert vote({0: "a", 1: "b"}).sides(2) == "'a' on rank 0, 'b' on rank 1", "no more than there are"
    assert vote({0: "b", 1: "a", 2: "a", 3: "b"}).usual == "b", "of equals the one with the lowest rank"


def test_things_are_compared_with_those_of_their_group() -> None:
    speeds = [("a0", 1), ("a1", 2), ("a2", 1), ("b0", 3), ("b1", 4)]
    groups = compare(speeds, groups=lambda thing: thing[0])
    assert list(groups["a"].odd()) == [("a1", 2)] and groups["a"].votes.usual == 1
    assert list(groups["b"].odd()) == [] and not groups["b"].votes.decided, "one against one"
    assert list(compare(speeds)) == [None] and compare([]) == {}
