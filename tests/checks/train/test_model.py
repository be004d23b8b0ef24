"""Models as users have them, on real ranks. Those that are killed or hang are in tests/faults/train_model.py."""

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from preflight import testing
from preflight.check import Job, Node, Run
from preflight.checks.train import model
from preflight.train_smoke.names import VARIANTS
from tests import models
from tests.checks.train import on_ranks

SOUND = (
    "mlp", "transformer", "convolutions", "one_row", "bfloat16", "probabilities", "bytes_", "float_mask", "weight_norm",
    "draws",
)  # fmt: skip
MISTAKES = {
    "raises": ("user_error", "in raises(): ValueError: hidden size 65 is no multiple of 4 heads"),
    "raises_in_forward": ("user_error", "in Raising.forward(): RuntimeError: mat1 and mat2 shapes"),
    "leaves_in_loss": ("user_error", "it calls sys.exit(3)"),
    "no_triple": ("wrong_return", "it returns an object of type Linear, expected (model, batch, loss_fn)"),
    "only_two": ("wrong_return", "it returns a tuple of 2, expected (model, batch, loss_fn)"),
    "wrapped": ("wrong_model", "0 is wrapped already (DataParallel), expected a plain model"),
    "on_meta": ("wrong_model", "2 (weight, bias) of 2 parameters are on the meta device"),
    "lazy": ("wrong_model", "2 (weight, bias) of 2 parameters are lazy"),
    "no_parameters": ("wrong_model", "it has no parameters"),
    "all_frozen": ("wrong_model", "none of its 2 parameters requires a gradient"),
    "cannot_be_copied": ("wrong_model", "called again the function returns the same model"),
    "loader": ("wrong_batch", "type DataLoader, expected a tensor: the global batch of one step, such as next(iter("),
    "generator": ("wrong_batch", "batch[1] is an object of type count, expected a tensor: the global batch"),
    "numbers": ("wrong_batch", "batch['scale'] is an object of type float, expected a tensor"),
    "unequal_rows": ("wrong_batch", "batch[0] has 8 rows in dimension 0 and batch[1] has 7, expected as many"),
    "no_dimension": ("wrong_batch", "batch[1] is a single number, expected a tensor with its rows in dimension 0"),
    "no_rows": ("wrong_batch", "the batch has no rows"),
    "loss_of_each_row": ("wrong_loss", "a tensor of shape (8,), expected one number: the mean over the rows"),
    "loss_as_number": ("wrong_loss", "a value of type float, expected a tensor"),
    "loss_detached": ("wrong_loss", "the loss does not depend on the parameters"),
    "loss_not_finite": ("wrong_loss", "the loss over 8 rows is -inf before the first step, expected a number"),
    "loss_of_another_model": ("wrong_loss", "none of the model's 2 parameters gets a gradient"),
    "loss_without_slope": ("wrong_loss", "the gradient of all 2 (weight, bias) parameters is 0"),
    "summed": ("sum_for_mean", "is 2 x the mean of its halves' losses"),
    "bce_summed": ("sum_for_mean", "is 2 x the mean of its halves' losses"),
    "out_of_range": ("user_error", "all elements of target should be between 0 and 1"),
}
"""By the function of tests/models/mistaken.py: the code, and words."""
SKIPPED = {
    "huge": "its 1,000,000,000,010 parameters need about",
    "more_than_there_is": "memory has run out: ",
    "sparse": "0.weight has a sparse gradient, of which FSDP knows nothing",
}
ON_ONE = {
    "raises_on_one": ("user_error", "in raises(): ValueError"),
    "other_shape": ("other_model", "than on 2 of 3 ranks: 0.weight (5, 4) float32 on rank 1, 0.weight (4, 4) float32"),
    "other_batch": ("other_batch", "the batch has other numbers or shapes than on 2 of 3 ranks"),
    "weighs_more_on_one": ("wrong_step", "under DDP"),
    "weight_norm_weighs_more_on_one": ("wrong_step", "under DDP"),
    "draws_and_weighs_more_on_one": ("wrong_step", "under DDP"),
}
UNLIKE = {
    "batch_norm": [
        ("info", "batch_norm", "BatchNorm normalises by the 2 or 3 rows of one rank, and in one process by all 8"),
        ("info", "dropout", "dropout was set to 0 in 1 module (3)"),
    ],
    "unused": [("warn", "unused", "no gradient comes to 2 parameters (forgotten.bias, forgotten.weight)")],
    "sometimes_unused": [("warn", "unused", "from the rows of ranks 0-1, but from others' rows")],
    "padded": [("warn", "not_a_mean", "off the mean of its halves' losses, expected the same")],
    "other_weights": [("info", "other_weights", "ranks 1-2 began with other weights than rank 0")],
}

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
        names += _named("unlike", ("scaled",))
    if world == 3:
        names += (*_named("mistaken", ON_ONE), *_named("unlike", UNLIKE))
    made = on_ranks.measured(world, *names)
    assert all(len(ranks) == world for ranks in made.values())
    assert not [one["raised"] for ranks in made.values() for one in ranks if one["raised"]]
    return {name.partition(":")[2]: ranks for name, ranks in made.items()}


