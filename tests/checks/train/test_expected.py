"""Trainings alone that nothing can be held against: made-up facts; real ones are in test_hard_models.py."""

import pytest

from preflight.train_smoke.trainer.compare import Quantity
from tests.checks.train import made_trainings as made


@pytest.mark.parametrize("by", [1.02, 1.2])
def test_a_rank_that_is_wrong_alone_in_bfloat16_is_named_and_not_who_gets_its_gradient(by: float) -> None:
    """`train.alone` has not trained in bfloat16. The mean is wrong on all ranks, and on this one as expected."""
    facts = made.sound(4, "autocast")
    for curve in (facts[2]["alone"]["autocast"]["curve"], made.measured(facts, 2, "autocast")):
        for quantity in ("losses", "own_norms", "own_prints", "norms", "prints"):
            made.bend(curve, quantity, 0, 1 + 10 * (by - 1))
    for rank in (0, 1, 3):
        made.bend(made.measured(facts, rank, "autocast"), "norms", 0, by)
    found = made.only(facts)
    assert (found["slug"], found["where"]["rank"]) == ("wrong_step", 2)
    assert "alone" in found["message"] and "of 4 ranks" in found["message"]


@pytest.mark.parametrize("quantity", ["losses", "norms"])
def test_nan_alone_is_no_equality(quantity: Quantity) -> None:
    facts = made.sound(4, "autocast")
    for rank in facts:
        for curve in (facts[rank]["alone"]["autocast"]["curve"], made.measured(facts, rank, "autocast")):
            made.bend(curve, quantity, 3, "nan")
    found = made.only(facts)
    assert (found["slug"], found["where"]) == ("not_finite", {"step": 3}) and "nan on all ranks" in found["message"]


def test_a_rank_that_is_nan_alone_is_named_and_not_who_gets_its_nan() -> None:
    facts = made.sound(2, "autocast")
    for rank in facts:
        made.bend(made.measured(facts, rank, "autocast"), "norms", 2, "nan")
    made.bend(facts[1]["alone"]["autocast"]["curve"], "norms", 2, "nan")
    found = made.only(facts)
    assert (found["slug"], found["where"]["rank"], found["where"]["step"]) == ("not_finite", 1, 2)


def test_what_roundings_move_at_will_is_not_compared_and_not_passed_in_silence() -> None:
    facts = made.sound(4, "plain")
    for rank, of_rank in facts.items():
        of_rank["alone"]["plain"]["spread"]["gradient" if rank else "end"] = "inf"
        made.apart(facts, rank)["whole"]["gradient"] = made.furthest(3.0)
    (found,) = made.judge(facts)
    assert (found["slug"], found["severity"]) == ("unsteady", "warn")


def test_limits_that_let_all_pass_are_told() -> None:
    facts = made.sound(4, "plain")
    for of_rank in facts.values():
        of_rank["alone"]["plain"]["spread"]["gradient"] = 0.5
    (found,) = made.judge(facts)
    assert (found["slug"], found["severity"]) == ("unsteady", "warn") and "50%" in found["message"]


def test_a_variant_that_is_unsteady_hides_no_fault_of_another_one() -> None:
    facts = made.sound(4, "plain", "autocast")
    made.spoil(facts, 0)
    for of_rank in facts.values():
        of_rank["alone"]["autocast"]["spread"]["curves"] = "inf"
    assert {of_rank["slug"] for of_rank in made.judge(facts)} == {"wrong_exchange", "unsteady"}


@pytest.mark.parametrize("quantity", ["losses", "own_norms"])
def test_the_loss_of_rows_that_are_fitted_is_roundings(quantity: Quantity) -> None:
    facts = made.sound(4)
    for curve, size in ((facts[1]["alone"]["plain"]["curve"], 1.3e-14), (made.measured(facts, 1), 1.8e-14)):
        curve[quantity] = [size] * made.STEPS
        curve["own_prints"] = [size / 10] * made.STEPS
    assert made.judge(facts) == []
    made.measured(facts, 1)[quantity][0] = 1e-3
    assert made.only(facts)["where"]["rank"] == 1


def test_in_bfloat16_not_every_wrong_gradient_is_called_clipped() -> None:
    """The limits are 5% of the norm there; ten times that would let any curve pass for a clipped one."""
    facts = made.sound(3, "autocast")
    for rank in facts:
        made.bend(made.measured(facts, rank, "autocast"), "norms", 0, 1.2)
        made.bend(made.measured(facts, rank, "autocast"), "prints", 0, 0.25 / 0.8)
    assert made.only(facts)["slug"] == "wrong_exchange"
