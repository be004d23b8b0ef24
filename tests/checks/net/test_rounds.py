import pytest

from preflight.checks.net import rounds


def held(nodes: int, at_most: int | None = None) -> list[tuple[int | None, ...]]:
    """The partners of all nodes, by round."""
    return list(zip(*(rounds.partners(number, nodes, at_most) for number in range(nodes)), strict=True))


@pytest.mark.parametrize("nodes", range(2, 66))
def test_all_meet_all_once_and_each_has_one_partner_at_a_time(nodes: int) -> None:
    met = []
    for partners in held(nodes, at_most=nodes):
        pairs = [(number, partner) for number, partner in enumerate(partners) if partner is not None]
        assert all(partners[partner] == number and partner != number for number, partner in pairs)
        assert nodes - len(pairs) == nodes % 2, "one sits out where their number is odd"
        met += pairs
    assert sorted(met) == [(a, b) for a in range(nodes) for b in range(nodes) if a != b]


@pytest.mark.parametrize(("nodes", "expected"), [(1, 0), (2, 1), (3, 3), (5, 5), (64, 63), (65, 14), (1024, 20)])
def test_above_64_nodes_each_has_some_partners(nodes: int, expected: int) -> None:
    everyone = [set(rounds.partners(number, nodes)) - {None} for number in range(nodes)]
    assert len(rounds.chosen(nodes)) == expected
    assert min(map(len, everyone)) >= expected - nodes % 2
    if nodes == 1024:  # near and far ones
        assert all(max(partners) - min(partners) > nodes // 2 for partners in everyone)  # type: ignore[type-var, operator]  # no None is left
