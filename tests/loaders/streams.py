"""Streams, and loaders of the user's own, that are right on any number of ranks: nothing above info may be said of
them."""

import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler, get_worker_info

from tests.loaders.sound import WHOLE, Loader, Numbers, rank, world


class Stream(IterableDataset[torch.Tensor]):
    """Cut by ranks, and by the workers of each."""

    def __init__(self, length: int = 48) -> None:
        self.length = length

    def numbers(self) -> range:
        worker = get_worker_info()
        workers, own = (worker.num_workers, worker.id) if worker else (1, 0)
        return range(rank() * workers + own, self.length, world() * workers)

    def __iter__(self) -> Iterator[Any]:
        for number in self.numbers():
            yield torch.full((3,), float(number))


class Shuffled(Stream):
    def __init__(self, length: int = 48) -> None:
        super().__init__(length)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        numbers = list(self.numbers())
        random.Random(self.epoch).shuffle(numbers)
        yield from ({"text": f"line {number}", "label": number % 2} for number in numbers)


def stream() -> Loader:
    return DataLoader(Stream(), batch_size=2)


def stream_in_workers() -> Loader:
    return DataLoader(Shuffled(), batch_size=2, num_workers=2)


class InBatches(Shuffled):
    def __iter__(self) -> Iterator[Any]:
        lines = list(super().__iter__())
        for start in range(0, len(lines), 4):
            yield [line["text"] for line in lines[start : start + 4]]


def stream_of_batches() -> Loader:
    return DataLoader(InBatches(), batch_size=None)


class NoisyStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        return (batch + torch.rand(3) for batch in super().__iter__())


def augmented_stream() -> Loader:
    torch.manual_seed(rank())
    return DataLoader(NoisyStream(), batch_size=2)


class Labels(Stream):
    """Few samples are unlike any other."""

    def __iter__(self) -> Iterator[Any]:
        return iter([number // world() % 5 for number in self.numbers()])


def equal_contents() -> Loader:
    return DataLoader(Labels(480), batch_size=4)


class Endless(Stream):
    """It has no end and no length."""

    def __iter__(self) -> Iterator[Any]:
        number = rank()
        while True:
            yield torch.tensor([number, number])
            number += world()


def endless() -> Loader:
    return DataLoader(Endless(), batch_size=4)


class Windows:
    """As nanoGPT draws: places in one long text, without end, and some are drawn twice."""

    def __init__(self) -> None:
        self.text = torch.arange(3000)
        self.generator = torch.Generator().manual_seed(1337 + rank())

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            starts = torch.randint(len(self.text) - 8, (4,), generator=self.generator)
            yield torch.stack([self.text[start : start + 8] for start in starts])


def windows() -> Windows:
    return Windows()


# Loaders of the user's own


class OwnLoader:
    """No DataLoader at all."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return WHOLE // 2 // world()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        order = list(range(WHOLE))
        random.Random(self.epoch).shuffle(order)
        mine = order[rank() :: world()]
        for start in range(0, len(mine), 2):
            numbers = mine[start : start + 2]
            yield {"inputs": torch.tensor(numbers), "name": [f"file-{number}" for number in numbers]}


def own_loader() -> OwnLoader:
    return OwnLoader()


class Stateful(DataLoader[Any]):
    """As torchdata's: it can be saved in the middle of an epoch."""

    yielded = 0

    def __iter__(self) -> Any:
        for self.yielded, batch in enumerate(super().__iter__()):
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"yielded": self.yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.yielded = state["yielded"]


def stateful() -> Loader:
    dataset = Numbers()
    sampler: Sampler[int] = DistributedSampler(dataset)
    return Stateful(dataset, batch_size=2, sampler=sampler)


class Scattered:
    """The first rank reads, and sends each its rows: the ranks go in step."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in range(len(self)):
            rows = torch.zeros(2 * world())
            if rank() == 0:
                rows += torch.arange(len(rows)) + step * len(rows)
            dist.broadcast(rows, 0)
            yield rows[2 * rank() :][:2]


def scattered() -> Scattered:
    return Scattered()