def found(world: int, name: str) -> list[dict[str, Any]]:
    return testing.judge(model, facts(world, name))


def facts(world: int, name: str) -> dict[int, Any]:
    return {one["rank"]: one["facts"] for one in measured(world)[name]}


@pytest.mark.parametrize("world", [2, *(pytest.param(world, marks=pytest.mark.more) for world in (1, 3))])
def test_a_sound_model_trains_and_nothing_is_said(world: int) -> None:
    for name in SOUND if world > 1 else SOUND[:1]:
        told = [one for one in found(world, name) if one["code"] not in INFOS.get(name, ())]
        assert told == [], name
        for one in facts(world, name).values():
            assert list(one["strategies"]) == ["ddp", "fsdp2"] and not one["left_out"], name


INFOS = {
    "transformer": ("train.model.dropout",),
    "one_row": ("train.model.few_rows",),
    "weight_norm": ("train.model.dropout",),
    "draws": ("train.model.draws",),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_its_line_and_no_rank_is_blamed(name: str) -> None:
    code, says = MISTAKES[name]
    (one,) = found(2, name)
    assert (one["severity"], one["code"]) == ("fail", f"train.model.{code}")
    assert says in one["message"]
    assert one["message"].startswith(f"{one['where']['file']}:{one['where']['line']}")
    assert one["where"].keys() == {"file", "line"} and one["where"]["file"] == "tests/models/mistaken.py"
    if code == "user_error":
        assert (
            one["evidence"]["stack"].startswith("Traceback")
            and f"line {one['where']['line']}, in " in (one["evidence"]["stack"])
        )


def test_a_model_that_is_too_slow_is_a_skip_within_the_deadline() -> None:
    """Its forward takes 8 s, of 12 in which the ranks train alone; or it does not end at all on one rank."""
    names = _named("mistaken", ("slow", "for_ever_on_one"))
    for name, ranks in on_ranks.measured(2, *names, deadline_s=20.0).items():
        for rank in ranks:
            assert "and after 12 of the check's 20 s training alone had not ended: return fewer rows" in rank["skipped"]
            assert "mistaken.py" in rank["skipped"] and rank["seconds"] < 20
            if name.endswith("slow"):
                assert "in Slow.forward(): forward and backward over all 8 rows took " in rank["skipped"]
        assert testing.judge(model, {rank["rank"]: rank["facts"] for rank in ranks}) == []


@pytest.mark.parametrize("name", SKIPPED)
def test_what_cannot_be_compared_is_a_skip_with_its_reason(name: str) -> None:
    assert all(SKIPPED[name] in one["skipped"] for one in measured(2)[name])
    assert found(2, name) == []


@pytest.mark.parametrize("name", ON_ONE)
def test_what_one_rank_has_unlike_names_it(name: str) -> None:
    code, says = ON_ONE[name]
    (one,) = [one for one in found(3, name) if one["code"] != "train.model.draws"]
    assert (one["severity"], one["code"], one["where"]["rank"]) == ("fail", f"train.model.{code}", 1)
    assert says in one["message"]


@pytest.mark.parametrize("name", UNLIKE)
def test_what_many_ranks_train_otherwise_is_explained_and_compared(name: str) -> None:
    told = found(3, name)
    assert [(one["severity"], one["code"]) for one in told] == [
        (severity, f"train.model.{code}") for severity, code, _ in UNLIKE[name]
    ]
    assert all(says in one["message"] for one, (_, _, says) in zip(told, UNLIKE[name], strict=True))
    for one in facts(3, name).values():
        assert list(one["strategies"]) == ["ddp", "fsdp2"]
        spreads = [its["alone"]["plain"]["spread"] for its in one["strategies"].values()]
        assert all(spread["curves"] < SHARP and spread["end"] < 50 * SHARP for spread in spreads)


def test_a_strategy_that_refuses_a_model_warns_and_the_others_go_on() -> None:
    (one,) = found(2, "scaled")
    assert (one["severity"], one["code"]) == ("warn", "train.model.refused")
    assert "under fsdp2/plain torch raises ValueError" in one["message"] and "scalar" in one["message"]
    for rank in facts(2, "scaled").values():
        assert list(rank["strategies"]["ddp"]["variants"]) == ["plain"] and not rank["strategies"]["fsdp2"]["variants"]


def test_a_strategy_that_was_asked_for_and_refuses_a_model_fails() -> None:
    job = Job("env", 2, "gloo", (Node("node-0", 0, (0, 1)),))
    for asked, severity in (({"fsdp2": ["plain"]}, "fail"), ({"ddp": ["plain"]}, "warn")):
        (one,) = model.judge(facts(2, "scaled"), Run(job, (0, 1), {}, {model.STRATEGIES: asked}))
        assert (one.severity.name.lower(), one.code) == (severity, model.REFUSED)


def test_variants_that_refuse_a_model_alike_are_told_once() -> None:
    made = copy.deepcopy(facts(2, "scaled"))
    for one in made.values():
        told = one["refused"]["fsdp2/plain"]
        one["refused"]["fsdp2/keep"] = {**told, "text": told["text"].replace("fsdp2/plain", "fsdp2/keep")}
    (one,) = testing.judge(model, made)
    assert one["message"].endswith("; so it is under fsdp2/keep")


def test_a_model_that_no_strategy_takes_fails_with_the_reason_of_each() -> None:
    told = found(2, "reaches_through_the_wrapper")
    assert [(one["severity"], one["code"]) for one in told] == [("fail", "train.model.user_error")] * 2
    assert told[0]["message"].endswith("object has no attribute 'encode' (under ddp/plain)")
    assert told[1]["message"].endswith("(under fsdp2/plain)")


def test_where_no_majority_tells_neither_rank_is_named() -> None:
    two = facts(2, "mlp")
    two[1] = {**two[1], "batch": "another"}
    (one,) = testing.judge(model, two)
    assert (one["code"], one["where"]) == ("train.model.other_batch", {})
    assert "one on rank 0, one on rank 1" in one["message"]


def test_many_ranks_are_judged_alike() -> None:
    one = facts(3, "mlp")[0]
    assert testing.judge(model, dict.fromkeys(range(1024), one)) == []


def test_the_line_tells_the_effective_batch() -> None:
    job = Job("env", 3, "gloo", (Node("node-0", 0, (0, 1, 2)),))
    run = Run(job, (0, 1, 2), {}, {model.BASE_BATCH: 14})
    told = model.summarize(facts(3, "mlp"), run)
    assert told.startswith("ddp/plain, fsdp2/plain on 3 ranks: loss ")
    assert told.endswith("2 or 3 a rank x 3 ranks = 7; linear scaling from 14 gives 0.5x the learning rate")
    picture = "\n".join(model.draw(facts(3, "mlp"), run))
    assert "ddp/plain" in picture and "fsdp2/plain" in picture and "alone" in picture


def test_the_plain_variant_comes_first_though_json_has_no_order() -> None:
    made = copy.deepcopy(facts(2, "mlp"))  # which other tests read
    for one in made.values():
        variants = one["strategies"]["ddp"]["variants"]
        one["strategies"]["ddp"]["variants"] = {"bucket_view": variants["plain"], "plain": variants["plain"]}
    told = model.summarize(made, Run(Job("env", 2, "gloo", (Node("node-0", 0, (0, 1)),)), (0, 1), {}))
    assert told.startswith("ddp/plain, ddp/bucket_view, fsdp2/plain on 2 ranks")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", ""])
def test_a_batch_and_threads_are_counted_from_one(text: str) -> None:
    for option in (model.BASE_BATCH, model.THREADS):
        with pytest.raises(ValueError, match="is no number from 1 on"):
            option.type(text)
    assert model.THREADS.type("2") == 2


def test_strategies_are_named_by_commas() -> None:
    parse = model.STRATEGIES.type
    assert parse("fsdp2/offload, ddp/clip,fsdp2/plain") == {"fsdp2": ["offload", "plain"], "ddp": ["clip"]}
    assert parse("all") == {name: list(its) for name, its in VARIANTS.items()}
    for wrong in ("fsdp3", "ddp/offload", "", "ddp/"):
        with pytest.raises(ValueError, match="known are"):
            parse(wrong)
