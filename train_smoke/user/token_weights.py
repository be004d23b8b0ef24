"""Is a loss a mean over tokens, with unequal numbers of tokens per row? Then ranks that average weigh them unequally.

In a model that has learned nothing yet all tokens' losses are nearly the same, so only the gradient shows it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from preflight.train_smoke.trainer.batch import each, leaves
from preflight.train_smoke.trainer.buffers import Buffers
from preflight.train_smoke.trainer.wrapped import as_real
from preflight.train_smoke.user.validation import Given

AS_WEIGHED = 0.05
"""The share of a row mean's error (or tolerance) up to which a token mean may be off to be recognized as one."""
IGNORED = (-100, -1)
"""Labels that mean "no token": that of torch and transformers, and nanoGPT's."""
VIEWS = 4
"""Random directions along which gradients are compared: a difference is very unlikely to be orthogonal to all."""


class Weighing(NamedTuple):
    """Weights of rows: how many of a tensor's elements count in each."""

    name: str
    counts: Tensor
    """(rows,)."""

    def mean(self, first: Any, second: Any) -> Any:
        """The weighted mean of the values of two halves of the rows."""
        middle = len(self.counts) // 2
        weights = [int(half.sum()) for half in (self.counts[:middle], self.counts[middle:])]
        return (first * weights[0] + second * weights[1]) / (sum(weights) or 1)


def by_loss(data: Any, total: float, halves: tuple[float, float], allowed: float) -> Weighing | None:
    """The first weighing by which the mean of two halves' losses equals the loss of all rows; None if there is none."""
    fits = (own for own in _weighings(data) if abs(own.mean(*halves) - total) <= allowed * AS_WEIGHED)
    return next(fits, None)


def by_gradient(given: Given, plain: nn.Module, data: Any, rounded: float) -> tuple[float, Weighing | None]:
    """(how far the gradient of all rows is from the mean of its halves', the weighing by which it is their mean)."""
    weighings = list(_weighings(data))
    if not weighings:
        return 0.0, None
    middle, buffers = given.rows // 2, Buffers(plain)

    def views(rows: slice) -> Tensor:
        buffers.put_back()
        plain.zero_grad(set_to_none=True)
        given.loss(plain, each(lambda tensor: tensor[rows], data)).backward()  # type: ignore[no-untyped-call]
        return _views(plain)

    total, first, second = map(views, (slice(None), slice(middle), slice(middle, None)))
    scale = float(max(its.norm() for its in (total, first, second)))
    off = float((total - (first * middle + second * (given.rows - middle)) / given.rows).norm())
    if off <= rounded * scale:
        return 0.0, None
    fits = (own for own in weighings if float((own.mean(first, second) - total).norm()) <= AS_WEIGHED * off)
    found = next(fits, None)
    return (off / scale, found) if found else (0.0, None)


def _views(plain: nn.Module) -> Tensor:
    """The gradient along random directions, the same at every call."""
    random = torch.Generator().manual_seed(1)
    views = torch.zeros(VIEWS, dtype=torch.float64)
    for parameter in plain.parameters():
        if parameter.grad is not None:
            gradient = as_real(parameter.grad).flatten().cpu().double()
            for view in range(VIEWS):
                views[view] += gradient @ torch.randn(len(gradient), generator=random, dtype=torch.float64)
    return views


def _weighings(data: Any) -> Iterator[Weighing]:
    for path, tensor in leaves(data):
        for what, valid in _valid(tensor):
            counts = valid.reshape(len(valid), -1).sum(1)
            if bool((counts != counts[0]).any()):
                yield Weighing(f"{path} {what}", counts.cpu())


def _valid(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields which elements may count, also for models that shift their labels by one token."""
    found = [(f"!= {ignored}", tensor != ignored) for ignored in IGNORED if bool((tensor == ignored).any())]
    if bool(((tensor == 0) | (tensor == 1)).all()):
        found += [("is set", tensor != 0), ("is not set", tensor == 0)]
    for what, valid in found:
        yield what, valid
        if tensor.dim() > 1:
            yield f"{what}, without the first of each row", valid[:, 1:]
