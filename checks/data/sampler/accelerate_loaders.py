"""Reads Accelerate's loaders by index: their own `__iter__` runs, over the sampler's output instead of the dataset's.

Before its sampler draws, `DataLoaderShard.__iter__` makes the random states of all ranks equal: without that, each rank
would shuffle differently. `DataLoaderDispatcher` uses only the first rank's sampler, and sends each rank its part.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from preflight.checks.data.shared import sampler_chain

SHARD, DISPATCHER = "DataLoaderShard", "DataLoaderDispatcher"
AT_ONCE = 64
"""Batches to pass through a shard's `__iter__` as one: each pass costs as much as hundreds of indices."""


def kind(loader: Any) -> str:
    """`SHARD`, `DISPATCHER`, or "" for other loaders, and those of Accelerate before 1.0."""
    module, name = sampler_chain.iterator_of(loader)
    known = module == "accelerate.data_loader" and name in (SHARD, DISPATCHER)
    return name if known and sampler_chain.linked(loader, "base_dataloader") is not None else ""


def by_index(loader: Any) -> bool:
    """Like `sampler_chain.by_index`, but also true for shards and dispatchers, thanks to `reads_indices`."""
    return sampler_chain.by_index(sampler_chain.linked(loader, "base_dataloader") if kind(loader) else loader)


def begins_with_a_collective(loader: Any) -> bool:
    """Whether its `__iter__` first sends the first rank's random state to all."""
    return sampler_chain.iterator_of(loader)[0] == "accelerate.data_loader"


@contextmanager
def reads_indices(loader: Any) -> Iterator[Iterator[Any]]:
    """An epoch of a shard or dispatcher that yields indices, in the loader's batches."""
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
    """Several batches passed as one: neither a tensor nor a container, so that no code looks into it."""

    batches: tuple[Any, ...]


class _Indices:
    """Like a DataLoader, but yields indices."""

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
        if name == "state_dict":  # called after each batch: a StatefulDataLoader would start its workers for it
            raise AttributeError(name)
        return getattr(self._loader, name)


def agreement(loader: Any) -> Callable[[bool], bool] | None:
    """If each batch is a collective, all ranks must stop after the same one: a function that asks whether any wants to.
    None if a rank can stop by itself."""
    import torch
    from torch import distributed

    if kind(loader) != DISPATCHER or not distributed.is_initialized():
        return None

    def any_wants(wants: bool) -> bool:
        flag = torch.tensor([int(wants)], device=loader.state.device)
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
        return bool(flag.item())

    return any_wants
