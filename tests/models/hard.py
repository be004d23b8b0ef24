"""Models that are right, and hard to compare."""

import time

import torch
from torch import nn
from torch.nn import functional

from tests.models.sound import Made, classes


def _mean_square(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch
    loss: torch.Tensor = (model(inputs) - targets).square().mean()
    return loss


def some_fitted() -> Made:
    """The first three rows have a loss of roundings, 1e-14."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    inputs = torch.randn(6, 8)
    targets = model(inputs).detach() + 1e-7 * torch.randn(6, 4)
    targets[3:] += 1
    return model, (inputs, targets), _mean_square


def all_fitted() -> Made:
    """The gradient is roundings: a step by it is a leap, and the loss overflows."""
    model = nn.Linear(8, 4)
    inputs = torch.randn(64, 8)
    return model, (inputs, model(inputs).detach() + 1e-9), _mean_square


class Counting(nn.Module):
    """Each forward pass changes a buffer, and so the next one."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.layer(x) / (1 + 0.1 * self.calls)
        return out


def counting() -> Made:
    return Counting(), (torch.randn(6, 8), torch.randint(0, 4, (6,))), classes


class Shared(nn.Module):
    """One block three times over: FSDP1 gathers its weights anew for each."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8)])
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + torch.tanh(self.blocks[0](x))
        out: torch.Tensor = self.out(x)
        return out


def shared() -> Made:
    return Shared(), (torch.randn(6, 8), torch.randint(0, 4, (6,))), classes


def compared() -> Made:
    """The loss calls the model twice."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

    def loss(trained: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        one, other = (functional.normalize(trained(data)) for data in batch)
        return functional.cross_entropy(one @ other.T / 0.2, torch.arange(len(one)))

    return model, (torch.randn(8, 8), torch.randn(8, 8)), loss


class Jumping(nn.Linear):
    """What it makes of its inputs depends on their last bits."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward((torch.sin(1e8 * inputs) > 0).to(inputs))


def jumping() -> Made:
    return Jumping(3, 2), (torch.rand(6, 3), torch.randint(0, 2, (6,))), classes


class Slow(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(SLOW_S)  # it stands for arithmetic that takes as long
        return super().forward(inputs)


SLOW_S = 0.4


def slow() -> Made:
    return Slow(8, 4), (torch.randn(6, 8), torch.randint(0, 4, (6,))), classes
