"""What is trained for timing: a causal language model large enough to load a device, or a user's model."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from preflight.train_smoke.trainer.batch import each

VOCABULARY = 256
EPOCH = 64
"""Batches in the dataset that is trained on."""


class ModelSize(NamedTuple):
    width: int
    heads: int
    blocks: int
    rows: int
    length: int


SIZES = {"cpu": ModelSize(128, 4, 4, 8, 32), "cuda": ModelSize(1024, 16, 8, 8, 512)}
"""By device: 0.9 million parameters and about 30 ms per step on one core, 101 million on a GPU."""


@dataclass(frozen=True)
class TimedTask:
    """The task on one rank."""

    new: Callable[[], nn.Module]
    """The model in float32 on the device."""
    loss: Callable[[nn.Module, Any], Tensor]
    batches: Callable[[], Iterator[Any]]
    """Yields the batches of an epoch, already on the device."""
    samples: int
    """Samples in a batch of this rank."""
    tokens: int
    """Tokens in a sample; 0 if it is not text."""
    device: torch.device
    autocast: bool = False
    """Forward under bfloat16 autocast."""

    def of_rows(self, rows: int) -> "TimedTask":
        """The same with `rows` rows per batch: the first ones, or all of them repeated."""

        def resized(tensor: Tensor) -> Tensor:
            return torch.cat([tensor] * -(-rows // len(tensor)))[:rows]

        def batches() -> Iterator[Any]:
            return (each(resized, batch) for batch in self.batches())

        return replace(self, batches=batches, samples=rows)

    def without(self, names: Collection[str]) -> "TimedTask":
        """The same, with these parameters frozen."""

        def new() -> nn.Module:
            model = self.new()
            for name, parameter in model.named_parameters():
                if name in names:
                    parameter.requires_grad_(False)
            return model

        return replace(self, new=new)


class CausalModel(nn.Module):
    """Maps token numbers (rows, length) to logits (rows, length, vocabulary)."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, size.width)
        self.positions = nn.Embedding(size.length, size.width)
        block = nn.TransformerEncoderLayer(
            size.width, size.heads, 4 * size.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.trunk = nn.TransformerEncoder(block, size.blocks, enable_nested_tensor=False)
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        logits: Tensor = self.head(self.trunk(x, mask=mask, is_causal=True))
        return logits


def built_in(rank: int, device: torch.device) -> TimedTask:
    """The built-in task: every rank reads its own samples through torch's DataLoader."""
    size = SIZES.get(device.type, SIZES["cpu"])
    random = torch.Generator().manual_seed(rank)
    samples = torch.randint(0, VOCABULARY, (EPOCH * size.rows, size.length + 1), generator=random)

    def new() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return CausalModel(size).to(device)

    def batches() -> Iterator[Tensor]:
        loader: Iterable[Tensor] = DataLoader(list(samples), batch_size=size.rows)  # type: ignore[arg-type]
        return (batch.to(device) for batch in loader)

    autocast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return TimedTask(new, _loss, batches, size.rows, size.length, device, autocast)


def _loss(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.transpose(1, 2).float(), tokens[:, 1:])
