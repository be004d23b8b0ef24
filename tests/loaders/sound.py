"""Loaders of map-style datasets that are right, on any number of ranks unless said otherwise: nothing above info may be
said of them."""

import functools
import itertools
import os
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

Loader = DataLoader[Any]
WHOLE = 24
"""Samples that 1, 2, 3 and 4 ranks share evenly, in batches of 2, too."""


def rank() -> int:
    return dist.get_rank()


def world() -> int:
    return dist.get_world_size()


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, length: int = WHOLE, scale: float = 1.0) -> None:
        self.length, self.scale = length, scale

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), self.scale * index)


def _distributed(dataset: Dataset[Any], **more: Any) -> Loader:
    """As most do it."""
    own = {key: more.pop(key) for key in ("shuffle", "drop_last", "seed") if key in more}
    return DataLoader(dataset, sampler=DistributedSampler(dataset, **own), **{"batch_size": 2, **more})


# torch's DistributedSampler


def even() -> Loader:
    return _distributed(Numbers())


def padded() -> Loader:
    return _distributed(Numbers(25), batch_size=4)


def tails_dropped() -> Loader:
    """By the sampler, and by the loader."""
    dataset = Numbers(35)
    sampler: Sampler[int] = DistributedSampler(dataset, drop_last=True)
    return DataLoader(dataset, batch_size=5, sampler=sampler, drop_last=True)


def in_workers() -> Loader:
    return _distributed(Numbers(), num_workers=2, persistent_workers=True, prefetch_factor=4)


def for_validation() -> Loader:
    return _distributed(Numbers(25), shuffle=False)


def of_tensors() -> Loader:
    return _distributed(TensorDataset(torch.arange(24.0), torch.arange(24) % 3))


def of_a_split() -> Loader:
    """A part for training, drawn with the same seed on all ranks."""
    parts = torch.utils.data.random_split(Numbers(30), [24, 6], torch.Generator().manual_seed(1))
    return _distributed(parts[0])


def fewer_samples_than_ranks() -> Loader:
    return _distributed(Numbers(2), batch_size=1)


