"""Models as users have them, on real ranks. Those that are killed or hang are in tests/faults/train_model.py."""

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from preflight import testing
from preflight.check import Job, Node, Run
from preflight.checks.train import model
from preflight.core.secrets import Scrubber
from preflight.train_smoke.user.names import VARIANTS
from tests import drawn, models
from tests.checks.train import on_ranks
from tests.faults import train_model
from tests.faults.row import Fault


@pytest.mark.parametrize(("share", "told"), [(0.5, "50.00%"), (-0.001, "0.10%"), (1.0, "100.00%"), (-2.5, "2.5 times")])
def test_a_share_is_told_in_percent_up_to_the_whole(share: float, told: str) -> None:
    assert model.traits._percent(share) == told


SOUND = (
    "mlp", "transformer", "convolutions", "one_row", "bfloat16", "probabilities", "bytes_", "float_mask", "weight_norm",
    "draws", "changes_its_batch", "complex_",
)  # fmt: skip
MISTAKES = {
    "raises": ("user_error", "in raises(): ValueError: hidden size 65 is no multiple of 4 heads"),
    "raises_in_forward": ("user_error", "in Raising.forward(): RuntimeError: mat1 and mat2 shapes"),
    "leaves_in_loss": ("user_error", "it calls sys.exit(3)"),
    "no_triple": ("wrong_return", "it returns an object of type dict, expected (model, batch, loss_fn) or a model"),
    "only_two": ("wrong_return", "it returns a tuple of 2, expected (model, batch, loss_fn) or a model"),
    "wrapped": ("wrong_model", "0 is already wrapped (DataParallel), expected a plain model"),
    "on_meta": ("wrong_model", "2 (weight, bias) of 2 parameters are on the meta device"),
    "lazy": ("wrong_model", "2 (weight, bias) of 2 parameters are lazy"),
    "no_parameters": ("wrong_model", "it has no parameters"),
    "all_frozen": ("wrong_model", "none of its 2 parameters requires a gradient"),
    "cannot_be_copied": ("wrong_model", "called again the function returns the same model"),
    "loader": ("wrong_batch", "type DataLoader, expected a tensor: the global batch of one step, such as next(iter("),
    "generator": ("wrong_batch", "batch[1] is an object of type count, expected a tensor: the global batch"),
    "numbers": ("wrong_batch", "batch['scale'] is an object of type float, expected a tensor"),
    "unequal_rows": ("wrong_batch", "batch[0] has 8 rows in dimension 0 and batch[1] has 7, expected equally many"),
    "no_dimension": ("wrong_batch", "batch[1] is a single number, expected a tensor with its rows in dimension 0"),
    "no_rows": ("wrong_batch", "the batch has no rows"),
    "loss_of_each_row": ("wrong_loss", "a tensor of shape (8,), expected one number: the mean over the rows"),
    "loss_as_number": ("wrong_loss", "a value of type float, expected a tensor"),
    "loss_detached": ("wrong_loss", "the loss does not depend on the parameters"),
    "loss_not_finite": ("wrong_loss", "the loss over 8 rows is -inf before the first step, expected a number"),
    "loss_of_another_model": ("wrong_loss", "none of the model's 2 parameters gets a gradient"),
    "loss_without_slope": ("wrong_loss", "the gradient of all 2 (weight, bias) parameters is 0"),
    "carries_a_graph": ("wrong_loss", "a tensor of one forward is kept for the next; detach it (Trying to backward"),
    "goes_back_itself": ("wrong_loss", "loss_fn calls backward() itself: 2 (weight, bias) parameters have a gradient"),
    "dataclass_batch": ("wrong_batch", "type Rows, expected a tensor, or a tuple, list or dict of tensors: vars(...)"),
    "summed": ("sum_for_mean", "is 2 x the mean of its halves' losses"),
    "bce_summed": ("sum_for_mean", "is 2 x the mean of its halves' losses"),
    "out_of_range": ("user_error", "all elements of target should be between 0 and 1"),
}
"""By the function of tests/models/mistaken.py: the code, and words."""
SKIPPED = {
    "huge": "its 1,000,000,000,010 parameters need about",
    "more_than_there_is": "memory has run out: ",
    "carries": "at the next call: the model or loss_fn keeps something between calls",
    "sparse": "0.weight has a sparse gradient, which FSDP does not support",
}
ON_ONE = {
    "raises_on_one": ("user_error", "in raises(): ValueError"),
    "other_shape": (
        "different_models",
        "than on 2 of 3 ranks: 0.weight (5, 4) float32 on rank 1, 0.weight (4, 4) float32",
    ),
    "other_batch": ("different_batches", "the batch has different numbers or shapes than on 2 of 3 ranks"),
    "weighs_more_on_one": ("wrong_step", "under DDP"),
    "weight_norm_weighs_more_on_one": ("wrong_step", "under DDP"),
    "complex_weighs_more_on_one": ("wrong_step", "under DDP the norm of its own gradient"),
    "draws_and_weighs_more_on_one": ("wrong_step", "under DDP"),
}
UNLIKE = {
    "batch_norm": [
        ("info", "batch_norm", "BatchNorm normalizes by the 2 rows of one rank, and in one process by all 6"),
        ("info", "dropout", "dropout was set to 0 in 1 module (3)"),
    ],
    "unused": [("warn", "unused", "2 parameters (forgotten.bias, forgotten.weight) get no gradient")],
    "sometimes_unused": [("warn", "unused", "from the rows of ranks 0-1, but from others' rows")],
    "padded": [("warn", "not_a_mean", "averaged per rank, over its own valid tokens (batch['labels'] != -100)")],
    "other_weights": [("info", "different_weights", "ranks 1-2 started with different weights than rank 0")],
}


