"""A model whose activations are large beside its parameters, and cheap."""

import torch
from torch import nn

from tests.models.sound import Made, classes


def activations() -> Made:
    """Half a million parameters, and 256 KiB of activations a row."""
    model = nn.Sequential(nn.Linear(32, 8192), *(nn.Tanh() for _ in range(8)), nn.Linear(8192, 4))
    return model, (torch.randn(512, 32), torch.randint(0, 4, (512,))), classes
