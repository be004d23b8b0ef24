"""Users' models that are right: none is blamed, and what cannot be compared is said."""

from typing import Any

import pytest

from preflight import testing
from preflight.checks.train import model
from preflight.train_smoke.trainer.names import STEPS
from tests.checks.train import on_ranks
from tests.faults import train_model
from tests.faults.row import Fault

NAMES = ("some_fitted", "all_fitted", "counting", "shared", "compared", "jumping")
STRATEGIES = "ddp/plain,ddp/no_sync,ddp/join,fsdp/full_shard,fsdp2/plain"


@pytest.fixture(scope="module")
def measured() -> dict[str, list[dict[str, Any]]]:
    return on_ranks.measured(3, *(f"tests.models.hard:{name}" for name in NAMES), strategies=STRATEGIES)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_is_right_is_not_blamed(name: str, measured: dict[str, list[dict[str, Any]]]) -> None:
    ranks = measured[f"tests.models.hard:{name}"]
    assert not [of_rank["raised"] or of_rank["skipped"] for of_rank in ranks if of_rank["raised"] or of_rank["skipped"]]
    found = testing.judge(model, {of_rank["rank"]: of_rank["facts"] for of_rank in ranks})
    assert [finding for finding in found if finding["severity"] == "fail"] == []
    unsteady = [finding for finding in found if finding["code"] == "train.model.unsteady"]
    assert len(unsteady) == (name in ("all_fitted", "jumping")), "said once, where the training is roundings"
    assert all("under DDP" not in finding["message"] and "alone" in finding["message"] for finding in unsteady)


ROWS = [row for row in train_model.SHAPES if "hard" in row.settings["train.model.model"]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.name))
def test_the_rows_of_the_fault_table(row: Fault, measured: dict[str, list[dict[str, Any]]]) -> None:
    ranks = measured[row.settings["train.model.model"]]
    found = testing.judge(model, {of_rank["rank"]: of_rank["facts"] for of_rank in ranks})
    assert row.is_told_by(found) and row.says in found[0]["message"], found


@pytest.mark.more
def test_a_slow_model_is_trained_for_as_many_steps_as_there_is_time_for() -> None:
    name = "tests.models.hard:slow"  # by the estimate 8 steps take 32 s, and 2 of them 8: room for a loaded machine
    ranks = on_ranks.measured(2, name, deadline_s=28)[name]
    assert all(1 < of_rank["facts"]["steps"] < STEPS for of_rank in ranks)
    (finding,) = testing.judge(model, {of_rank["rank"]: of_rank["facts"] for of_rank in ranks})
    assert (finding["severity"], finding["code"]) == ("info", "train.model.left_out")
    assert f"of {STEPS} steps were trained" in finding["message"]


def test_a_model_that_has_no_time_is_a_skip_with_its_reason() -> None:
    name = "tests.models.hard:slow"
    for of_rank in on_ranks.measured(2, name, deadline_s=1)[name]:
        assert "return fewer or smaller rows" in of_rank["skipped"] and not of_rank["facts"]["strategies"]
