"""What `--model` takes beside a function that returns (model, batch, loss_fn), on two ranks, started once for all."""

import sys
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.checks.train import model
from tests.checks.train import on_ranks
from tests.faults import train_model
from tests.faults.row import Fault

HUB = str(Path(__file__).parents[2] / "models" / "hub")
FOLDERS = (str(Path(sys.prefix, "wrappers")), HUB)
HUB_PATH = "tests/models/hub"
BARE = {
    "bare:Mlp": "its first layer (batch (4, 8) float32); the loss is made up: the mean square distance of its outputs",
    "bare:gpt": "its first layer (batch['idx'] (4, 12) int64, batch['targets'] (4, 12) int64); the loss is its own",
    "bare:Example": "its example_input_array (batch[0] (4, 4) float32, batch[1] (4, 3) float32); the loss is made up",
    "adapters:adapted": "its configuration (batch['input_ids'] (4, 16) int64, batch['labels'] (4, 16) int64); the loss",
    "bare:instance": "its example_input_array (batch[0] (4, 4) float32",
    "bare:Images": "its first layer (batch (4, 3, 8, 8) float32)",
    "lightning_modules:Classifier": "its train_dataloader, 4 rows of it at most (batch[0] (4, 8) float32",
    "lightning_modules:Autoencoder": "its example_input_array (batch (4, 8) float32); the loss is its training_",
    "lightning_modules:OnlyInputs": "its training_step was not run, since it takes another batch (ValueError: too many",
    "lightning_modules:Direct": "its train_dataloader",
    "lightning_modules:given": "the loss is its training_step",
}
"""By the name: what is said to be made up."""
MISTAKEN = {
    "bare:Wide": (
        "user_error",
        "Wide(width) is called without arguments: missing a required argument: 'width'; ",
    ),
    "bare:number": ("user_error", "number is of type int, expected a function or a class"),
    "bare:TwoInputs": (
        "wrong_batch",
        "no batch can be made up for TwoInputs, whose forward takes (input1: tor",
    ),
    "bare:WrongGuess": (
        "wrong_batch",
        "takes no batch that was made up after its first layer (batch (4, 8) f",
    ),
    "bare:Summary": ("wrong_loss", "forward returns a tensor of shape (), expected a tensor"),
    "bare:OddExample": ("wrong_batch", "example_input_array is of type str, expected a tensor"),
    "lightning_modules:Manual": ("wrong_model", "its training_step steps the optimizers itself"),
    "lightning_modules:NoBatch": ("wrong_batch", "NoBatch has neither a train_dataloader nor an example_input_array"),
    "lightning_modules:AsksTrainer": ("wrong_loss", "its training_step uses its Trainer, but none runs here"),
    "lightning_modules:NoLoader": (
        "wrong_batch",
        "its train_dataloader returns an object of type int, expected",
    ),
    "lightning_modules:summed": ("sum_for_mean", "is 2 x the mean of its halves' losses"),
}
CONFIGURED = {
    "causal": "its configuration (batch['input_ids'] (4, 16) int64, batch['labels'] (4, 16) int64); the loss is its",
    "base": "its configuration (batch['input_ids'] (4, 16) int64); the loss is made up",
    "unnamed": "batch['labels'] (4, 16) int64",
    "too_big": "batch['labels'] (4, 16) int64",
}
"""Files in tests/models/hub, by a stand-in for transformers."""
MISCONFIGURED = {
    "none": "it cannot be read (No such file or directory; the current folder is ",
    "torn": "it is not JSON (Expecting value: line 2",
    "no_type": 'it has no "model_type", expected a config.json of transformers',
    "unknown": "it has the model_type 'tinny', which transformers 5.24.0 does not know: name a function",
    "remote": "it names its own code (modeling_mine.MineForCausalLM), which is not run here: name a function",
    "odd": "transformers does not accept it (ValueError: hidden_size 15 is no multiple of 2)",
}
ROWS = train_model.FORMS


def _path(name: str) -> str:
    return f"{HUB_PATH}/{name}" if ".json" in name else f"tests.models.{name}"


def _of(row: Fault) -> str:
    return str(row.settings["train.model.model"]).rpartition("/")[2].removeprefix("tests.models.")


@pytest.fixture(scope="module")
def measured() -> dict[str, list[dict[str, Any]]]:
    names = [*BARE, *MISTAKEN, *map(_of, ROWS)]
    names += ["ragged:averaged_by_token", "ragged:equally_long", "ragged:fresh"]
    names += [f"{name}.json" for name in (*CONFIGURED, *MISCONFIGURED, "of_sound", "far_too_big")]
    if not Path(FOLDERS[0], "pytorch_lightning").is_dir():
        names = [name for name in names if not name.startswith("lightning")]
    made = on_ranks.measured(2, *map(_path, dict.fromkeys(names)), path=FOLDERS)
    assert not [of_rank["raised"] for ranks in made.values() for of_rank in ranks if of_rank["raised"]]
    return {name: made[_path(name)] for name in names}


