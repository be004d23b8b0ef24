"""The model whose checkpoints are tested: the small transformer with what has broken checkpoints before.

Two names of one parameter, a frozen one, a buffer, sizes that no number of ranks divides, and parameters with fewer
elements than there are ranks, so that most ranks have an empty shard.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from preflight.train_smoke.trainer import batch, model
from preflight.train_smoke.trainer.model import LENGTH, SEED, VOCABULARY, Transformer
from preflight.train_smoke.trainer.task import TrainingTask

ODD, FROZEN = 7, 3
LEAST_ROWS, MOST_ROWS = 4, 32
"""Rows of the global batch: one per rank, so that it is the same on every mesh of the job's ranks. Alone, every rank
trains on all of it."""
DROPPED = 0.1
"""The share of logits that are dropped at random: a checkpoint that loses the random state trains differently."""
STEPS = 2
"""Steps before a checkpoint, and after it. With one each, a lost step count would look like a new one."""


class OddTransformer(Transformer):
    """Maps tokens (rows, length) and a dropout mask (rows, 1, vocabulary) to logits (rows, length, vocabulary)."""

    def __init__(self) -> None:
        super().__init__(tied=True)
        self.scale = nn.Parameter(torch.ones(1))
        self.narrow = nn.Linear(VOCABULARY, ODD)
        self.wide = nn.Linear(ODD, VOCABULARY)
        self.frozen = nn.Parameter(torch.ones(FROZEN, VOCABULARY), requires_grad=False)
        self.register_buffer("seen", torch.zeros(1))

    seen: Tensor

    def forward(self, tokens: Tensor, kept: Tensor) -> Tensor:  # type: ignore[override]
        self.seen += 1
        logits = super().forward(tokens) * kept * self.scale
        out: Tensor = logits + self.wide(functional.gelu(self.narrow(logits))) + self.frozen.mean(0)
        return out


def new(device: torch.device, seed: int = SEED) -> OddTransformer:
    """A model with the same weights on every rank and in every run, drawn as in model.new: nothing is left of what
    torch.nn draws by the process's random state."""
    with torch.random.fork_rng(devices=[]):
        made = OddTransformer()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            drawn = torch.randint(-model.DRAWN, model.DRAWN + 1, parameter.shape, generator=random) / model.DRAWN
            if parameter.dim() > 1:
                parameter.copy_(drawn * math.sqrt(1 / parameter.shape[1]))
            elif name.endswith("bias"):
                parameter.copy_(drawn * 0.1)
            else:
                parameter.add_(drawn * 0.1)
    return made.to(device=device, dtype=torch.float32)


class Batch:
    """The global batch; a share of it is a rank's rows. Its size depends on the job's ranks, not on the mesh."""

    def __init__(self, ranks: int, device: torch.device) -> None:
        self.ranks, self.rows, self._device = ranks, min(max(LEAST_ROWS, ranks), MOST_ROWS), device
        row = torch.arange(self.rows)
        columns = [(row * 11 + row // 7) % VOCABULARY]
        for _ in range(LENGTH):
            columns.append((columns[-1] * 5 + 3 + row % 3) % VOCABULARY)
        self.tokens = torch.stack(columns, dim=1).to(device)

    def rows_of(self, share: int, shares: int) -> Sequence[int]:
        """The rows of a share, at least one: several shares may have the same row."""
        return [*batch.rows_of(share, shares, self.rows)] if shares <= self.rows else [share % self.rows]

    def weight(self, share: int, shares: int) -> float:
        """The weight of a share's mean loss in the mean over all rows."""
        if shares <= self.rows:
            return len(self.rows_of(share, shares)) / self.rows
        return 1 / len(range(share % self.rows, shares, self.rows)) / self.rows

    def draw(self) -> Tensor:
        """A dropout mask for each row, by torch's own random state: for all rows on all ranks, so that it is the same
        on every mesh."""
        kept = torch.rand(self.rows, 1, VOCABULARY) >= DROPPED
        return kept.to(self._device, torch.float32) / (1 - DROPPED)


def loss(trained: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    tokens, kept = data
    logits = trained(tokens[:, :-1], kept)
    return functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])


def task(rank: int, ranks: int, device: torch.device) -> TrainingTask:
    """The task for training alone, which measures how far apart sound trainings are."""
    made = Batch(ranks, device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        data: Any = (made.tokens, made.draw())
    rows = [made.rows_of(share, ranks) for share in range(ranks)]
    cut = batch.cut(data, rows, rank)
    return TrainingTask("checkpoint", functools.partial(new, device), loss, cut, device, steps=2 * STEPS)