def model_of(row: Fault) -> str:
    return row.settings["train.model.model"]


ROWS = [row for row in train_model.SHAPES if "hard" not in model_of(row)]

REFUSED = {
    "scaled": ("ValueError", "scalar"),
    "two_types": ("AssertionError", "uniform original parameter dtype"),
    "penalized": ("RuntimeError", "storage"),
}
"""By FSDP2: a function of tests/models/unlike.py, and what torch says."""

SHARP = 2e-5
"""Of roundings the comparison knows no more (compare.LEAST): a model that is cut otherwise alone would blunt it."""


def _named(module: str, names: Iterator[str] | Any) -> tuple[str, ...]:
    return tuple(f"{models.__name__}.{module}:{name}" for name in names)


@functools.cache
def measured(world: int) -> dict[str, list[dict[str, Any]]]:
    """By the function's name: what its ranks left. One start of the ranks for all of a world."""
    names = _named("sound", SOUND if world > 1 else SOUND[:1])
    if world == 2:
        names += _named("mistaken", (*MISTAKES, *SKIPPED, "reaches_through_the_wrapper"))
        names += _named("unlike", REFUSED)
    if world == 3:
        names += (*_named("mistaken", ON_ONE), *_named("unlike", UNLIKE))
    names += tuple(model_of(row) for row in ROWS if row.world == world and "astray" in model_of(row))
    made = on_ranks.measured(world, *names)
    assert all(len(ranks) == world for ranks in made.values())
    assert not [of_rank["raised"] for ranks in made.values() for of_rank in ranks if of_rank["raised"]]
    return {name.partition(":")[2]: ranks for name, ranks in made.items()}


def found(world: int, name: str) -> list[dict[str, Any]]:
    """Without what is said of every model of 8 rows on 3 ranks."""
    every = testing.judge(model, facts(world, name))
    return [finding for finding in every if finding["code"] != "train.model.unequal_rows"]


def facts(world: int, name: str) -> dict[int, Any]:
    return {of_rank["rank"]: of_rank["facts"] for of_rank in measured(world)[name]}


@pytest.mark.parametrize("world", [2, *(pytest.param(world, marks=pytest.mark.more) for world in (1, 3))])
def test_a_sound_model_trains_and_nothing_is_said(world: int) -> None:
    for name in SOUND if world > 1 else SOUND[:1]:
        told = [finding for finding in found(world, name) if finding["code"] not in INFOS.get(name, ())]
        assert told == [], name
        for finding in facts(world, name).values():
            assert list(finding["strategies"]) == ["ddp", "fsdp2"] and not finding["left_out"], name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.name))
