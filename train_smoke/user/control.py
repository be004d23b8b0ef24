"""One forward pass of all ranks together, without a strategy: does the user's code talk to the other ranks, and what of
the model does it change?

Buffers are restored before each part of a batch, so that trainings which cut it differently train the same function.
What ranks would make of them, each by its own rows, is seen only here.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from preflight.train_smoke.trainer.batch import each, rows_in
from preflight.train_smoke.trainer.wrapped import as_real
from preflight.train_smoke.user import solo, validation
from preflight.train_smoke.user.validation import Given

VIEWS = 3
"""Random directions along which two states of a tensor are compared."""
MOST = 32
"""Changed tensors that are looked at: each costs a forward pass of the rank's own rows."""
MOVED = 1e-6
"""The least relative change of the loss that shows that forward uses a buffer."""


class ChangedTensor(TypedDict):
    """A buffer or parameter that a forward pass changes."""

    name: str
    is_parameter: bool
    used: bool
    """Whether the next forward pass uses it."""
    views: list[float]
    """Its change on this rank, together with the others, along random directions."""
    alone: list[float]
    """The same in one process with all rows; empty if that is another function."""


class Forward(TypedDict):
    """What a forward pass of all ranks together did on this one."""

    exchanged: bool
    """Whether it called a collective."""
    changed: list[ChangedTensor]


@dataclass(frozen=True)
class Control:
    """The model, and this rank's rows."""

    given: Given
    rows: list[int]
    device: torch.device
    alone: Any
    """Makes the context of a world of one rank."""
    solo: Given
    """The model and loss as built there."""

    def forward(self, waiting: AbstractContextManager[None], *, draws: bool) -> Forward:
        """Called on all ranks together. `draws`: whether forward draws random numbers: then all rows draw others."""
        plain, before = self.given.copy(self.device), dict(_state(self.given.model))
        begun = solo.calls()
        with waiting:
            self._loss(self.given, plain, self.rows)
        exchanged = solo.calls() > begun
        after = {name: tensor.detach().clone() for name, tensor in _changed(plain, before)}
        whole = {} if draws or not after else self._of_all_rows(before)
        return Forward(exchanged=exchanged, changed=[
            ChangedTensor(
                name=name, is_parameter=isinstance(before[name], nn.Parameter), used=self._uses(name, tensor),
                views=_views(tensor, before[name]), alone=_views(whole[name], before[name]) if name in whole else [],
            )
            for name, tensor in list(after.items())[:MOST]
        ])  # fmt: skip

    def _loss(self, given: Given, plain: nn.Module, rows: list[int]) -> float:
        data = each(lambda tensor: tensor.to(self.device), rows_in(given.batch, rows))
        return float(given.loss(plain, data).detach())

    def _of_all_rows(self, before: dict[str, Tensor]) -> dict[str, Tensor]:
        plain = self.solo.copy(self.device)
        with self.alone():
            self._loss(self.solo, plain, [*range(self.given.rows)])
        now = dict(_state(plain))
        return {name: now[name].detach() for name in before}

    def _uses(self, name: str, after: Tensor) -> bool:
        """Whether the loss of the same rows is another one if only this tensor has changed."""
        losses = []
        for value in (None, after):
            plain = self.solo.copy(self.device)
            if value is not None:
                with torch.no_grad():
                    dict(_state(plain))[name].copy_(value)
            with self.alone():
                losses.append(self._loss(self.solo, plain, self.rows))
        return abs(losses[1] - losses[0]) > MOVED * abs(losses[0])


def _state(plain: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, but the running statistics of BatchNorm, which are each rank's own by design."""
    yield from plain.named_parameters()
    for prefix, module in plain.named_modules():
        if not isinstance(module, _BatchNorm) or isinstance(module, nn.SyncBatchNorm):
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    yield f"{prefix}.{name}" if prefix else name, buffer


def _changed(plain: nn.Module, before: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in _state(plain):
        old = before.get(name)
        if old is not None and old.shape == tensor.shape and not torch.equal(old.to(tensor), tensor):
            yield name, tensor


def _views(after: Tensor, before: Tensor) -> list[float]:
    change = as_real(after.detach()).cpu().double().flatten() - as_real(before.detach()).cpu().double().flatten()
    random = torch.Generator().manual_seed(validation.SEED)
    return [
        float(change @ torch.randn(len(change), generator=random, dtype=torch.float64)) / max(1, len(change)) ** 0.5
        for _ in range(VIEWS)
    ]
