"""Models that can be trained, and that many ranks train otherwise than one, or that are helped first."""

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.models.sound import classes

RANK = int(os.environ.get("RANK", "0"))


def _images() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 1, 8, 8), torch.randint(0, 2, (8,))


def batch_norm() -> Any:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 2)
    )
    return model, _images(), classes


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 2)
        self.forgotten = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.used(inputs)
        return made


def unused() -> Any:
    return Unused(), (torch.randn(8, 4), torch.randint(0, 2, (8,))), classes


class SometimesUsed(Unused):
    """Its second layer is for rows whose first number is positive."""

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.used(inputs)
        some = inputs[:, 0] > 0
        return made + self.forgotten(inputs) * some[:, None] if bool(some.any()) else made


def sometimes_unused() -> Any:
    """On the last rows only."""
    inputs = torch.randn(8, 4)
    inputs[:, 0] = -1.0
    inputs[5:, 0] = 1.0
    return SometimesUsed(), (inputs, torch.randint(0, 2, (8,))), classes


def padded() -> Any:
    """The mean over the tokens that are there, of which rows have unequally many."""
    labels = torch.randint(0, 8, (8, 6))
    for row in range(8):
        labels[row, 6 - row // 2 :] = -100
    model = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8))
    batch = {"ids": torch.randint(0, 8, (8, 6)), "labels": labels}
    return model, batch, lambda net, batch: functional.cross_entropy(net(batch["ids"]).transpose(1, 2), batch["labels"])


def other_weights() -> Any:
    torch.manual_seed(RANK)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8).eval(), nn.Linear(8, 2))
    torch.manual_seed(0)
    return model, (torch.randn(8, 4), torch.randint(0, 2, (8,))), classes


class Scaled(nn.Module):
    """As in CLIP: its scale has no dimension, and fully_shard cuts none such."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.layer(inputs) * self.scale.exp()
        return made


def scaled() -> Any:
    return Scaled(), (torch.randn(8, 4), torch.randint(0, 2, (8,))), classes


class TwoTypes(nn.Module):
    """A norm in float32 and a layer in bfloat16: fully_shard takes one type a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(4), nn.Linear(4, 2).bfloat16()

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.layer(self.norm(inputs).bfloat16()).float()
        return made


def two_types() -> Any:
    return TwoTypes(), (torch.randn(8, 4), torch.randint(0, 2, (8,))), classes


def penalized() -> Any:
    """As in a WGAN: the gradient of the inputs is in the loss. FSDP2 lets go of weights before it is made."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(critic: nn.Module, rows: Tensor) -> Tensor:
        made = critic(rows.requires_grad_())
        (slope,) = torch.autograd.grad(made.sum(), rows, create_graph=True)
        of_slope: Tensor = (slope.norm(dim=1) - 1).square().mean()
        lost: Tensor = made.mean() + 10 * of_slope
        return lost

    return model, torch.randn(6, 4), loss
