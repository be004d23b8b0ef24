"""Reads the user's loader once, as a newly started training process does, in a separate process that ends afterwards.

The process group there has the right rank and size, but no other ranks (torch's "fake" backend): a barrier in the
user's function passes without waiting.
"""

import os
import pickle
import random
import sys
import time
from collections.abc import Iterator
from typing import Any, Literal, TypedDict

from preflight.check import Probe, UserCode, UserError
from preflight.checks.data.resume.compare import Id
from preflight.checks.data.shared import digests, sampler_chain

SEED = 67280421310721
"""torch's seed in each new process (default_rng_seed_val, c10/core/GeneratorImpl.h)."""
VALIDATION = ("val", "eval", "test", "dev")
"""Prefixes of names of loaders that are not resumed."""
END = object()


class Order(TypedDict):
    """What one process should do."""

    code: str
    rank: int
    world: int
    local_rank: int
    loads: str
    """The file of the state to start with, or ""."""
    skips: int
    """Batches to skip if there is no state."""
    stops: int
    """After this many further batches the state is saved; then the epoch continues."""
    saves: str
    """The file to save it to."""
    workers: int | None
    """Replaces the loader's own number."""
    samples: int
    """The most samples per epoch."""
    seconds: float


class LoaderRun(TypedDict):
    """What the process read."""

    name: str
    """The loader's name."""
    loader: str
    """The loader's type, and what has the state: loader, sampler, or "" (batches are skipped)."""
    holder: str
    by_index: bool
    workers: int
    streams: bool
    before: list[list[Id]]
    """Batches that were skipped, or came before the stop."""
    rest: list[list[Id]]
    """Batches of the epoch after the stop."""
    next: list[list[Id]]
    """Batches of the next epoch."""
    whole: bool
    """Whether the first epoch was read to the end, so that the next was started; and whether that was."""
    next_whole: bool
    left_out: str
    """Why the loader was not read."""
    mistake: dict[str, Any] | None
    """text, file, line."""


