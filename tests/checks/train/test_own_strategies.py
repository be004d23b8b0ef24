"""Strategies that are a model's own: tensor parallel by its plan, and stages that torch's pipeline() makes of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from preflight import testing
from preflight.check import Job, Node, Run
from preflight.checks.train import model
from preflight.train_smoke.user import pipeline
from tests.checks.train import on_ranks
from tests.faults import train_model
from tests.faults.row import Fault

HUB_PATH, PLANS = "tests/models/hub", "tests.models.plans"
FOLDERS = (str(Path(__file__).parents[2] / "models" / "hub"),)
OWN = {
    "causal.json strategies=pp": "pp/gpipe",
    "base.json strategies=pp": "pp/gpipe",
    "plans:planned strategies=tp": "tp/plan",
    f"plans:unplanned tp_plan={PLANS}:STYLES strategies=tp": "tp/plan",
    f"plans:unplanned tp_plan={PLANS}:by_model strategies=tp": "tp/plan",
    f"plans:tied tp_plan={PLANS}:applied strategies=tp": "tp/plan",
    "stages:staged strategies=pp": "pp/gpipe",
}
"""Sound, and what of it trains."""
NOT_RUN = {
    "plans:odd_words strategies=ddp/plain,tp": "the model's plan has 'moe_tp_experts' for head, for which torch has no",
    "stages:loss_within strategies=ddp/plain,pp": "its forward computes the loss itself, but stages pass on rows",
    "stages:branches strategies=ddp/plain,pp": "pipeline() cannot cut it into stages (",
    "stages:no_blocks strategies=ddp/plain,pp": "it has 0 repeated blocks between which it could be cut",
}
SEVEN_ROWS = "stages:seven_rows strategies=pp"
if torch.__version__ < pipeline.FEWER_SINCE:
    NOT_RUN[SEVEN_ROWS] = "7 rows cannot be cut into equal micro-batches, one for each of 2 stages"
else:
    OWN[SEVEN_ROWS] = "pp/gpipe"
UNTIED = {
    "plans:tied strategies=ddp/plain,tp": "under tp/plan embedding.weight and head.weight are no longer one parameter",
    "stages:tied strategies=ddp/plain,pp": "under pp/gpipe wte.weight and lm_head.weight are no longer one parameter",
}
WRONG_PLANS = {
    "MISSPELT": "the tp_plan names 'block.*.up', but no module of the model has that name (it has embedding,",
    "ODD": "the tp_plan has 'columnwise' for 'head', expected a dict of module names to ParallelStyle",
    "NO_DICT": "the tp_plan is an object of type list, expected a dict of module names to ParallelStyle",
}
ROWS = train_model.OWN


def _plan(name: str) -> str:
    return f"plans:unplanned tp_plan={PLANS}:{name} strategies=ddp/plain,tp"


def _of(row: Fault) -> str:
    more = {"train.model.tp_plan": "tp_plan", "train.model.strategies": "strategies"}
    words = [f"{more[key]}={value}" for key, value in row.settings.items() if key in more]
    return " ".join([row.settings["train.model.model"].removeprefix("tests.models."), *words])


def _path(name: str) -> str:
    return f"{HUB_PATH}/{name}" if ".json" in name else f"tests.models.{name}"


Measured = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def measured() -> Measured:
    names = [*OWN, *NOT_RUN, *UNTIED, *map(_plan, (*WRONG_PLANS, "never_adds_up")), *map(_of, ROWS)]
    made = on_ranks.measured(2, *map(_path, dict.fromkeys(names)), path=FOLDERS)
    assert not [of_rank["raised"] for ranks in made.values() for of_rank in ranks if of_rank["raised"]]
    return {name: made[_path(name)] for name in names}


def facts(measured: Measured, name: str) -> dict[int, Any]:
    return {of_rank["rank"]: of_rank["facts"] for of_rank in measured[name]}


def found(measured: Measured, name: str) -> list[dict[str, Any]]:
    return testing.judge(model, facts(measured, name))


@pytest.mark.parametrize("name", OWN)
def test_a_sound_model_under_its_own_plan_or_in_stages_trains_as_alone(name: str, measured: Measured) -> None:
    assert [finding["code"] for finding in found(measured, name) if finding["severity"] != "info"] == []
    told = model.summarize(facts(measured, name), _run())
    assert told.startswith(f"{OWN[name]} on 2 ranks: loss ") and "alone" in told and "not run" not in told
    assert float(told.partition("as alone to ")[2].partition(";")[0] or 0) < 2e-5


@pytest.mark.parametrize("name", NOT_RUN)
def test_what_was_asked_for_and_cannot_be_run_says_why(name: str, measured: Measured) -> None:
    (finding,) = found(measured, name)
    assert finding["code"] == "train.model.not_run" and f"was not run: {NOT_RUN[name]}" in finding["message"]


@pytest.mark.parametrize("name", UNTIED)
def test_ties_that_break_are_named_and_the_other_strategies_go_on(name: str, measured: Measured) -> None:
    (finding,) = found(measured, name)
    assert finding["code"] == "train.model.untied" and UNTIED[name] in finding["message"]
    assert finding["where"] == {"parameter": finding["evidence"]["names"][0]}
    assert model.summarize(facts(measured, name), _run()).startswith("ddp/plain on 2 ranks")
    for asked, severity in (({"tp": ["plan"]}, "fail"), (None, "warn")):
        (told,) = model.judge(facts(measured, name), _run({model.STRATEGIES: asked}))
        assert told.severity.name.lower() == severity


@pytest.mark.parametrize("name", WRONG_PLANS)
def test_a_plan_that_fits_no_model_is_one_sentence(name: str, measured: Measured) -> None:
    (finding,) = found(measured, _plan(name))
    assert (finding["severity"], finding["code"]) == ("fail", "train.model.wrong_plan")
    assert finding["message"].startswith(f"{PLANS}:{name}: {WRONG_PLANS[name]}")


def test_a_plan_that_forgets_a_sum_fails(measured: Measured) -> None:
    assert "fail" in {finding["severity"] for finding in found(measured, _plan("never_adds_up"))}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.name))
def test_the_rows_of_the_fault_table(row: Fault, measured: Measured) -> None:
    told = found(measured, _of(row))
    assert row.is_told_by(told), told
    assert row.says in told[0]["message"]


def test_what_cannot_be_run_unasked_stands_in_the_line(measured: Measured) -> None:
    reason = {"tp/plan": "the model has no tp_plan"}
    own: Any = {
        rank: {**of_rank, "not_run": reason} for rank, of_rank in facts(measured, "stages:staged strategies=pp").items()
    }
    assert testing.judge(model, own) == []
    assert model.summarize(own, _run()).endswith("; not run: tp/plan (the model has no tp_plan)")


def _run(options: Any = None) -> Run:
    return Run(Job("env", 2, "gloo", (Node("node-0", 0, (0, 1)),)), (0, 1), {}, options or {})
