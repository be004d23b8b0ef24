"""A translator with texts of unequal lengths. Its loss averages over the tokens of one rank, or over those of all."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.models.sound import Translator

Batch = dict[str, Tensor]
ROWS, LENGTH = 6, 10


def _batch() -> Batch:
    """Row by row one token less: the first rank has the longest texts."""
    ids = torch.randint(0, 32, (ROWS, LENGTH + 1))
    there = torch.arange(LENGTH) < (LENGTH - torch.arange(ROWS))[:, None]
    all_ = there.sum() / ROWS
    return {"ids": ids[:, :-1], "labels": ids[:, 1:], "mask": there.float(), "tokens": all_.repeat(ROWS)}


def _sums(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["ids"], batch["mask"] == 0)
    losses = functional.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
    return (losses * batch["mask"]).sum()


def by_rank(model: nn.Module, batch: Batch) -> Tensor:
    return _sums(model, batch) / batch["mask"].sum()


def by_token(model: nn.Module, batch: Batch) -> Tensor:
    """The batch brings the tokens of all ranks, as an all_reduce would count them: per row, so that it is cut."""
    return _sums(model, batch) / batch["tokens"].sum()


def averaged_by_rank() -> Any:
    return Translator(), _batch(), by_rank


def fresh() -> Any:
    """Its losses are all alike, since it has learned nothing; not so its gradients."""
    model = Translator()
    with torch.no_grad():
        model.head.weight *= 1e-3
    return model, _batch(), by_rank


def averaged_by_token() -> Any:
    return Translator(), _batch(), by_token


def equally_long() -> Any:
    """All ranks have as many: the mean over a rank's tokens is right."""
    batch = _batch()
    batch["mask"] = torch.ones_like(batch["mask"])
    return Translator(), batch, by_rank
