"""A small causal language model: two pre-norm blocks of attention and MLP, 109,000 parameters.

It has what exposes differences between strategies: embeddings, norms, matrices of several shapes, biases, a buffer, and
widths that no number of ranks divides, so that shards are uneven. Norms do not start from ones and zeros, nor biases
from zeros: else it would not show that they are made anew, exchanged, or added twice. It has nothing that blurs a
comparison: no dropout, and no bias of attention's keys, whose gradient is pure rounding.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, LENGTH, WIDTH, HEADS, BLOCKS = 61, 32, 64, 4, 2
HIDDEN = 252
"""The MLP's width: uneven on 8 ranks, as the vocabulary is on 2, 3 and 4. The ranks of tensor parallelism divide it and
the sequence's length: torch's RowwiseParallel and SequenceParallel take even parts for granted."""
HEAD = WIDTH // HEADS
"""The width of a head: a tensor-parallel rank has some of the heads, whole."""
SEED = 1


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        merged: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return merged


class Block(nn.Module):
    gain: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.register_buffer("gain", gains())

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        wide = functional.gelu(self.up(self.mlp_norm(x)))
        out: Tensor = x + self.gain.to(x.dtype) * self.down(wide)
        return out


def gains() -> Tensor:
    """A buffer that the result depends on: a factor per channel, which bfloat16 holds exactly."""
    return 1 + torch.arange(WIDTH) / 128


class Transformer(nn.Module):
    """Maps token numbers (rows, length) to logits (rows, length, vocabulary)."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


DRAWN = 2**20
"""Weights are whole numbers up to this, times a factor: exact in float32."""
SMALL = 0.1
"""How far biases are from 0 and norms' weights from 1, at most."""


def new(device: torch.device, seed: int = SEED, *, tied: bool = False) -> Transformer:
    """A model with the same weights on every rank, drawn on the CPU from one seed. torch's own random state is not
    changed. `tied`: embedding and output layer are one parameter, as in GPT-2, with the output layer's variance.

    torch.nn's own weights depend on the kind of CPU: the vector code of normal_ rounds differently with AVX2, with
    AVX512 and without. So whole numbers are drawn, which are the same everywhere, with torch.nn's variances.
    """
    with torch.random.fork_rng(devices=[]):
        model = Transformer(tied=tied)
    draw(model, torch.Generator().manual_seed(seed))
    return model.to(device=device, dtype=torch.float32)


@torch.no_grad()
def draw(model: nn.Module, random: torch.Generator) -> None:
    """Gives all parameters new weights: matrices by torch.nn's variance, biases near 0, norms near 1. Of two names of
    one parameter the later one decides."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        drawn = torch.randint(-DRAWN, DRAWN + 1, parameter.shape, generator=random)
        if parameter.dim() > 1:
            is_embedding = name.startswith(("tokens", "positions"))
            parameter.copy_(drawn * ((math.sqrt(3) if is_embedding else 1 / math.sqrt(parameter.shape[-1])) / DRAWN))
        elif name.endswith("bias"):
            parameter.copy_(drawn * (SMALL / DRAWN))
        else:
            parameter.copy_(1 + drawn * (SMALL / DRAWN))
