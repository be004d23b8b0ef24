"""The small transformer with a mixture of experts in place of each MLP: 8 experts, one per token.

Which one depends only on the token and its position: a choice by the router's largest output could flip by one
rounding, and two sound trainings would diverge. The router is still trained: the expert's result is weighted by its
probability of that expert.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from preflight.train_smoke.trainer import model
from preflight.train_smoke.trainer.model import BLOCKS, LENGTH, VOCABULARY, WIDTH, Attention

EXPERTS, HIDDEN = 8, 32

Dispatch = Callable[[Tensor, Tensor, Callable[[Tensor, Sequence[int]], Tensor]], Tensor]
"""Takes rows in the order of their experts, how many each expert has, and a function that applies experts to such rows;
returns the results in the order of the rows."""


class Experts(nn.Module):
    """Maps rows (n, WIDTH), and the expert of each (n,), to results (n, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.empty(EXPERTS, HIDDEN, WIDTH))
        self.down = nn.Parameter(torch.empty(EXPERTS, WIDTH, HIDDEN))
        self.dispatch: Dispatch = lambda rows, counts, apply: apply(rows, counts.tolist())

    def forward(self, x: Tensor, choice: Tensor) -> Tensor:
        weight = functional.softmax(self.router(x), dim=-1).gather(-1, choice[:, None])
        order = choice.argsort(stable=True)
        rows = torch.cat([x, weight], dim=-1)[order]
        if torch.is_autocast_enabled(x.device.type):  # so that it is sent
            rows = rows.to(torch.get_autocast_dtype(x.device.type))
        made = self.dispatch(rows, choice.bincount(minlength=EXPERTS), self.of_rows)
        return made[order.argsort()]

    def of_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Applies the local experts to rows (n, WIDTH + 1) in their order; the last column is each row's weight."""
        made = []
        for expert, own in enumerate(torch.split(rows, [*counts])):
            wide = functional.gelu(own[:, :-1] @ self.up[expert].t())
            made.append(wide @ self.down[expert].t() * own[:, -1:])
        return torch.cat(made)


class SparseBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.experts_norm = nn.LayerNorm(WIDTH)
        self.experts = Experts()

    def forward(self, x: Tensor, choice: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        rows = self.experts_norm(x).flatten(0, 1)
        made: Tensor = x + self.experts(rows, choice.flatten()).view_as(x)
        return made


class SparseTransformer(nn.Module):
    """Maps token numbers (rows, length) to logits (rows, length, vocabulary)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(SparseBlock() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for number, block in enumerate(self.blocks):
            x = block(x, (tokens * (2 * number + 1) + places // 3) % EXPERTS)
        logits: Tensor = self.head(self.norm(x))
        return logits


def new(device: torch.device, seed: int = model.SEED) -> SparseTransformer:
    """A model with the same weights on every rank, with torch.nn's variances, drawn as in model.new."""
    with torch.random.fork_rng(devices=[]):
        made = SparseTransformer()
    model.draw(made, torch.Generator().manual_seed(seed))
    return made.to(device=device, dtype=torch.float32)
