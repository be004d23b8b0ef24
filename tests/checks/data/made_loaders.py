"""Loaders for tests, and how they are read. Ranks are what samplers are told that they are."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler, get_worker_info

from preflight.check import UserCode
from preflight.checks.data.sampler import loaders
from preflight.checks.data.shared.readings import EPOCHS, Reading

CODE = UserCode("tests.checks.data.made_loaders", "distributed")
MADE = "tests/checks/data/made_loaders.py"
WORLD = 4


def read(loader: Any, **budget: Any) -> tuple[Reading, list[list[int]]]:
    spent = loaders.Budget(**{"seconds": 20, "samples": 10_000, "patience_s": 20, "world": WORLD, "end_s": 0, **budget})
    reading, ids = loaders.read(loader, "train", CODE, spent)
    return reading, [index.tolist() for index in ids]


def sound(loader: Any, **budget: Any) -> tuple[Reading, list[list[int]]]:
    reading, ids = read(loader, **budget)
    assert reading["mistake"] is None
    assert len(reading["epochs"]) == len(EPOCHS)
    return reading, ids


def line_of(words: str, path: str) -> int:
    with open(path) as file:
        return next(number for number, line in enumerate(file, 1) if words in line and "line_of" not in line)


class Numbers(Dataset[Any]):
    def __init__(self, length: int = 25) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, -index])


def distributed(length: int = 25, rank: int = 1, size: int = 4, **more: Any) -> DataLoader[Any]:
    dataset = Numbers(length)
    own = {key: more.pop(key) for key in ("shuffle", "drop_last", "seed") if key in more}
    return DataLoader(dataset, size, sampler=DistributedSampler(dataset, WORLD, rank, **own), **more)


class Batches(Sampler[Any]):
    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.epochs = batches, list[int]()

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class Stream(IterableDataset[Any]):
    def __init__(self, length: int = 10, *, sharded: bool = True) -> None:
        self.length, self.sharded, self.epoch = length, sharded, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info() if self.sharded else None
        first, step = (info.id, info.num_workers) if info else (0, 1)
        order = list(range(self.length))
        random.Random(self.epoch).shuffle(order)
        for number in order[first::step]:
            yield torch.tensor([number, number])


class Own:
    """A loader that is no DataLoader."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches
