"""What train.model finds. Most users' models are measured in tests/checks/train/test_model.py and test_hard_models.py,
where many share one start of the ranks."""

from dataclasses import replace
from typing import Any

from tests.faults.row import Fault, elsewhere, in_check


def _given(name: str, story: str, *finds: str, **more: Any) -> Fault:
    model = f"tests.models.mistaken:{name}"
    settings = {"train.model.model": model}
    return in_check(f"model_{name}", story, f"`--model {model}`", *finds, only="train.model", settings=settings, **more)


def _told(model: str, story: str, *finds: str, says: str, world: int = 2, **more: Any) -> Fault:
    """`model`: module and function, in tests/models."""
    file, _, name = model.partition(":")
    details = {"world": world, "culprit": {}, "settings": {"train.model.model": f"tests.models.{model}"}, **more}
    exit_code = 1 if any(find.startswith("fail") for find in finds) else 0
    row = elsewhere(f"model_{name}", story, f"`--model tests.models.{file}:{name}`", *finds, says=says, **details)
    return replace(row, exit_code=exit_code, only=("train.model",), plugins=(), after=None)


def _own(model: str, story: str, *finds: str, says: str, **options: str) -> Fault:
    """`options`: of train.model."""
    row = _told(model, story, *finds, says=says)
    words = " ".join(f"--set train.model.{name}={value}" for name, value in options.items())
    settings = {**row.settings, **{f"train.model.{name}": value for name, value in options.items()}}
    return replace(row, made=f"{row.made[:-1]} {words}`", settings=settings)


def _info(slug: str) -> str:
    return f"info train.model.{slug}"


