import math

import pytest

from preflight.train_smoke import compare
from preflight.train_smoke.compare import LEAST, TIMES, Curve, Furthest, Limits, Number, Point, difference

RIGHT: Furthest = {"parameter": "head.weight", "off": 1e-6}


def curve(steps: int = 3) -> Curve:
    values: list[Number] = [1.0 + step for step in range(steps)]
    return {
        "losses": [*values],
        "own_norms": [*values],
        "own_prints": [*values],
        "norms": [*values],
        "prints": [*values],
    }


@pytest.mark.parametrize(
    ("measured", "expected", "scale", "wanted"),
    [
        (1.0, 1.0, None, 0.0),
        (1.1, 1.0, None, 0.1),
        (-2.0, -1.0, None, 1.0),
        (0.0, 0.0, None, 0.0),
        (1e-9, 0.0, None, math.inf),
        (0.002, 0.001, 1.0, 0.001),
        ("nan", 1.0, None, math.inf),
        (1.0, "inf", None, math.inf),
        ("nan", "nan", None, 0.0),
        (1.0, 2.0, "nan", math.inf),
    ],
)
def test_a_difference_is_relative(measured: Number, expected: Number, scale: Number | None, wanted: float) -> None:
    assert difference(measured, expected, scale) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("spreads", "curves"),
    [
        ([], LEAST.curves),
        ([0.0], LEAST.curves),
        ([1e-3], TIMES * 1e-3),
        ([1e-7, 0.9], LEAST.curves),
        ([1e-3, 1e-3, 0.9], TIMES * 1e-3),
        ([math.inf, math.inf, 1e-7], LEAST.curves),
        ([math.inf], LEAST.curves),
    ],
)
def test_a_sick_rank_does_not_widen_the_limits(spreads: list[float], curves: float) -> None:
    assert compare.limits(Limits(spread, 0.0) for spread in spreads) == Limits(curves, LEAST.parameters)


def test_the_parameters_have_a_limit_of_their_own() -> None:
    assert compare.limits([Limits(0.0, 0.1)]) == Limits(LEAST.curves, TIMES * 0.1)


def test_points_come_in_the_order_in_which_they_are_made() -> None:
    seen = [(point.step, point.quantity) for point in compare.points(curve(), curve(), RIGHT, LEAST)]
    steps = [(step, quantity) for step in range(3) for quantity in compare.QUANTITIES]
    assert seen == [*steps, (2, "parameters")]


def test_a_print_is_measured_by_the_norm() -> None:
    """It may be near 0, where a relative difference means nothing."""
    expected, measured = curve(), curve()
    expected["prints"][1], measured["prints"][1] = 1e-9, 3e-9
    assert compare.first_beyond(compare.points(measured, expected, RIGHT, LEAST)) is None
    measured["prints"][1] = 1e-3
    point = compare.first_beyond(compare.points(measured, expected, RIGHT, LEAST))
    assert point and (point.step, point.quantity) == (1, "prints")


def test_spread_is_of_what_does_not_depend_on_the_part() -> None:
    again = curve()
    again["losses"], again["own_norms"], again["own_prints"] = [9.0] * 3, [9.0] * 3, [9.0] * 3
    again["norms"][2] = 3.3
    spread = compare.spread(again, curve(), {"parameter": "head.weight", "off": 0.2})
    assert spread.curves == pytest.approx(0.1) and spread.parameters == 0.2


def parting(overs: dict[int, list[float]]) -> compare.Parting | None:
    """Of ranks' differences at one loss after the other."""
    ranks = {
        rank: [Point(step, "losses", 1.0, 1.0, over) for step, over in enumerate(own)] for rank, own in overs.items()
    }
    return compare.parting(ranks)


def test_nothing_beyond_its_limit_is_no_parting() -> None:
    assert parting({0: [0.9, 1.0], 1: [0.0, 0.5]}) is None


@pytest.mark.parametrize(
    ("overs", "first", "later", "blamed"),
    [
        ({0: [0.01, 5.0], 1: [3.0, 9.0]}, [1], (0,), True),
        ({0: [0.01, 0.0], 1: [0.0, math.inf]}, [1], (), True),
        ({0: [0.2, 5.0], 1: [3.0, 9.0]}, [1], (0,), False),
        ({0: [2.0], 1: [3.0]}, [0, 1], (), False),
        ({0: [2.0]}, [0], (), False),
        ({0: [0.0], 1: [2.0], 2: [2.0]}, [1, 2], (), False),
        ({0: [0.0], 1: [2.0], 2: [2.0], 3: [0.0]}, [1, 2], (), True),
    ],
)
def test_the_first_are_blamed_if_few_and_the_others_clearly_right(
    overs: dict[int, list[float]], first: list[int], later: tuple[int, ...], blamed: bool
) -> None:
    """With a fifth of the limit the others are not clearly right: perhaps all drift."""
    found = parting(overs)
    assert found and (list(found.first), found.later, found.blamed) == (first, later, blamed)


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [([1e-5, 2e-5], True), ([0.5, 0.5], True), ([0.5, 1e-5], False), (["nan", "nan"], True), (["nan", 0.5], False)],
)
def test_ranks_are_in_sync_where_they_end_alike(ends: list[Number], wanted: bool) -> None:
    assert compare.in_sync([{"parameter": "a", "off": end} for end in ends], LEAST) is wanted


def test_alike_values_become_one() -> None:
    values: dict[int, Number] = {0: 2.0, 1: 2.0 + 1e-7, 2: 2.1, 3: "nan", 4: 2.0 - 1e-7}
    assert compare.alike(values, 1e-5) == {0: 2.0, 1: 2.0, 2: 2.1, 3: "nan", 4: 2.0}


def test_places_are_those_of_the_whole_batch() -> None:
    assert list(compare.places([curve(steps=2)])) == [(0, "losses"), (0, "norms"), (1, "losses"), (1, "norms")]
    assert list(compare.places([])) == []
