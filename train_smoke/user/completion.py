"""What a user's code may give instead of (model, batch, loss_fn): only a model, whose batch and loss are made up.

Equal gradients are to be proven, so any loss that moves all parameters will do. The made-up one is the outputs' squared
distance from fixed random numbers: the mean of a LayerNorm's squared outputs alone is constant and has no gradient.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from preflight.train_smoke.trainer.batch import leaves
from preflight.train_smoke.trainer.buffers import Buffers
from preflight.train_smoke.user import lightning, transformers
from preflight.train_smoke.user.traits import batch_norms
from preflight.train_smoke.user.validation import ModelMistake, words

ROWS_A_RANK, ROWS_TO_NORMALISE = 2, 16
"""Rows that are made up; more if BatchNorm normalizes by them, which is not smooth for two values."""
MOST_ROWS = 64
"""The most rows, unless there are more ranks: alone, every rank trains on all of them."""
LENGTH = 16
"""Tokens in a made-up row."""
LABELS = ("labels", "targets")
"""Arguments with which a forward also returns its loss: those of transformers and nanoGPT."""
SIZES = ("image_size", "img_size")
EXAMPLE = "example_input_array"
"""An attribute of the model: Lightning's name for the inputs of one forward."""
HOW = (
    f"give the model an attribute {EXAMPLE} (such as torch.randn(8, 3, 32, 32)), or name a function that returns "
    "(model, batch, loss_fn)"
)


@dataclass(frozen=True)
class ModelForm:
    """What the user gave, completed with what was missing."""

    made: Any
    """(model, batch, loss_fn), or whatever the function returned instead."""
    made_up: tuple[str, ...] = ()
    """What preflight added, in words."""


Call = Callable[[nn.Module, Any], Any]
"""Returns the model's outputs for a batch."""


def rows_for(model: nn.Module, ranks: int) -> int:
    each = ROWS_TO_NORMALISE if batch_norms(model) else ROWS_A_RANK
    return max(ranks, min(each * ranks, MOST_ROWS))


def completed(made: Any, ranks: int) -> ModelForm:
    """`made`: the object that was named, or what the named function returned. Raises ModelMistake if no batch can be
    made up, and what the model's forward raises."""
    model, batch = made if _is_pair(made) else (made, None)
    if not isinstance(model, nn.Module):
        return ModelForm(made)
    if lightning.is_one(model):
        return _of_lightning(model, batch, ranks)
    if transformers.is_one(model):
        return _of_transformers(model, batch, ranks)
    return _of_module(model, ranks) if batch is None else ModelForm(made)


def model_of(made: Any) -> Any:
    """The model in what was named or returned; made ready for training if it is Lightning's."""
    model = made[0] if isinstance(made, tuple | list) else made
    return lightning.ready(model) if lightning.is_one(model) else model


def _is_pair(made: Any) -> bool:
    return isinstance(made, tuple | list) and len(made) == 2


# By kind of model


def _of_lightning(model: nn.Module, batch: Any, ranks: int) -> ModelForm:
    """Its training_step is the loss, if a batch for it is known."""
    lightning.ready(model)
    loss = lightning.loss
    if batch is not None:
        return ModelForm((model, batch, loss), ("the loss is its training_step",))
    if not lightning.has_own_step(model):
        return _of_module(model, ranks)
    batch = lightning.first_batch(model, rows_for(model, ranks))
    if batch is not None:
        text = f"the batch is from its train_dataloader, {rows_for(model, ranks)} rows of it at most ({words(batch)})"
        return ModelForm((model, batch, loss), (text, "the loss is its training_step"))
    if getattr(model, EXAMPLE, None) is None:
        raise ModelMistake(
            "wrong_batch",
            f"{type(model).__name__} has neither a train_dataloader nor an {EXAMPLE} that could give a batch for its "
            "training_step: name a function that returns (module, batch)",
        )
    batch = _as_example(getattr(model, EXAMPLE), rows_for(model, ranks))
    made_up = f"the batch is made up after its {EXAMPLE} ({words(batch)})"
    if why := _refusal(lambda: loss(model, batch), model):
        form = _of_module(model, ranks)
        text = f"its training_step was not run, since it takes another batch ({why}): return (module, batch) to run it"
        return ModelForm(form.made, (*form.made_up, text))
    return ModelForm((model, batch, loss), (made_up, "the loss is its training_step"))


def _of_transformers(model: nn.Module, batch: Any, ranks: int) -> ModelForm:
    """The loss is the model's own if the batch has labels."""
    made_up = []
    if batch is None:
        batch = transformers.batch(transformers.base(model), rows_for(model, ranks), LENGTH)
        made_up.append(f"the batch is made up after its configuration ({words(batch)})")
    if not isinstance(batch, Mapping):
        raise ModelMistake("wrong_batch", f"the batch is of type {type(batch).__name__}, expected a dict for forward")
    if loss := transformers.loss_of_logits(transformers.base(model), batch):
        return ModelForm((model, dict(batch), loss), (*made_up, "the loss is its own, of those labels"))
    if any(name in batch for name in LABELS):
        return ModelForm((model, dict(batch), _own_loss), (*made_up, "the loss is its own, of those labels"))
    return ModelForm((model, dict(batch), _distance), (*made_up, DISTANCE))


def _of_module(model: nn.Module, ranks: int) -> ModelForm:
    rows, example = rows_for(model, ranks), getattr(model, EXAMPLE, None)
    batch = _by_signature(model, rows) if example is None else _as_example(example, rows)
    after = "first layer" if example is None else EXAMPLE
    if batch is None:
        raise ModelMistake(
            "wrong_batch",
            f"no batch can be made up for {type(model).__name__}, whose forward takes "
            f"{inspect.signature(model.forward)}: {HOW}",
        )
    if example is None and (why := _refusal(lambda: call(model, batch), model)):
        text = f"{type(model).__name__} takes no batch that was made up after its first layer ({words(batch)}; {why})"
        raise ModelMistake("wrong_batch", f"{text}: {HOW}")
    made_up = f"the batch is made up after its {after} ({words(batch)})"
    if isinstance(batch, dict) and any(name in batch for name in LABELS):
        return ModelForm((model, batch, _own_loss), (made_up, "the loss is its own"))
    return ModelForm((model, batch, _distance), (made_up, DISTANCE))


def _refusal(of: Callable[[], Any], model: nn.Module) -> str:
    """What it raises, in words; "" if it raises nothing. Restores the model's buffers."""
    buffers = Buffers(model)
    try:
        of()
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        return f"{type(error).__name__}: {first}"[:200]
    finally:
        buffers.put_back()
        model.zero_grad(set_to_none=True)
    return ""


# Losses


DISTANCE = "the loss is made up: the mean square distance of its outputs from fixed random numbers"


def call(model: nn.Module, batch: Any) -> Any:
    """Calls the model: a dict is passed by name, a tuple or list in order."""
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def _own_loss(model: nn.Module, batch: Any) -> Any:
    outputs = call(model, batch)
    own = getattr(outputs, "loss", None)
    if own is None:
        numbers = [leaf for leaf in _floats(outputs) if leaf.dim() == 0]
        own = numbers[0] if len(numbers) == 1 else None
    if own is None:
        raise ModelMistake("wrong_loss", "forward is given labels and returns no loss: return (model, batch, loss_fn)")
    return own


def _distance(model: nn.Module, batch: Any) -> Tensor:
    rows = next(leaf for _, leaf in leaves(batch)).shape[0]
    outputs = call(model, batch)
    chosen = [leaf for leaf in _floats(outputs) if leaf.dim() > 0 and leaf.shape[0] == rows]
    if not chosen:
        text = (
            f"forward returns {_called(outputs)}, expected a tensor that depends on the parameters and has the batch's "
        )
        raise ModelMistake("wrong_loss", f"{text}{rows} rows in dimension 0: return (model, batch, loss_fn)")
    return torch.stack([_from_fixed(output) for output in chosen]).mean()


def _from_fixed(output: Tensor) -> Tensor:
    output = torch.view_as_real(output) if output.is_complex() else output
    random = torch.Generator().manual_seed(1)
    fixed = torch.randn(output.shape[1:], generator=random).to(output)
    return (output - fixed).square().mean()


def _floats(outputs: Any) -> list[Tensor]:
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, dict):
        outputs = vars(outputs)
    return [leaf for _, leaf in leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]


def _called(outputs: Any) -> str:
    if isinstance(outputs, Tensor):
        return f"a tensor of shape {tuple(outputs.shape)}"
    return f"an object of type {type(outputs).__name__}"


# Batches


def _as_example(example: Any, rows: int) -> Any:
    """The example's rows, repeated as needed, each changed by a tenth; drawn at random if all its numbers are equal."""
    if isinstance(example, dict):
        return {name: _as_example(item, rows) for name, item in example.items()}
    if isinstance(example, tuple | list):
        return tuple(_as_example(item, rows) for item in example)
    if not isinstance(example, Tensor) or example.dim() == 0 or not example.shape[0]:
        kind = "a tensor without rows" if isinstance(example, Tensor) else f"of type {type(example).__name__}"
        text = f"{EXAMPLE} is {kind}, expected a tensor, or a tuple or dict of tensors, with rows in dimension 0"
        raise ModelMistake("wrong_batch", text)
    repeated = example.detach().cpu()[torch.arange(rows) % example.shape[0]]
    if not repeated.is_floating_point():
        return repeated
    least, most = repeated.min(), repeated.max()
    if least == most:
        return torch.randn_like(repeated)
    return (repeated * (1 + 0.1 * torch.randn_like(repeated))).clamp(least, most)


def _by_signature(model: nn.Module, rows: int) -> Any:
    """A batch from one required argument and a first layer that shows its shape; None if that is not clear."""
    wants = _required(model)
    layers = (module for module in model.modules() if module._parameters and not module._modules)
    layer = next(layers, None)  # besides parameters of the model itself, such as a ViT's class token
    if len(wants) != 1 or layer is None:
        return None
    if isinstance(layer, nn.Embedding):
        ids = _ids(model, layer, rows)
        labels = [name for name in inspect.signature(model.forward).parameters if name in LABELS][:1]
        more = {name: torch.randint(0, layer.num_embeddings, ids.shape) for name in labels}
        return {wants[0]: ids, **more} if more else ids
    if isinstance(layer, nn.Linear):
        return torch.randn(rows, layer.in_features, dtype=layer.weight.dtype)
    size = _size(model)
    if isinstance(layer, nn.Conv2d) and size:
        return torch.randn(rows, layer.in_channels, *size, dtype=layer.weight.dtype)
    return None


def _required(model: nn.Module) -> list[str]:
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [own.name for own in parameters if own.default is own.empty and own.kind not in kinds]


def _ids(model: nn.Module, layer: nn.Embedding, rows: int) -> Tensor:
    """Token ids, no longer than the smallest embedding, which may be that of positions."""
    fewest = min(module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding))
    return torch.randint(0, layer.num_embeddings, (rows, min(LENGTH, fewest)))


def _size(model: nn.Module) -> tuple[int, int] | None:
    """The size of its images, as given by torchvision's and many other ViTs, or by timm's models."""
    owners = [own for own in (model, getattr(model, "patch_embed", None)) if own is not None]
    size = next((getattr(own, name) for own in owners for name in SIZES if hasattr(own, name)), None)
    known = getattr(model, "default_cfg", None)
    if size is None and isinstance(known, Mapping) and len(known.get("input_size") or ()) == 3:
        size = known["input_size"][1:]
    size = (size, size) if isinstance(size, int) else size
    return (int(size[0]), int(size[1])) if isinstance(size, tuple | list) and len(size) == 2 else None