ALL: tuple[Fault, ...] = (
    _given("raises_on_one", "A user's function raises on one rank.", "fail train.model.user_error",
           says="mistaken.py:28 in raises(): ValueError: hidden size 65"),
    _given("summed", "A user's loss is a sum over the rows.", "fail train.model.sum_for_mean", world=2, culprit={},
           says="2 x the mean of its halves"),
    _given("raises_late_on_one", "A user's loss raises on one rank, when all train together.",
           "error train.model.raised", exit_code=3, noticed_by="0,2",
           says="LookupError: no such row (under ddp/plain)"),
    in_check("model_refused", "A strategy that the user asks for does not accept the model.",
             "`--model tests.models.unlike:scaled --set train.model.strategies=fsdp2/plain`",
             "fail train.model.refused", only="train.model", world=2, culprit={}, says="under fsdp2/plain torch raises",
             settings={"train.model.model": "tests.models.unlike:scaled", "train.model.strategies": "fsdp2/plain"}),
    in_check("model_refused_by_one", "One of the strategies that run unasked does not accept the model.",
             "`--model tests.models.unlike:scaled`", "warn train.model.refused", only="train.model", world=2,
             culprit={}, says="under fsdp2/plain torch raises",
             settings={"train.model.model": "tests.models.unlike:scaled"}),
    in_check("model_untied", "The tensor-parallel plan of a user's model unties its embedding and output layer.",
             "`--model tests.models.plans:tied --set train.model.strategies=tp`", "fail train.model.untied",
             only="train.model", world=2, culprit={"parameter": "embedding.weight"},
             says="under tp/plan embedding.weight and head.weight are no longer one parameter",
             settings={"train.model.model": "tests.models.plans:tied", "train.model.strategies": "tp"}),
    _given("dies", "A rank is killed in the forward of a user's model.", "fail train.model.crashed", noticed_by="0,2",
           says="SIGKILL"),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
_FAIL, _WARN = "fail train.model.", "warn train.model."
_RANK_1: dict[str, Any] = {"world": 3, "culprit": {"rank": 1}}

SHAPES: tuple[Fault, ...] = (
    _told("mistaken:no_triple", "A user's function returns a dict.", f"{_FAIL}wrong_return",
          says="it returns an object of type dict, expected (model, batch, loss_fn) or a model"),
    _told("mistaken:wrapped", "A user's model is wrapped already.", f"{_FAIL}wrong_model",
          says="0 is already wrapped (DataParallel)"),
    _told("mistaken:loader", "A user's function returns a loader for the batch.", f"{_FAIL}wrong_batch",
          says="type DataLoader, expected a tensor"),
    _told("mistaken:loss_detached", "A user's loss is detached.", f"{_FAIL}wrong_loss",
          says="the loss does not depend on the parameters"),
    _told("mistaken:other_shape", "A rank's model has another shape.", f"{_FAIL}different_models", **_RANK_1,
          says="0.weight (5, 4) float32 on rank 1"),
    _told("mistaken:other_batch", "A rank's batch is another one.", f"{_FAIL}different_batches", **_RANK_1,
          says="different numbers or shapes than on 2 of 3 ranks"),
    _told("mistaken:weighs_more_on_one", "A rank's loss under DDP is 0.1% too large.", f"{_FAIL}wrong_step",
          **_RANK_1, noticed_by="0,2", says="the loss on its own part at step 0"),
    _told("astray:redrawn_on_one", "A rank's weights are initialized anew once DDP has them.", f"{_FAIL}wrong_start",
          world=3, culprit={"rank": 1, "parameter": "weight"}, noticed_by="0,2", says="from where it starts alone"),
    _told("astray:frozen_by_wrapper", "A parameter of a user's model is trained no longer once DDP has it.",
          f"{_FAIL}model_changed", culprit={"parameter": "weight"}, noticed_by="0-1",
          says="weight is float32, frozen once wrapped, expected float32, trained as before"),
    _told("astray:buffer_cast_by_wrapper", "A buffer of a user's model is rounded once DDP has it.",
          f"{_FAIL}model_changed", culprit={"parameter": "scale"}, noticed_by="0-1",
          says="scale is a buffer of bfloat16 once wrapped, expected a buffer of float32 as before"),
    _told("astray:clamps_on_one", "A rank alone clamps its weights.", f"{_FAIL}out_of_sync", **_RANK_1,
          noticed_by="0,2", says="the ranks no longer have the same parameters"),
    _told("astray:hook_weighs_one_more", "A user's communication hook weighs a rank's gradient 1% too much.",
          f"{_FAIL}wrong_exchange", **_RANK_1, noticed_by="0,2", says="went into the mean 1.01 times"),
    _told("astray:hook_rounds", "A user's communication hook rounds to bfloat16.", f"{_FAIL}drift", world=3,
          noticed_by="0-2", says="as after rounding to bfloat16"),
    _told("astray:hook_sums", "A user's communication hook adds up, and does not average.", f"{_FAIL}not_averaged",
          noticed_by="0-1", says="2 times as much"),
    _told("astray:hook_overflows", "A user's communication hook overflows float16.", f"{_FAIL}not_finite",
          noticed_by="0-1", says="the gradient norm at step 0 is nan"),
    _told("astray:hook_clips", "A user's communication hook clips each rank's own gradient.", f"{_FAIL}wrong_clip",
          noticed_by="0-1", says="clipped to 0.1 before the ranks exchanged it"),
    _told("astray:never_syncs", "All of a user's micro-batches are under no_sync().", f"{_FAIL}not_exchanged",
          says="which is the norm of its own gradient"),
    _told("astray:same_rows", "A user's loss takes the same rows on all ranks.", f"{_FAIL}wrong_data",
          noticed_by="0-1", says="all ranks have trained on the same data"),
    _told("unlike:unused", "A layer of a user's model is not used.", f"{_WARN}unused", world=3,
          culprit={"parameter": "forgotten.bias"}, says="get no gradient, expected one"),
    _told("unlike:padded", "A user's loss is a mean over tokens, of which rows have unequally many.",
          f"{_WARN}not_a_mean", world=3, says="over its own valid tokens (batch['labels'] != -100)"),
    _told("unlike:batch_norm", "A user's model has BatchNorm.", _info("batch_norm"), _info("dropout"), world=3,
          says="BatchNorm normalizes by the 2 rows of one rank"),
    _told("unlike:other_weights", "Ranks draw other weights.", _info("different_weights"), world=3,
          says="ranks 1-2 started with different weights than rank 0"),
    _told("sound:transformer", "A user's model has dropout.", _info("dropout"), says="dropout was set to 0 in"),
    _told("sound:draws", "A user's model draws random numbers.", _info("random_numbers"), says="here from one seed"),
    _told("sound:one_row", "A user's batch has fewer rows than there are ranks.", _info("few_rows"),
          says="rank 1 have none of the 1 rows"),
    _told("hard:compared", "A user's loss compares rows with each other.", f"{_WARN}not_a_mean", _info("unequal_rows"),
          _info("left_out"), world=3, says="off the mean of its halves' losses"),
    _told("hard:jumping", "What a user's model makes of its inputs depends on their last bits.", f"{_WARN}unsteady",
          world=3, says="alone"),
)  # fmt: skip
FORMS: tuple[Fault, ...] = (
    _told("bare:Mlp", "A user names a class alone.", _info("synthetic"), says="made up after its first layer"),
    replace(_told("causal", "A configuration's model is too big to be trained alone.", _info("smaller"),
                  _info("synthetic"), says="so it has 2 of 24 layers and 1024 of 100000000000 tokens"),
            name="model_smaller", made="`--model tests/models/hub/too_big.json`",
            settings={"train.model.model": "tests/models/hub/too_big.json"}),
    _told("bare:TwoInputs", "Nothing tells what a user's model takes.", f"{_FAIL}wrong_batch",
          says="no batch can be made up for TwoInputs"),
    _told("ragged:averaged_by_rank", "A translator's loss is a mean over a rank's own tokens, of which ranks have "
          "unequally many.", f"{_WARN}not_a_mean", _info("dropout"),
          says="a token of rank 1, which has 18, weighs 1.5 times as much as one of rank 0, which has 27"),
)  # fmt: skip
"""Driven by tests/checks/train/test_forms.py."""
OWN: tuple[Fault, ...] = (
    _own("plans:unplanned", "A tensor-parallel plan names no module of the model.", f"{_FAIL}wrong_plan",
         says="the tp_plan names 'block.*.up'", strategies="ddp/plain,tp", tp_plan="tests.models.plans:MISSPELT"),
    _own("stages:branches", "A pipeline is asked for, and the model cannot be traced.", f"{_WARN}not_run",
         says="pipeline() cannot cut it into stages", strategies="ddp/plain,pp"),
)  # fmt: skip
"""Driven by tests/checks/train/test_own_strategies.py."""
EXCHANGING: tuple[Fault, ...] = (
    _told("exchanging:gathers_only_its_share", "The backward pass of a user's gather keeps only a rank's own share.",
          f"{_FAIL}wrong_gradient", culprit={"parameter": "0.weight"}, noticed_by="0-1",
          says="keeps only its own share of what was gathered"),
    _told("exchanging:tokens_counted_but_not_multiplied", "A loss is divided by all ranks' tokens, and not multiplied "
          "by the number of ranks.", f"{_FAIL}other_loss", noticed_by="0-1", says="is 1/2 of it, so it is divided"),
    _told("exchanging:codebook_by_rank", "A codebook in buffers follows each rank's own rows.",
          f"{_WARN}buffers_by_rank", culprit={"parameter": "codebook.codes"},
          says="changes codebook.codes and codebook.uses by each rank's own rows"),
    _told("exchanging:center_divided_by_own_rows", "A center in a buffer is divided by the rows of one rank.",
          f"{_WARN}other_buffers", _info("forward_writes"), culprit={"parameter": "center"}, says="2 times as far"),
    _told("exchanging:centered_over_ranks", "A teacher's parameters follow within forward.", _info("forward_writes"),
          says="teacher.bias, teacher.weight"),
    _told("exchanging:seeded_alike", "All ranks draw the same masks for different rows.", _info("random_numbers"),
          _info("masks_repeat"), says="here from one seed before each forward"),
    replace(
        _own("exchanging:seeded_by_rank", "Ranks that share layers draw different masks.", f"{_WARN}masks_differ",
             _info("random_numbers"), _info("left_out"), says="expected the same: they share layers",
             strategies="tp", tp_plan="tests.models.exchanging:shared_by_ranks"), name="model_masks_of_a_tp_group",
    ),
    _told("exchanging:contrastive", "5 ranks cannot share 12 rows equally.", _info("unequal_rows"), world=5,
          says="so they train on 10: 2 each"),
)  # fmt: skip
"""Driven by tests/checks/train/test_exchanging.py."""
ELSEWHERE = (*SHAPES, *FORMS, *OWN, *EXCHANGING)
"""Driven by tests/checks/train/test_model.py and test_hard_models.py, and those above."""
