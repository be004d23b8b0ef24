import math

import pytest

from preflight.train_smoke.trainer import compare
from preflight.train_smoke.trainer.compare import (
    LEAST,
    TIMES,
    Apart,
    Curve,
    Furthest,
    GradientsOff,
    Limits,
    Number,
    Spread,
    difference,
)

NONE_OFF: GradientsOff = {"worst": [], "alike": 0, "count": 0}


def furthest(off: Number) -> Furthest:
    return {"parameter": "head.weight", "off": off, "rest": 0.0, "elsewhere": 0.0}


def apart(gradient: Number = 0.0, end: Number = 0.0, state: Number = 0.0) -> Apart:
    whole = {"start": furthest(0.0), "gradient": furthest(gradient), "end": furthest(end), "state": furthest(state)}
    return {"whole": whole, "own": {}, "along": None, "like": None, "gradients": NONE_OFF}


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


def spread(curves: Number = 0.0, gradient: Number = 0.0, end: Number = 0.0, state: Number = 0.0) -> Spread:
    return {"curves": curves, "gradient": gradient, "end": end, "state": state}


@pytest.mark.parametrize(
    ("spreads", "curves"),
    [
        ([], LEAST.curves),
        ([0.0], LEAST.curves),
        ([1e-3], TIMES * 1e-3),
        ([1e-7, 0.9], LEAST.curves),
        ([1e-3, 1e-3, 0.9], TIMES * 1e-3),
        (["inf", "nan", 1e-7], LEAST.curves),
        (["inf"], LEAST.curves),
    ],
)
def test_a_sick_rank_does_not_widen_the_limits(spreads: list[Number], curves: float) -> None:
    assert compare.limits(spread(measured) for measured in spreads).curves == curves


def test_each_kind_has_a_limit_of_its_own() -> None:
    found = compare.limits([spread(gradient=0.1, end=0.2, state=0.3)])
    assert found == Limits(LEAST.curves, TIMES * 0.1, TIMES * 0.2, TIMES * 0.3)


def test_spread_is_of_what_does_not_depend_on_the_part() -> None:
    again = curve()
    again["losses"], again["own_norms"], again["own_prints"] = [9.0] * 3, [9.0] * 3, [9.0] * 3
    again["norms"][2] = 3.3
    found = compare.spread(again, curve(), apart(0.1, 0.2, 0.3))
    assert found["curves"] == pytest.approx(0.1)
    assert (found["gradient"], found["end"], found["state"]) == (0.1, 0.2, 0.3)


def test_of_two_spreads_the_larger_counts_and_no_number_most() -> None:
    assert compare.wider(spread(1.0, 2.0), spread(3.0, "nan")) == spread(3.0, "nan")


@pytest.mark.parametrize(
    ("parameter", "block"),
    [
        ("blocks.1.up.weight", "blocks.1"),
        ("transformer.h.11.attn.weight momentum_buffer", "transformer.h.11"),
        ("head.weight", ""),
        ("", ""),
    ],
)
def test_a_parameter_has_a_block(parameter: str, block: str) -> None:
    assert compare.block_of(parameter) == block


def test_alike_values_become_one() -> None:
    values: dict[int, Number] = {0: 2.0, 1: 2.0 + 1e-7, 2: 2.1, 3: "nan", 4: 2.0 - 1e-7}
    assert compare.alike(values, 1e-5) == {0: 2.0, 1: 2.0, 2: 2.1, 3: "nan", 4: 2.0}


def test_places_are_those_of_the_whole_batch() -> None:
    assert list(compare.places([curve(steps=2)])) == [(0, "losses"), (0, "norms"), (1, "losses"), (1, "norms")]
    assert list(compare.places([])) == []
