"""A LightningModule without a Trainer: its training_step as the loss, and its optimizer.

If a strategy wraps the module, training_step runs within the wrapper's forward, as under Lightning's own strategies:
only then the wrapper sees that a step begins.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

from preflight.train_smoke.trainer.batch import each, leaves
from preflight.train_smoke.user.validation import ModelMistake

PACKAGES = ("lightning", "pytorch_lightning")
NO_TRAINER = "not attached to a `Trainer`"
"""What Lightning 2 says if code uses `self.trainer`."""


def is_one(model: Any) -> bool:
    return _base(model) is not None


def _base(model: Any) -> type | None:
    kinds = type(model).__mro__
    return next((kind for kind in kinds if kind.__name__ == "LightningModule" and _package(kind) in PACKAGES), None)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _overrides(model: Any, hook: str) -> bool:
    return getattr(type(model), hook, None) is not getattr(_base(model), hook, None)


def has_own_step(model: nn.Module) -> bool:
    return _overrides(model, "training_step")


def ready(model: Any) -> Any:
    """Prepares the model for its first step: makes its layers, and drops what it logs. Raises ModelMistake."""
    if has_own_step(model) and not model.automatic_optimization:
        text = "its training_step steps the optimizers itself (automatic_optimization = False), which needs a Trainer: "
        raise ModelMistake("wrong_model", f"{text}name a function that returns (model, batch, loss_fn)")
    if _overrides(model, "configure_model"):
        model.configure_model()
    model.log = model.log_dict = _nowhere
    return model


def _nowhere(*_: Any, **__: Any) -> None:
    """Replaces `self.log`, which needs a Trainer."""


def first_batch(model: Any, rows: int) -> Any:
    """A batch of its own train_dataloader, at most `rows` rows; None if it has none."""
    if not _overrides(model, "train_dataloader"):
        return None
    made = model.train_dataloader()
    batch = next(iter(made), None) if hasattr(made, "__iter__") else None
    if batch is None:
        raise ModelMistake("wrong_batch", f"its train_dataloader returns an object of type {type(made).__name__}, "
                           "expected a loader with a batch: name a function that returns (module, batch)")  # fmt: skip
    whole = all(isinstance(leaf, Tensor) and leaf.dim() for _, leaf in leaves(batch))
    return each(lambda tensor: tensor[:rows], batch) if whole else batch


def loss(model: nn.Module, batch: Any) -> Any:
    """What its training_step returns for the batch, called through whatever wraps the model."""
    module = next(inner for inner in model.modules() if is_one(inner))
    if module is model:
        if isinstance(model, FSDPModule):  # so that its step, too, finds the parameters that are in no unit
            register_fsdp_forward_method(model, "training_step")
        return _step(module, batch)

    def forward(batch: Any) -> Any:
        del module.forward  # its own again: training_step calls it
        return _step(module, batch)

    module.forward = forward
    try:
        return model(batch)
    finally:
        vars(module).pop("forward", None)


def _step(module: Any, batch: Any) -> Any:
    asks_trainer = False
    try:
        made = module.training_step(batch, *_more(module))
    except RuntimeError as error:
        asks_trainer = NO_TRAINER in str(error)
        if not asks_trainer:
            raise
    if asks_trainer:  # beside the exception, whose lines would be blamed
        text = "its training_step uses its Trainer, but none runs here"
        raise ModelMistake("wrong_loss", f"{text}: name a function that returns (model, batch, loss_fn)")
    return made.get("loss") if isinstance(made, Mapping) else made


def _more(module: Any) -> tuple[int, ...]:
    """The batch's number, if training_step takes it besides the batch."""
    _, *takes = inspect.signature(type(module).training_step).parameters.values()
    return (0,) if len(takes) > 1 and takes[1].kind is takes[1].POSITIONAL_OR_KEYWORD else ()