class Indices:
    """Replaces a map-style dataset: a sample is its index, and nothing is loaded."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return index


def as_they_are(batch: Any) -> Any:
    return batch


def run(order: Order) -> LoaderRun:
    """Runs in the separate process."""
    seen = LoaderRun(
        name="",
        loader="",
        holder="",
        by_index=False,
        workers=0,
        streams=False,
        before=[],
        rest=[],
        next=[],
        whole=False,
        next_whole=False,
        left_out="",
        mistake=None,
    )
    code = UserCode.parse(order["code"])
    _as_a_new_process(order)
    try:
        Probe.doing(f"calling {code}")
        loader = _loader(code.call(may_be_none=True), seen)
        if loader is not None:
            with code.blamed(always=True):
                _read(_prepared(loader, order, seen), order, seen)
    except UserError as error:
        seen["mistake"] = {"text": error.text, "file": error.file, "line": error.line}
    return seen


def _as_a_new_process(order: Order) -> None:
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    rank, world = str(order["rank"]), str(order["world"])
    os.environ |= {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": str(order["local_rank"])}
    random.seed()
    torch.manual_seed(SEED)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=order["rank"], world_size=order["world"])


def _loader(returned: Any, seen: LoaderRun) -> Any:
    """The first training loader, or None."""
    loaders = (
        returned
        if isinstance(returned, dict)
        else dict(enumerate(returned))
        if isinstance(returned, list | tuple)
        else {"": returned}
    )
    for name, loader in loaders.items():
        if not str(name).startswith(VALIDATION):
            seen["name"], seen["loader"] = str(name), type(loader).__name__
            if sampler_chain.iterator_of(loader)[0].startswith("accelerate."):
                seen["left_out"] = "Accelerate's loaders talk to the other ranks in each epoch"
            elif loader is None or not hasattr(type(loader), "__iter__"):
                seen["left_out"] = f"a {type(loader).__name__} is not a loader that an epoch reads"
            return None if seen["left_out"] else loader
    seen["left_out"] = "there is no loader to train with"
    return None


def _prepared(loader: Any, order: Order, seen: LoaderRun) -> Any:
    """The loader with indices instead of samples if a sampler chooses them, and with the requested workers."""
    import torch

    seen["holder"] = "loader" if _has_state(loader) else "sampler" if _sampler(loader) is not None else ""
    dataset, number = sampler_chain.linked(loader, "dataset"), sampler_chain.linked(loader, "num_workers")
    seen["workers"] = number if isinstance(number, int) else 0
    seen["streams"] = isinstance(dataset, torch.utils.data.IterableDataset)
    seen["by_index"] = sampler_chain.by_index(loader) and not hasattr(dataset, "state_dict")
    if seen["by_index"]:
        object.__setattr__(loader, "dataset", Indices(len(dataset)))
        loader.collate_fn = as_they_are
    workers = order["workers"]
    if workers is None and seen["by_index"] and not seen["holder"]:
        workers = 0  # they do not affect what its sampler says
    if workers is not None and isinstance(loader, torch.utils.data.DataLoader):
        loader.num_workers = workers
        object.__setattr__(loader, "persistent_workers", bool(workers) and loader.persistent_workers)
        loader.prefetch_factor = (loader.prefetch_factor or 2) if workers else None
        if not workers:
            loader.timeout, loader.multiprocessing_context = 0, None
    return loader


def _has_state(thing: Any) -> bool:
    return all(callable(getattr(type(thing), name, None)) for name in ("state_dict", "load_state_dict"))


def _sampler(loader: Any) -> Any:
    return next(filter(_has_state, sampler_chain.samplers(sampler_chain.within(loader))), None)


def _read(loader: Any, order: Order, seen: LoaderRun) -> None:
    holder = {"loader": loader, "sampler": _sampler(loader), "": None}[seen["holder"]]
    end = time.monotonic() + order["seconds"]
    _set_epoch(loader, 0)
    if order["loads"] and holder is not None:
        Probe.doing(f"load_state_dict of the {seen['holder']}")
        with open(order["loads"], "rb") as file:
            holder.load_state_dict(pickle.load(file))  # noqa: S301 -- the previous process wrote it, in our folder
    batches = _batches(loader, order, seen, "whole", end)
    skips = order["skips"] if holder is None else 0
    for batch in batches:
        at = len(seen["before"])
        (seen["before"] if at < skips + order["stops"] else seen["rest"]).append(batch)
        if order["stops"] and not seen["rest"] and len(seen["before"]) == skips + order["stops"] and holder is not None:
            Probe.doing(f"state_dict of the {seen['holder']}")
            with open(order["saves"], "wb") as file:
                pickle.dump(holder.state_dict(), file)
    if seen["whole"]:
        _set_epoch(loader, 1)
        seen["next"] = list(_batches(loader, order, seen, "next_whole", end))


def _set_epoch(loader: Any, epoch: int) -> None:
    for place, setter in sampler_chain.epoch_setters(loader):
        Probe.doing(f"set_epoch({epoch}) of {place}")
        setter(epoch)


def _batches(
    loader: Any, order: Order, seen: LoaderRun, whole: Literal["whole", "next_whole"], end: float
) -> Iterator[list[Id]]:
    """The batches of one epoch, until the budget is spent. `whole`: the field to set if the epoch ended before."""
    samples = 0
    Probe.doing("reading the loader")
    iterator = iter(loader)
    while samples < order["samples"] and time.monotonic() < end:
        batch = next(iterator, END)
        if batch is END:
            seen[whole] = True
            break
        ids: list[Id] = _ids(batch) if seen["by_index"] else [digests.id_of(batch)]
        samples += len(ids)
        yield ids


def _ids(batch: Any) -> list[Id]:
    values = batch.tolist() if hasattr(batch, "tolist") else batch
    listed = values if isinstance(values, list | tuple) else [values]
    return [value if type(value) is int else repr(value)[:80] for value in listed]
