"""Checks what a user's function returned: is it a model, a global batch and a loss that can be trained?"""

import copy
import dataclasses
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from preflight.train_smoke.trainer.batch import each, leaves
from preflight.train_smoke.trainer.memory import is_out_of_memory

WRAPPERS = (DistributedDataParallel, DataParallel, FullyShardedDataParallel, FSDPModule)
SHARED = "what all rows share belongs in loss_fn's closure, or in a buffer of the model"
EXPECTED = "expected (model, batch, loss_fn) or a model"


class MistakeFacts(TypedDict):
    kind: str
    text: str
    file: str | None
    line: int | None
    evidence: dict[str, Any]


class ModelMistake(Exception):  # noqa: N818 -- the user's, told as a finding
    """Why a model cannot be trained. Its kind is the name of a code of `train.model`."""

    def __init__(self, kind: str, sentence: str, **evidence: Any) -> None:
        super().__init__(sentence)
        self.kind, self.text, self.evidence = kind, sentence, evidence

    def to_json(self) -> MistakeFacts:
        return MistakeFacts(kind=self.kind, text=self.text, file=None, line=None, evidence=self.evidence)


class TooBig(MemoryError):  # noqa: N818 -- a reason to skip, not an error
    """There is less memory than the trainings need."""


@dataclass(frozen=True)
class Given:
    """A model, its global batch and its loss, on the CPU."""

    model: nn.Module
    """Never trained itself: each training gets a copy."""
    batch: Any
    loss: Callable[[nn.Module, Any], Tensor]
    rows: int
    again: Callable[[], nn.Module]
    """Calls the function again, for a model that cannot be copied."""

    def copy(self, device: torch.device) -> nn.Module:
        """A copy on a device, with the same weights, buffers and requires_grad. Raises ModelMistake."""
        try:
            return copy.deepcopy(self.model).to(device)
        except (TypeError, RuntimeError) as error:  # weight_norm keeps a tensor that deepcopy refuses
            if is_out_of_memory(error):
                raise
            return self._built_again(error).to(device)

    @torch.no_grad()
    def load(self, other: "Given") -> None:
        """Gives the model the weights, buffers and requires_grad of another one of the same layout."""
        for own, its in zip(values(self.model), values(other.model), strict=True):
            own.copy_(its)
            own.requires_grad_(its.requires_grad)

    def with_equal_shares(self, ranks: int) -> "Given":
        """Without the last rows, if ranks would have unequally many: a loss that gathers rows needs as many of each."""
        rows = self.rows - self.rows % ranks if self.rows > ranks else self.rows
        if rows == self.rows:
            return self
        return dataclasses.replace(self, batch=each(lambda tensor: tensor[:rows], self.batch), rows=rows)

    @torch.no_grad()
    def _built_again(self, error: Exception) -> nn.Module:
        """Another model from the function, with the same weights and buffers. Raises ModelMistake."""
        made = self.again()
        for new, own in itertools.zip_longest(values(made), values(self.model)):
            if new is None or own is None or new is own or new.shape != own.shape:
                what = "the same model" if new is own else "a model of a different shape"
                text = f"the model cannot be copied ({type(error).__name__}: {error}), and called again the function "
                raise ModelMistake("wrong_model", f"{text}returns {what}, but each strategy trains a copy") from error
            new.copy_(own)
            if new.requires_grad != own.requires_grad:
                new.requires_grad_(own.requires_grad)
        return made


def given(made: Any, again: Callable[[], nn.Module]) -> Given:
    """`again` makes the model once more. Raises ModelMistake."""
    if not isinstance(made, tuple | list) or len(made) != 3:
        raise ModelMistake("wrong_return", f"it returns {_called(made)}, {EXPECTED}")
    model, data, loss = made
    if not isinstance(model, nn.Module):
        raise ModelMistake("wrong_return", f"the first that it returns is {_called(model)}, {EXPECTED}")
    if not callable(loss):
        raise ModelMistake("wrong_return", f"the third that it returns is {_called(loss)}, {EXPECTED}")
    _can_be_trained(model)
    rows = _rows(data)
    return Given(model.cpu(), each(lambda tensor: tensor.detach().cpu(), data), _seeded(loss), rows, again)


SEED = 1


def seed() -> None:
    """Seeds the random generators equally on all ranks, so that they draw the same numbers next."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    if "numpy" in sys.modules:  # torch imports it if it is installed
        sys.modules["numpy"].random.seed(SEED)


def seed_of_user() -> int:
    """The seed that the function has set since `seed()`, or 0."""
    now = torch.initial_seed()
    return 0 if now == SEED else now


def _seeded(loss: Callable[[nn.Module, Any], Tensor]) -> Callable[[nn.Module, Any], Tensor]:
    """A loss that draws the same numbers for the same rows, alone and under a strategy. Its batch is a copy: what it
    changes in place, such as the range of images, is restored at the next step."""

    def seeded(model: nn.Module, batch: Any) -> Tensor:
        seed()
        return loss(model, each(lambda tensor: tensor.detach().clone(), batch))

    return seeded


def _called(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _can_be_trained(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, WRAPPERS):
            raise ModelMistake(
                "wrong_model",
                f"{name or 'the model'} is already wrapped ({type(module).__name__}), expected a plain model",
            )
    parameters = dict(model.named_parameters())
    unready = [name for name, parameter in parameters.items() if is_lazy(parameter) or parameter.is_meta]
    if unready:
        why = (
            "lazy, and get their shape in a first forward" if is_lazy(parameters[unready[0]]) else "on the meta device"
        )
        text = f"{some(unready)} of {len(parameters)} parameters are {why}: there are no weights to train"
        raise ModelMistake("wrong_model", text, parameters=unready[:20])
    if not any(parameter.requires_grad for parameter in parameters.values()):
        why = f"none of its {len(parameters)} parameters requires a gradient" if parameters else "it has no parameters"
        raise ModelMistake("wrong_model", f"there is nothing to train in the model: {why}")


def some(names: list[str]) -> str:
    """ "2 (a, b)", "9 (a, b, c, ...)"."""
    return f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


# The batch


def _rows(data: Any) -> int:
    """The number of rows of the global batch. Raises ModelMistake."""
    rows: dict[str, int] = {}
    for path, tensor in leaves(data):
        if not isinstance(tensor, Tensor):
            raise ModelMistake("wrong_batch", f"{path} is {_called(tensor)}, expected a tensor{_hint(tensor)}")
        if tensor.dim() == 0:
            raise ModelMistake(
                "wrong_batch", f"{path} is a single number, expected a tensor with its rows in dimension 0: {SHARED}"
            )
        rows[path] = tensor.shape[0]
    if not rows:
        raise ModelMistake("wrong_batch", f"the batch is {_called(data)} without a tensor in it")
    first, *_ = rows
    for path, count in rows.items():
        if count != rows[first]:
            text = f"{first} has {rows[first]} rows in dimension 0 and {path} has {count}, expected equally many"
            raise ModelMistake("wrong_batch", f"{text}: {SHARED}")
    if not rows[first]:
        raise ModelMistake("wrong_batch", "the batch has no rows, expected some for each rank")
    return rows[first]


def _hint(value: object) -> str:
    if type(value).__module__.partition(".")[0] == "numpy":
        return ": torch.from_numpy makes one"
    if dataclasses.is_dataclass(value):
        return ", or a tuple, list or dict of tensors: vars(...) makes a dict of this"
    if hasattr(value, "keys") and hasattr(value, "__getitem__"):
        return ", or a tuple, list or dict of tensors: dict(...) makes one of this"
    if hasattr(value, "__next__") or (hasattr(value, "__iter__") and not isinstance(value, str)):
        return ": the global batch of one step, such as next(iter(loader))"
    return ", or a tuple, list or dict of tensors"


def words(data: Any) -> str:
    """ "batch['x'] (8, 16) float32, batch['y'] (8,) int64"."""
    return ", ".join(
        f"{path} {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for path, tensor in leaves(data)
    )


# What ranks compare


def layout(model: nn.Module) -> list[str]:
    """One line per parameter and buffer: name, shape, type, and whether it is frozen."""
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return [
        f"{name} {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}{' frozen' if name in frozen else ''}"
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]


def values(model: nn.Module) -> Iterator[Tensor]:
    """Yields all parameters and buffers, each once."""
    yield from model.parameters()
    yield from model.buffers()
