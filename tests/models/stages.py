"""Models that torch's pipeline() cuts into stages, or cannot."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.models.bare import Gpt
from tests.models.plans import Planned
from tests.models.sound import classes


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + functional.gelu(self.layer(self.norm(x)))
        return made


class Staged(nn.Module):
    """Its forward returns a tuple, of which the loss takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.last = nn.Linear(16, 3)

    def forward(self, inputs: Tensor, scale: float = 1.0) -> tuple[Tensor, None]:
        x = self.first(inputs) * scale
        for block in self.blocks:
            x = block(x)
        return self.last(x), None


def _loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0], scale=2.0)[0], batch[1])


def _batch(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 8), torch.randint(0, 3, (rows,))


def staged() -> Any:
    return Staged(), _batch(8), _loss


def seven_rows() -> Any:
    return Staged(), _batch(7), _loss


def tied() -> Any:
    """pipeline() gives each stage a parameter of its own."""
    model = Gpt()
    ids = torch.randint(0, 48, (4, 12))
    return model, ids, lambda net, rows: functional.cross_entropy(net(rows[:, :-1])[0][:, -1], rows[:, -1])


def loss_within() -> Any:
    ids = torch.randint(0, 48, (4, 12))
    return Gpt(), ids, lambda net, rows: net(rows[:, :-1], rows[:, 1:])[1]


class Branches(Staged):
    """What it computes depends on its numbers: torch.export cannot trace that."""

    def forward(self, inputs: Tensor, scale: float = 1.0) -> tuple[Tensor, None]:
        if float(inputs.sum()) > 1e9:
            return super().forward(-inputs, scale)
        return super().forward(inputs, scale)


def branches() -> Any:
    return Branches(), _batch(8), _loss


def no_blocks() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)), _batch(8), classes


def twice() -> Any:
    return Staged(), _batch(8), lambda net, batch: _loss(net, batch) + _loss(net, batch)


def with_positions() -> Any:
    """Gives forward what has no rows."""
    model, ids = Planned(), torch.randint(0, 24, (4, 6))
    return model, ids, lambda net, rows: net(rows).square().mean() + net.embedding.weight.square().mean()
