"""Users' models that are right: none is blamed, and what cannot be compared is said."""

from typing import Any

import pytest

from preflight import testing
from preflight.checks.train import model
from preflight.train_smoke.names import STEPS
from tests.checks.train import on_ranks

NAMES = ("some_fitted", "all_fitted", "counting", "shared", "compared", "jumping")
STRATEGIES = "ddp/plain,ddp/no_sync,ddp/join,fsdp/full_shard,fsdp2/plain"


@pytest.fixture(scope="module")
def measured() -> dict[str, list[dict[str, Any]]]:
    return on_ranks.measured(3, *(f"tests.models.hard:{name}" for name in NAMES), strategies=STRATEGIES)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_is_right_is_not_blamed(name: str, measured: dict[str, list[dict[str, Any]]]) -> None:
    ranks = measured[f"tests.models.hard:{name}"]
    assert not [one["raised"] or one["skipped"] for one in ranks if one["raised"] or one["skipped"]]
    found = testing.judge(model, {one["rank"]: one["facts"] for one in ranks})
    assert [one for one in found if one["severity"] == "fail"] == []
    unsteady = [one for one in found if one["code"] == "train.model.unsteady"]
    assert len(unsteady) == (name in ("all_fitted", "jumping")), "said once, where the training is roundings"
    assert all("under DDP" not in one["message"] and "alone" in one["message"] for one in unsteady)


@pytest.mark.more
def test_a_slow_model_is_trained_for_as_many_steps_as_there_is_time_for() -> None:
    name = "tests.models.hard:slow"  # by the estimate 8 steps take 32 s, and 2 of them 8: room for a loaded machine
    ranks = on_ranks.measured(2, name, deadline_s=28)[name]
    assert all(1 < one["facts"]["steps"] < STEPS for one in ranks)
    (one,) = testing.judge(model, {one["rank"]: one["facts"] for one in ranks})
    assert (one["severity"], one["code"]) == ("info", "train.model.left_out")
    assert f"of {STEPS} steps were trained" in one["message"]


def test_a_model_that_has_no_time_is_a_skip_with_its_reason() -> None:
    name = "tests.models.hard:slow"
    for one in on_ranks.measured(2, name, deadline_s=1)[name]:
        assert "return fewer rows" in one["skipped"] and not one["facts"]["strategies"]
