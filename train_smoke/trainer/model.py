"""A small causal language model: two pre-norm blocks of attention and MLP, 109,000 parameters.

It has what exposes differences between strategies (embeddings, norms, matrices of several shapes) and nothing that
blurs a comparison: no dropout, no buffers, and no biases (the gradient of attention's key biases is pure rounding).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, LENGTH, WIDTH, HEADS, BLOCKS = 64, 32, 64, 4, 2
HEAD = WIDTH // HEADS
"""The width of a head: a tensor-parallel rank has some of the heads, whole."""
SEED = 1


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        merged: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return merged


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH, bias=False)
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        wide = functional.gelu(self.up(self.mlp_norm(x)))
        out: Tensor = x + self.down(wide)
        return out


class Transformer(nn.Module):
    """Maps token numbers (rows, length) to logits (rows, length, vocabulary)."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
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


def new(device: torch.device, seed: int = SEED, *, tied: bool = False) -> Transformer:
    """A model with the same weights on every rank, drawn on the CPU from one seed. torch's own random state is not
    changed. `tied`: embedding and output layer are one parameter, as in GPT-2, with the output layer's variance.

    torch.nn's own weights depend on the kind of CPU: the vector code of normal_ rounds differently with AVX2, with
    AVX512 and without. So whole numbers are drawn, which are the same everywhere, with torch.nn's variances.
    """
    with torch.random.fork_rng(devices=[]):
        model = Transformer(tied=tied)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                most = math.sqrt(3) if isinstance(module, nn.Embedding) else 1 / math.sqrt(module.in_features)
                drawn = torch.randint(-DRAWN, DRAWN + 1, module.weight.shape, generator=random)
                module.weight.copy_(drawn * (most / DRAWN))
    return model.to(device=device, dtype=torch.float32)