Measured = dict[str, list[dict[str, Any]]]


def facts(measured: Measured, name: str) -> dict[int, Any]:
    if name not in measured:
        pytest.skip(f"pytorch_lightning is not in {FOLDERS[0]}: make .venv/.dev puts it there")
    return {of_rank["rank"]: of_rank["facts"] for of_rank in measured[name]}


def found(measured: Measured, name: str) -> list[dict[str, Any]]:
    return testing.judge(model, facts(measured, name))


@pytest.mark.parametrize("name", BARE)
def test_a_model_alone_is_trained_and_what_was_made_up_is_said(name: str, measured: Measured) -> None:
    (finding,) = found(measured, name)
    assert (finding["severity"], finding["code"]) == ("info", "train.model.synthetic")
    assert BARE[name] in finding["message"]
    for own in facts(measured, name).values():
        assert [list(its["variants"]) for its in own["strategies"].values()] == [["plain"], ["plain"]]
        losses = own["strategies"]["ddp"]["variants"]["plain"]["curve"]["losses"]
        assert losses[-1] < losses[0] * 0.99, "it does learn"


@pytest.mark.parametrize("name", MISTAKEN)
def test_what_no_model_can_be_made_of_is_one_sentence_with_its_place(name: str, measured: Measured) -> None:
    code, says = MISTAKEN[name]
    (finding,) = found(measured, name)
    assert (finding["severity"], finding["code"]) == ("fail", f"train.model.{code}")
    file = f"tests/models/{name.partition(':')[0]}.py"
    assert says in finding["message"] and finding["message"].startswith(file) and finding["where"]["file"] == file


@pytest.mark.parametrize("name", CONFIGURED)
def test_a_model_of_a_configuration_is_trained(name: str, measured: Measured) -> None:
    *others, finding = found(measured, f"{name}.json")
    assert (finding["severity"], finding["code"]) == ("info", "train.model.synthetic") and CONFIGURED[name] in finding[
        "message"
    ]
    assert [other["code"] for other in others] == (["train.model.smaller"] if name == "too_big" else [])


@pytest.mark.parametrize("name", MISCONFIGURED)
def test_a_configuration_of_no_model_is_one_sentence(name: str, measured: Measured) -> None:
    (finding,) = found(measured, f"{name}.json")
    assert (finding["severity"], finding["code"]) == ("fail", "train.model.user_error")
    assert finding["message"].startswith(f"{HUB_PATH}/{name}.json: {MISCONFIGURED[name]}")
    assert finding["where"] == {"file": f"{HUB_PATH}/{name}.json"}


def test_a_configuration_without_a_batch_says_what_to_give(measured: Measured) -> None:
    (finding,) = found(measured, "of_sound.json")
    assert finding["code"] == "train.model.wrong_batch"
    says = "no batch is made up for TinySound, whose input is input_values: name a function that returns (model, batch)"
    assert says in finding["message"]


def test_a_configuration_that_is_too_big_even_when_made_smaller_is_a_skip(measured: Measured) -> None:
    for of_rank in measured["far_too_big.json"]:
        assert "the model is too big to be trained alone on each rank: its 2,000,0" in of_rank["skipped"]
        assert of_rank["skipped"].endswith("give a configuration of narrower layers, or start fewer ranks per node")
    assert found(measured, "far_too_big.json") == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.name))
def test_the_rows_of_the_fault_table(row: Fault, measured: Measured) -> None:
    told = testing.judge(model, facts(measured, _of(row)))
    assert row.is_told_by(told), told
    assert row.says in told[0]["message"]


def test_a_fresh_models_gradient_tells_that_its_loss_is_averaged_per_rank(measured: Measured) -> None:
    weighed, dropout = found(measured, "ragged:fresh")
    assert [weighed["code"], dropout["code"]] == ["train.model.not_a_mean", "train.model.dropout"]
    assert "a token of rank 1, which has 18, weighs 1.5 times as much as one of rank 0" in weighed["message"]


def test_a_loss_that_is_averaged_over_all_ranks_tokens_is_not_blamed(measured: Measured) -> None:
    for name in ("ragged:averaged_by_token", "ragged:equally_long"):
        assert [finding["code"] for finding in found(measured, name)] == ["train.model.dropout"], name