class Noisy(Numbers):
    """Augmented: a sample is never the same again."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand(3)


def augmented() -> Loader:
    return _distributed(Noisy())


class Blank(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(3)


def all_alike() -> Loader:
    """Equal contents of unlike samples."""
    return _distributed(Blank())


def listed() -> list[Loader]:
    return [even(), for_validation()]


def named() -> dict[str, Loader]:
    return {"train": even(), "val": for_validation()}


def in_groups() -> Loader:
    """Two ranks beside each other share a model, and so their data: on 4 ranks."""
    dataset = Numbers()
    sampler: Sampler[int] = DistributedSampler(dataset, num_replicas=world() // 2, rank=rank() // 2)
    return DataLoader(dataset, batch_size=2, sampler=sampler)


def rank_0_prints() -> Loader:
    if rank() == 0:
        print(f"{len(Numbers())} samples")
        print("loading", file=sys.stderr)
        with open(os.devnull, "w") as file:
            file.write("counted")
    return even()


# Samplers of the user's own


class EachNth(Sampler[int]):
    def __init__(self, samples: Sequence[int]) -> None:
        self.samples, self.epoch = samples, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(self.samples)
        random.Random(self.epoch).shuffle(order)
        return iter(order[rank() :: world()])

    def __len__(self) -> int:
        return len(range(rank(), len(self.samples), world()))


class Batches(Sampler[list[int]]):
    """Whole batches are dealt out to the ranks. `wrap`: the last ones begin again from the first samples, so that all
    ranks have as many of one size (as Accelerate does)."""

    def __init__(self, length: int, size: int, wrap: bool) -> None:
        self.length, self.size, self.wrap, self.epoch = length, size, wrap, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(self.length))
        random.Random(self.epoch).shuffle(order)
        if self.wrap:
            order += order[: -len(order) % (self.size * world())]
        whole = len(self) * self.size * world()
        for start in range(rank() * self.size, whole, self.size * world()):
            yield order[start : start + self.size]

    def __len__(self) -> int:
        rounds, more = divmod(self.length, self.size * world())
        return rounds + (self.wrap and more > 0)


class Endless(Sampler[int]):
    """One order without an end, of which each rank takes its part (as detectron2's TrainingSampler does)."""

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(self.order(), rank(), None, world())

    def order(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(0)
        while True:
            yield from torch.randperm(WHOLE, generator=generator).tolist()


def endless_sampler() -> Loader:
    return DataLoader(Numbers(), batch_size=2, sampler=Endless())


def own_sampler() -> Loader:
    return DataLoader(Numbers(), batch_size=2, sampler=EachNth(range(WHOLE)))


def own_batches() -> Loader:
    return DataLoader(Numbers(25), batch_sampler=Batches(25, 2, wrap=False))


def evened_out() -> Loader:
    return DataLoader(Numbers(25), batch_sampler=Batches(25, 4, wrap=True), num_workers=1)


class Buckets(Batches):
    """Samples of like length, as many as make about 60 tokens; all ranks have as many batches, what is left is
    dropped."""

    def __iter__(self) -> Iterator[list[int]]:
        batches = self._batches()
        random.Random(self.epoch).shuffle(batches)
        return iter(batches[rank() :: world()][: len(self)])

    def _batches(self) -> list[list[int]]:
        made: list[list[int]] = [[]]
        for index in range(self.length):
            if (len(made[-1]) + 1) * (5 + index // 4) > 60:
                made.append([])
            made[-1].append(index)
        return made

    def __len__(self) -> int:
        return len(self._batches()) // world()


def by_tokens() -> Loader:
    return DataLoader(Numbers(90), batch_sampler=Buckets(90, 0, wrap=False))


def weighted() -> Loader:
    generator = torch.Generator().manual_seed(rank())
    sampler = WeightedRandomSampler([1.0, 3.0] * 30, 20, generator=generator)
    return DataLoader(Numbers(60), batch_size=4, sampler=sampler)


def subsets() -> Loader:
    return DataLoader(Numbers(), batch_size=2, sampler=SubsetRandomSampler(range(rank(), WHOLE, world())))


class PartEachEpoch(EachNth):
    """An epoch is a third of the samples, another one each time."""

    def __iter__(self) -> Iterator[int]:
        third = len(self.samples) // 3
        part = self.samples[self.epoch % 3 * third :][:third]
        return iter(part[rank() :: world()])

    def __len__(self) -> int:
        return len(self.samples) // 3 // world()


def short_epochs() -> Loader:
    return DataLoader(Numbers(144), batch_size=4, sampler=PartEachEpoch(range(144)))


# Each rank has a part of its own, or a dataset


def own_part() -> Loader:
    return DataLoader(Subset(Numbers(), range(rank(), WHOLE, world())), batch_size=2, shuffle=True)


def own_part_of_a_split() -> Loader:
    """Augmented: nothing but the indices tells samples apart."""
    train, _ = torch.utils.data.random_split(Noisy(30), [24, 6], torch.Generator().manual_seed(1))
    return DataLoader(Subset(train, range(24)[rank() :: world()]), batch_size=2, shuffle=True)


class UnlikeFiles(Numbers):
    """Whose samples are others on each rank, and as many."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) - 1000 * rank()


def own_part_of_own_files() -> Loader:
    """Unseeded: each rank splits its own files otherwise."""
    train, _ = torch.utils.data.random_split(UnlikeFiles(30), [24, 6], torch.Generator().manual_seed(rank()))
    return DataLoader(train, batch_size=2, shuffle=True)


class Shard(Numbers):
    """A file of this rank's."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + 1000 * rank()


def own_files() -> Loader:
    return DataLoader(Shard(20), batch_size=2, shuffle=True)


class BroadcastsMore(DistributedSampler[Any]):
    """Its first rank begins one collective more than the others in each epoch: the world group's no longer fit
    together, which is the user's affair. The samples are right."""

    def __iter__(self) -> Iterator[Any]:
        if rank() == 0:
            self.handle = dist.broadcast(torch.zeros(1), 0, async_op=True)
        return super().__iter__()


def broadcasts_more() -> Loader:
    return DataLoader(Numbers(), batch_size=2, sampler=BroadcastsMore(Numbers()))


# Alone: on one rank


def alone() -> Loader:
    return DataLoader(Numbers(25), batch_size=4, shuffle=True)


def _doubled(batch: list[torch.Tensor], by: float) -> torch.Tensor:
    return torch.stack(batch) * by


def alone_in_workers() -> Loader:
    return DataLoader(Numbers(25), batch_size=4, num_workers=2, collate_fn=functools.partial(_doubled, by=2.0))
