import math

import pytest

from preflight.checks.train.shared.parity import divergence
from preflight.checks.train.shared.parity.divergence import CurvePlace, Divergence, TrainingPair
from preflight.train_smoke.trainer.compare import LEAST
from tests.checks.train.made_trainings import apart, bend, furthest, measured, sound


def pairs(overs: dict[int, list[float]]) -> dict[int, TrainingPair]:
    """Ranks whose losses are so many limits off, step by step."""
    facts = sound(len(overs))
    made = {}
    for rank, own in overs.items():
        expected = facts[rank]["alone"]["plain"]["curve"]
        for step, over in enumerate(own):
            loss = expected["losses"][step]
            assert isinstance(loss, float)
            off = loss * (1 + over * LEAST.curves) if math.isfinite(over) else "inf"
            measured(facts, rank)["losses"][step] = off
        made[rank] = TrainingPair(measured(facts, rank), expected, apart(facts, rank))
    return made


def part(overs: dict[int, list[float]]) -> Divergence | None:
    return divergence.of(pairs(overs), LEAST)


def test_values_come_in_the_order_in_which_a_training_makes_them() -> None:
    step = ["losses", "own_norms", "own_prints", "norms", "prints"]
    wanted = ["start", *step, "gradient", "clipped", *step, "clipped", "end", "state"]
    assert [place.quantity for place in divergence.order(2)] == wanted
    assert [place.step for place in divergence.order(2)] == [0] * 8 + [1] * 8


def test_a_print_is_measured_by_the_norm() -> None:
    """It may be near 0, where a relative difference means nothing."""
    (pair,) = pairs({0: []}).values()
    pair.expected["prints"][1], pair.measured["prints"][1] = 1e-9, 3e-9
    assert divergence.of({0: pair}, LEAST) is None
    pair.measured["prints"][1] = 1e-3
    found = divergence.of({0: pair}, LEAST)
    assert found and found.place == CurvePlace(1, "prints")


@pytest.mark.parametrize("moment", ["start", "gradient", "end", "state"])
def test_every_moment_is_compared(moment: str) -> None:
    (pair,) = pairs({0: []}).values()
    pair.apart["whole"][moment] = furthest(0.01)
    found = divergence.of({0: pair}, LEAST)
    assert found and found.place.quantity == moment


def test_weights_at_the_start_must_be_equal() -> None:
    (pair,) = pairs({0: []}).values()
    pair.apart["whole"]["start"] = furthest(1e-12)
    found = divergence.of({0: pair}, LEAST)
    assert found and found.first[0].over == math.inf


def test_nothing_beyond_its_limit_is_no_parting() -> None:
    assert part({0: [0.9, 0.99], 1: [0.0, 0.5]}) is None


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
    found = part(overs)
    assert found and (list(found.first), found.later, found.blamed) == (first, later, blamed)


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [([1e-5, 2e-5], True), ([0.5, 0.5], True), ([0.5, 1e-5], False), (["nan", "nan"], True), (["nan", 0.5], False)],
)
def test_ranks_are_in_sync_where_they_end_alike(ends: list[float | str], wanted: bool) -> None:
    made = pairs({rank: [] for rank in range(len(ends))})
    for rank, end in enumerate(ends):
        made[rank].apart["whole"]["end"] = furthest(end)
    assert divergence.in_sync(made.values(), LEAST) is wanted


@pytest.mark.parametrize(
    ("offs", "odd", "most"),
    [
        ([1e-7, 0.02], [1], 1),
        ([1e-7, 0.02, 1e-7], [1], 1),
        ([0.5, 0.02, 0.5], [], None),
        ([1e-5, 0.02, 0.5], [], 2),
        ([1e-7, 1e-7], [], None),
        ([0.02], [], None),
    ],
)
def test_whose_piece_is_off(offs: list[float], odd: list[int], most: int | None) -> None:
    made = pairs({rank: [] for rank in range(len(offs))})
    for rank, off in enumerate(offs):
        made[rank].apart["own"]["gradient"] = furthest(off)
    assert divergence.odd_pieces(made, "gradient", LEAST) == odd
    assert divergence.furthest_piece(made, "gradient", LEAST) == most
    made[0].apart["own"].clear()  # it keeps all
    assert divergence.odd_pieces(made, "gradient", LEAST) == []


def test_the_worst_of_a_step_is_over_all_ranks_and_values() -> None:
    made = pairs({0: [], 1: [0.0, 3.0]})
    bend(made[0].measured, "norms", 1, 1 + 5 * LEAST.curves)
    assert divergence.worst(made.values(), 1, LEAST) == pytest.approx(5, rel=1e-3)
    assert divergence.worst(made.values(), 0, LEAST) == 0
