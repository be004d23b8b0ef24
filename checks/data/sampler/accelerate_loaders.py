"""Accelerate's loaders by index: their own `__iter__` runs, over what the sampler says instead of what the dataset has.

Before its sampler draws, `DataLoaderShard.__iter__` makes the random states of all ranks equal: read without that, each
rank shuffles an order of its own. `DataLoaderDispatcher` asks the first rank's sampler only, and sends each rank its
part.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from preflight.checks.data.shared import sampler_chain

SHARD, DISPATCHER = "DataLoaderShard", "DataLoaderDispatcher"
AT_ONCE = 64
"""Batches that go through a shard's `__iter__` as one: it costs as much for each as hundreds of indices."""


def kind(loader: Any) -> str:
    """`SHARD`, `DISPATCHER`, or "" for a loader that is neither, or one of Accelerate before 1.0, which holds none."""
    module, name = sampler_chain.iterator_of(loader)
    known = module == "accelerate.data_loader" and name in (SHARD, DISPATCHER)
    return name if known and sampler_chain.linked(loader, "base_dataloader") is not None else ""


def by_index(loader: Any) -> bool:
    """As `sampler_chain.by_index`, which `reads_indices` makes true of a shard and a dispatcher."""
    return sampler_chain.by_index(sampler_chain.linked(loader, "base_dataloader") if kind(loader) else loader)


def begins_with_a_collective(loader: Any) -> bool:
    """Its `__iter__` sends the first rank's random state to all."""
    return sampler_chain.iterator_of(loader)[0] == "accelerate.data_loader"


@contextmanager
def reads_indices(loader: Any) -> Iterator[Iterator[Any]]:
    """What comes out of an epoch of a shard or a dispatcher: indices, in batches as the loader yields them."""
    base = loader.base_dataloader
    dispatches = kind(loader) == DISPATCHER
    at_once = 1 if dispatches or loader.skip_batches else AT_ONCE
    loader.base_dataloader = _Indices(base, at_once, tensors=dispatches)
    try:
        yield _one_by_one(loader)
    finally:
        loader.base_dataloader = base


def _one_by_one(loader: Any) -> Iterator[Any]:
    for batches in loader:
        yield from batches.batches if isinstance(batches, _Batches) else [batches]


@dataclass(frozen=True)
class _Batches:
    """Several, which go through as one: neither a tensor nor a container, so that nobody looks into them."""

    batches: tuple[Any, ...]


class _Indices:
    """A DataLoader in all but what it yields."""

    def __init__(self, loader: Any, at_once: int, *, tensors: bool) -> None:
        self._loader, self._at_once, self._tensors = loader, at_once, tensors

    def __iter__(self) -> Iterator[Any]:
        import torch

        batches = iter(sampler_chain.chooser(self._loader)[0])
        while drawn := tuple(islice(batches, self._at_once)):
            yield torch.as_tensor(drawn[0]) if self._tensors else _Batches(drawn)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name == "state_dict":  # to be asked after each batch: a StatefulDataLoader would start its workers for it
            raise AttributeError(name)
        return getattr(self._loader, name)


def agreement(loader: Any) -> Callable[[bool], bool] | None:
    """Where each batch is a collective, all ranks must end after the same one: asks whether any wants to. None where a
    rank can end by itself."""
    import torch
    from torch import distributed

    if kind(loader) != DISPATCHER or not distributed.is_initialized():
        return None

    def any_wants(wants: bool) -> bool:
        flag = torch.tensor([int(wants)], device=loader.state.device)
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
        return bool(flag.item())

    return any_wants
