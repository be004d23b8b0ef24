"""A model and loaders that are late, on rank 1 or everywhere, and right."""

import os
import time
from collections.abc import Iterator

import torch
from torch import nn

from tests.models.sound import Made, classes

DELAY_S = 0.2


def _is_late() -> bool:
    return os.environ.get("RANK") == "1"


class LateBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 256), nn.Tanh(), nn.Linear(256, 4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers(inputs)
        if _is_late():
            outputs.register_hook(lambda _gradient: time.sleep(DELAY_S))  # type: ignore[no-untyped-call]
        return outputs


def backward() -> Made:
    return LateBackward(), (torch.randn(16, 8), torch.randint(0, 4, (16,))), classes


def mlp() -> Made:
    model = nn.Sequential(nn.Linear(8, 256), nn.Tanh(), nn.Linear(256, 4))
    return model, (torch.randn(16, 8), torch.randint(0, 4, (16,))), classes


class Loader:
    def __init__(self, *, everywhere: bool = False) -> None:
        self._everywhere = everywhere

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(4):
            if self._everywhere or _is_late():
                time.sleep(DELAY_S)
            yield torch.randn(8, 8), torch.randint(0, 4, (8,))


def loader() -> Loader:
    return Loader()


def slow_loader() -> Loader:
    return Loader(everywhere=True)
