"""Models that a checkpoint is compared with: `--model tests.checkpoint.models:NAME`."""

import sys
from typing import Any

import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))


def as_for_run() -> tuple[nn.Module, Any, Any]:
    return net(), torch.ones(2, 8), None


def compiled() -> Any:
    return torch.compile(net())


def deeper() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(4, 4))


def shallower() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16))


def wider() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 5))


def other() -> nn.Module:
    return nn.ModuleDict({"encoder": nn.Linear(2, 2)})


def tied() -> nn.Module:
    return Tied()


def not_on_meta() -> nn.Module:
    """It reads a value of its own."""
    made = net()
    assert float(next(made.parameters()).sum()) == float(next(made.parameters()).sum())
    return made


def exits() -> nn.Module:
    sys.exit(3)


def none_at_all() -> str:
    return "a model"