def test_the_rows_of_the_fault_table(row: Fault) -> None:
    told = found(row.world, model_of(row).partition(":")[2])
    assert row.is_told_by(told), told
    assert row.says in told[0]["message"] and told[0]["noticed_by"] == row.noticed_by, told


INFOS = {
    "transformer": ("train.model.dropout",),
    "one_row": ("train.model.few_rows",),
    "weight_norm": ("train.model.dropout",),
    "draws": ("train.model.random_numbers",),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_its_line_and_no_rank_is_blamed(name: str) -> None:
    code, says = MISTAKES[name]
    (finding,) = found(2, name)
    assert (finding["severity"], finding["code"]) == ("fail", f"train.model.{code}")
    assert says in finding["message"]
    assert finding["message"].startswith(f"{finding['where']['file']}:{finding['where']['line']}")
    assert finding["where"].keys() == {"file", "line"} and finding["where"]["file"] == "tests/models/mistaken.py"
    if code == "user_error":
        assert (
            finding["evidence"]["stack"].startswith("Traceback")
            and f"line {finding['where']['line']}, in " in (finding["evidence"]["stack"])
        )


@pytest.mark.more
def test_a_model_that_is_too_slow_is_a_skip_within_the_deadline() -> None:
    """Its forward takes 8 s, of 12 in which the ranks train alone; or it does not end at all on one rank."""
    names = _named("mistaken", ("slow", "for_ever_on_one"))
    for name, ranks in on_ranks.measured(2, *names, deadline_s=20.0).items():
        for rank in ranks:
            assert "and after 12 of the check's 20 s training alone had not ended: return fewer" in rank["skipped"]
            assert "mistaken.py" in rank["skipped"] and rank["seconds"] < 20
            if name.endswith("slow"):
                assert "in Slow.forward(): forward and backward over all 8 rows took " in rank["skipped"]
        assert testing.judge(model, {rank["rank"]: rank["facts"] for rank in ranks}) == []


@pytest.mark.parametrize("name", SKIPPED)
def test_what_cannot_be_compared_is_a_skip_with_its_reason(name: str) -> None:
    assert all(SKIPPED[name] in of_rank["skipped"] for of_rank in measured(2)[name])
    assert found(2, name) == []


def test_the_filter_of_secrets_leaves_what_ranks_measure() -> None:
    """It is between a rank and `judge`, and here it is not."""
    scrub = Scrubber({})
    for world in (2, 3):
        for name, ranks in measured(world).items():
            assert [scrub.value(rank["facts"]) for rank in ranks] == [rank["facts"] for rank in ranks], name


@pytest.mark.parametrize("name", ON_ONE)
def test_what_one_rank_has_unlike_names_it(name: str) -> None:
    code, says = ON_ONE[name]
    (finding,) = [finding for finding in found(3, name) if finding["code"] != "train.model.random_numbers"]
    assert (finding["severity"], finding["code"], finding["where"]["rank"]) == ("fail", f"train.model.{code}", 1)
    assert says in finding["message"]


@pytest.mark.parametrize("name", UNLIKE)
def test_what_many_ranks_train_otherwise_is_explained_and_compared(name: str) -> None:
    told = found(3, name)
    assert [(finding["severity"], finding["code"]) for finding in told] == [
        (severity, f"train.model.{code}") for severity, code, _ in UNLIKE[name]
    ]
    assert all(says in finding["message"] for finding, (_, _, says) in zip(told, UNLIKE[name], strict=True))
    for finding in facts(3, name).values():
        assert list(finding["strategies"]) == ["ddp", "fsdp2"]
        spreads = [its["alone"]["plain"]["spread"] for its in finding["strategies"].values()]
        assert all(spread["curves"] < SHARP and spread["end"] < 50 * SHARP for spread in spreads)


@pytest.mark.parametrize("name", REFUSED)
def test_a_strategy_that_refuses_a_model_warns_and_the_others_go_on(name: str) -> None:
    (finding,) = found(2, name)
    assert (finding["severity"], finding["code"]) == ("warn", "train.model.refused")
    error, says = REFUSED[name]
    assert f"under fsdp2/plain torch raises {error}" in finding["message"] and says in finding["message"]
    for rank in facts(2, name).values():
        assert list(rank["strategies"]["ddp"]["variants"]) == ["plain"] and not rank["strategies"]["fsdp2"]["variants"]


def test_a_strategy_that_was_asked_for_and_refuses_a_model_fails() -> None:
    job = Job("env", 2, "gloo", (Node("node-0", 0, (0, 1)),))
    for asked, severity in (({"fsdp2": ["plain"]}, "fail"), ({"ddp": ["plain"]}, "warn")):
        (finding,) = model.judge(facts(2, "scaled"), Run(job, (0, 1), {}, {model.STRATEGIES: asked}))
        assert (finding.severity.name.lower(), finding.code) == (severity, model.REFUSED)


def test_variants_that_refuse_a_model_alike_are_told_once() -> None:
    made = copy.deepcopy(facts(2, "scaled"))
    for finding in made.values():
        told = finding["refused"]["fsdp2/plain"]
        finding["refused"]["fsdp2/keep"] = {**told, "text": told["text"].replace("fsdp2/plain", "fsdp2/keep")}
    (finding,) = testing.judge(model, made)
    assert finding["message"].endswith("; the same under fsdp2/keep")


def test_a_model_that_no_strategy_takes_fails_with_the_reason_of_each() -> None:
    told = found(2, "reaches_through_the_wrapper")
    assert [(finding["severity"], finding["code"]) for finding in told] == [("fail", "train.model.user_error")] * 2
    assert told[0]["message"].endswith("object has no attribute 'encode' (under ddp/plain)")
    assert told[1]["message"].endswith("(under fsdp2/plain)")


def test_where_no_majority_tells_neither_rank_is_named() -> None:
    two = facts(2, "mlp")
    two[1] = {**two[1], "batch": "another"}
    finding, *_ = testing.judge(model, two)
    assert (finding["code"], finding["where"]) == ("train.model.different_batches", {})
    assert "one on rank 0, one on rank 1" in finding["message"]


def test_many_ranks_are_judged_alike() -> None:
    of_rank = facts(3, "mlp")[0]
    told = testing.judge(model, dict.fromkeys(range(1024), of_rank))
    assert [finding["code"] for finding in told] == ["train.model.unequal_rows"]


def test_the_line_tells_the_effective_batch() -> None:
    job = Job("env", 3, "gloo", (Node("node-0", 0, (0, 1, 2)),))
    run = Run(job, (0, 1, 2), {}, {model.BASE_BATCH: 12})
    told = model.summarize(facts(3, "mlp"), run)
    assert told.startswith("ddp/plain, fsdp2/plain on 3 ranks: loss ")
    assert told.endswith("2 per rank x 3 ranks = 6; linear scaling from 12 gives 0.5x the learning rate")
    picture = "\n".join(drawn.lines(model, facts(3, "mlp"), run))
    assert "ddp/plain" in picture and "fsdp2/plain" in picture and "alone" in picture


def test_the_plain_variant_comes_first_though_json_has_no_order() -> None:
    made = copy.deepcopy(facts(2, "mlp"))  # which other tests read
    for of_rank in made.values():
        variants = of_rank["strategies"]["ddp"]["variants"]
        of_rank["strategies"]["ddp"]["variants"] = {"bucket_view": variants["plain"], "plain": variants["plain"]}
    told = model.summarize(made, Run(Job("env", 2, "gloo", (Node("node-0", 0, (0, 1)),)), (0, 1), {}))
    assert told.startswith("ddp/plain, ddp/bucket_view, fsdp2/plain on 2 ranks")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", ""])
def test_a_batch_and_threads_are_counted_from_one(text: str) -> None:
    for option in (model.BASE_BATCH, model.THREADS):
        with pytest.raises(ValueError, match="is not a whole number of 1 or more"):
            option.type(text)
    assert model.THREADS.type("2") == 2


def test_strategies_are_named_by_commas() -> None:
    parse = model.STRATEGIES.type
    assert parse("fsdp2/offload, ddp/clip,fsdp2/plain") == {"fsdp2": ["offload", "plain"], "ddp": ["clip"]}
    assert parse("all") == {name: list(its) for name, its in VARIANTS.items()}
    for wrong in ("fsdp3", "ddp/offload", "", "ddp/"):
        with pytest.raises(ValueError, match="known are"):
            parse(wrong)
