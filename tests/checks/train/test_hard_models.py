"""Users' models that are right: none is blamed, and what cannot be compared is said."""

from typing import Any

import pytest

from preflight import testing
from preflight.checks.train import model
from tests.checks.train import on_ranks

NAMES = ("some_fitted", "all_fitted", "counting", "shared", "compared")
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
    unsteady = [one["code"] for one in found if one["code"] == "train.model.unsteady"]
    assert bool(unsteady) == (name == "all_fitted"), "a pass is not measured where the training is roundings"
