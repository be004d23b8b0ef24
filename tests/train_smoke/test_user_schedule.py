"""How many steps and which variants of a user's model fit into the time."""

import pytest

from preflight.train_smoke.trainer.names import STEPS
from preflight.train_smoke.user.schedule import SAFETY, schedule

NAMES = {"ddp": ["plain", "clip"], "fsdp2": ["plain", "mixed"]}
RANKS = 2


def seconds(trainings: float, steps: int) -> float:
    """That so many trainings over all rows take by the estimate, where a step takes a second."""
    return SAFETY * trainings * steps


def test_all_of_it_runs_where_there_is_time() -> None:
    made = schedule(NAMES, {}, 1.0, seconds(3 * 3 + 4 / RANKS, STEPS), RANKS, exactly=False)
    assert (made.steps, made.left_out, made.skipped) == (STEPS, {}, "")


@pytest.mark.parametrize("exactly", [False, True])
def test_steps_are_fewer_first(exactly: bool) -> None:
    alone = 2 if exactly else 3
    made = schedule(NAMES, {}, 1.0, seconds(3 * alone + 4 / RANKS, STEPS) - 1, RANKS, exactly=exactly)
    assert (made.steps, made.left_out, made.skipped) == (STEPS // 2, {}, "")


def test_then_variants_and_the_first_of_each_strategy_stay() -> None:
    made = schedule(NAMES, {}, 1.0, seconds(3 + 2 / RANKS, 2), RANKS, exactly=False)
    assert made.steps == 2 and made.left_out.keys() == {"ddp/clip", "fsdp2/mixed"} and not made.skipped
    assert made.left_out["ddp/clip"] == "a step on all rows takes 1 s on the slowest rank, 20 s are left"


def test_variants_that_do_not_run_anyway_take_no_time() -> None:
    made = schedule(NAMES, {"fsdp2/mixed": "unfit"}, 1.0, seconds(2 * 3 + 3 / RANKS, STEPS), RANKS, exactly=False)
    assert (made.steps, made.left_out, made.skipped) == (STEPS, {}, "")
    nothing = schedule({"ddp": ["clip"]}, {"ddp/clip": "unfit"}, 1.0, 0.0, RANKS, exactly=False)
    assert (nothing.left_out, nothing.skipped) == ({}, "")


def test_where_none_fits_it_says_how_much_is_needed() -> None:
    made = schedule(NAMES, {}, 1.0, seconds(3 + 1 / RANKS, 2) - 1, RANKS, exactly=False)
    assert made.left_out.keys() == {"ddp/plain", "ddp/clip", "fsdp2/plain", "fsdp2/mixed"}
    assert "the least comparison takes about 18 s: return fewer rows" in made.skipped
