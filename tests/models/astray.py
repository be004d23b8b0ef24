"""Models that train rightly alone, and not under DDP: what users' losses, hooks and patches do to the strategy.

Under FSDP2, which has none of these hooks, they are sound."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from tests.models.sound import Made, classes

RANK = int(os.environ.get("RANK", "0"))


def _made(under_ddp: Callable[[Any, Any], Tensor], model: nn.Module | None = None) -> Made:
    """`under_ddp`: the loss there."""

    def loss(wrapped: nn.Module, batch: Any) -> Tensor:
        is_ddp = isinstance(wrapped, DistributedDataParallel)
        return under_ddp(wrapped, batch) if is_ddp else classes(wrapped, batch)

    return model or nn.Linear(8, 4), (torch.randn(6, 8), torch.randint(0, 4, (6,))), loss


def _hooked(reduce: Callable[[Tensor], Tensor]) -> Made:
    """With a communication hook of the user's own, given a bucket of gradients."""

    def hook(_state, bucket):  # type: ignore[no-untyped-def]  # DDP would hold annotations against its own
        future: Any = Future()
        future.set_result(reduce(bucket.buffer()))
        return future

    def loss(ddp: Any, batch: Any) -> Tensor:
        if not hasattr(ddp, "is_hooked"):
            ddp.register_comm_hook(None, hook)
            ddp.is_hooked = True
        return classes(ddp, batch)

    return _made(loss)


def _sum(values: Tensor) -> Tensor:
    dist.all_reduce(values)
    return values


def hook_sums() -> Made:
    return _hooked(_sum)


def hook_rounds() -> Made:
    return _hooked(lambda values: (_sum(values.bfloat16()) / dist.get_world_size()).to(values))


def hook_overflows() -> Made:
    """A loss that is scaled for float16, and too far."""
    return _hooked(lambda values: (_sum((values * 1e6).half()) / dist.get_world_size() / 1e6).to(values))


def hook_clips() -> Made:
    """Each rank's own gradient."""
    return _hooked(lambda values: _sum(values * (0.1 / values.norm()).clamp(max=1)) / dist.get_world_size())


def hook_weighs_one_more() -> Made:
    return _hooked(lambda values: _sum(values * (1.01 if RANK == 1 else 1.0)) / dist.get_world_size())


def never_syncs() -> Made:
    """The forward passes of all micro-batches are under no_sync, the last one's too."""

    def loss(ddp: Any, batch: Any) -> Tensor:
        with ddp.no_sync():
            return classes(ddp, batch)

    return _made(loss)


def same_rows() -> Made:
    """The loss takes its rows from a data set that was not cut by rank."""
    whole: Any = None

    def loss(ddp: nn.Module, batch: Any) -> Tensor:
        inputs, targets = whole
        return classes(ddp, (inputs[: len(batch[0])], targets[: len(batch[0])]))

    model, whole, anywhere = _made(loss)
    return model, whole, anywhere


def clamps_on_one() -> Made:
    """Weights are clamped as in a WGAN, on one rank only."""

    def loss(ddp: nn.Module, batch: Any) -> Tensor:
        if RANK == 1:
            with torch.no_grad():
                for parameter in ddp.parameters():
                    parameter.clamp_(-0.2, 0.2)
        return classes(ddp, batch)

    return _made(loss)


class Redrawn(nn.Linear):
    """Initialized on one rank once DDP has it: something has patched DDP."""


def redrawn_on_one() -> Made:
    right = DistributedDataParallel.__init__

    def wrong(self: Any, module: nn.Module, *more: Any, **options: Any) -> None:
        right(self, module, *more, **options)
        if isinstance(module, Redrawn) and RANK == 1:
            nn.init.normal_(module.weight, std=0.02)

    DistributedDataParallel.__init__ = wrong  # type: ignore[method-assign]
    return _made(classes, Redrawn(8, 4))


class Frozen(nn.Linear):
    """Trained no longer once DDP has it."""


def frozen_by_wrapper() -> Made:
    right = DistributedDataParallel.__init__

    def wrong(self: Any, module: nn.Module, *more: Any, **options: Any) -> None:
        right(self, module, *more, **options)
        if isinstance(module, Frozen):
            module.weight.requires_grad_(False)

    DistributedDataParallel.__init__ = wrong  # type: ignore[method-assign]
    return _made(classes, Frozen(8, 4))


class Scaled(nn.Linear):
    """Its buffer is rounded once DDP has it."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = super().forward(inputs) * self.get_buffer("scale")
        return outputs


def buffer_cast_by_wrapper() -> Made:
    right = DistributedDataParallel.__init__

    def wrong(self: Any, module: nn.Module, *more: Any, **options: Any) -> None:
        right(self, module, *more, **options)
        if isinstance(module, Scaled):
            module._buffers["scale"] = module.get_buffer("scale").bfloat16()

    DistributedDataParallel.__init__ = wrong  # type: ignore[method-assign]
    return _made(classes, Scaled())
