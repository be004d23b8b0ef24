"""Loaders that a job resumes from: right ones, and one mistake each. data.sampler says nothing against any of them."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler, Subset, get_worker_info

from tests.loaders.sound import Loader, Numbers, rank, world

LENGTH = 64
State = dict[str, Any]


class Resumable(DistributedSampler[Any]):
    """Its state is how many indices it has given."""

    def __init__(self, dataset: Dataset[Any] | None = None) -> None:
        super().__init__(dataset or Numbers(LENGTH))
        self.start = self.given = 0

    def order(self) -> list[int]:
        return list(super().__iter__())

    def __iter__(self) -> Iterator[Any]:
        start, self.start = self.start, 0
        for given, index in enumerate(self.order()[start:], start + 1):
            self.given = given
            yield index

    def state_dict(self) -> State:
        return {"given": self.given}

    def load_state_dict(self, state: State) -> None:
        self.start = state["given"]


class ForgetsPlace(Resumable):
    def load_state_dict(self, state: State) -> None:
        pass


class ForgetsSeed(Resumable):
    """Each process shuffles anew what the rank has."""

    def __init__(self) -> None:
        super().__init__()
        self.own = random.random()

    def order(self) -> list[int]:
        order = super().order()
        random.Random(self.own + self.epoch).shuffle(order)
        return order


class KeepsPlace(Resumable):
    """Also in the epoch after the resumed one."""

    def __iter__(self) -> Iterator[Any]:
        for given, index in enumerate(self.order()[self.start :], self.start + 1):
            self.given = given
            yield index


class CountsFromResume(Resumable):
    def __iter__(self) -> Iterator[Any]:
        start, self.start = self.start, 0
        for given, index in enumerate(self.order()[start:], 1):
            self.given = given
            yield index


class LacksKey(Resumable):
    def load_state_dict(self, state: State) -> None:
        self.start = state["place"]


class CountsLate(Sampler[list[int]]):
    """A batch counts when the next one is asked for."""

    def __init__(self) -> None:
        self.sampler: DistributedSampler[Any] = DistributedSampler(Numbers(LENGTH))
        self.start = self.given = 0

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.sampler) // 2

    def __iter__(self) -> Iterator[list[int]]:
        order, self.given, self.start = list(self.sampler), self.start, 0
        for at in range(2 * self.given, len(order), 2):
            yield order[at : at + 2]
            self.given += 1

    def state_dict(self) -> State:
        return {"given": self.given}

    def load_state_dict(self, state: State) -> None:
        self.start = state["given"]


class Unseeded(Sampler[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(self.length), self.length))


class OfWorkers(IterableDataset[Any]):
    """Each worker yields its part of the rank's part."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        own, number = (info.id, info.num_workers) if info else (0, 1)
        return (torch.tensor([float(index)]) for index in range(LENGTH)[rank() :: world()][own::number])


class Skips(DataLoader[Any]):
    """Its state is how many batches it has yielded."""

    start = given = 0

    def __iter__(self) -> Any:
        self.given, self.start = self.start, 0
        for at, batch in enumerate(super().__iter__()):
            if at >= self.given:
                self.given += 1
                yield batch

    def state_dict(self) -> State:
        return {"given": self.given}

    def load_state_dict(self, state: State) -> None:
        self.start = state["given"]


def _sampled(sampler: Any, **more: Any) -> Loader:
    return DataLoader(Numbers(LENGTH), batch_size=2, sampler=sampler, **more)


# Right


def by_sampler() -> Loader:
    return _sampled(Resumable())


def by_loader() -> Loader:
    dataset = Numbers(LENGTH)
    return Skips(dataset, batch_size=2, sampler=DistributedSampler(dataset), num_workers=1)


def by_skipping() -> dict[str, Loader]:
    return {"val": DataLoader(Numbers(4)), "train": _sampled(DistributedSampler(Numbers(LENGTH)))}


def torchs_default() -> Loader:
    """Whose seed is the same in each process, where nothing sets another one."""
    return DataLoader(Subset(Numbers(LENGTH), range(rank(), LENGTH, world())), batch_size=2, shuffle=True)


def stream() -> Loader:
    return DataLoader(OfWorkers(), batch_size=2, num_workers=2)


class Noise(IterableDataset[Any]):
    """Drawn anew each time."""

    def __iter__(self) -> Iterator[Any]:
        return (torch.tensor([random.random()]) for _ in range(LENGTH))


def noise() -> Loader:
    return DataLoader(Noise(), batch_size=2)


# Wrong


def epoch_reset() -> Loader:
    return _sampled(ForgetsPlace())


def order_changed() -> Loader:
    return _sampled(ForgetsSeed())


def left_out() -> Loader:
    """The sampler is ahead of the loop, by what the workers were asked for."""
    return _sampled(Resumable(), num_workers=2)


def repeated() -> Loader:
    return DataLoader(Numbers(LENGTH), batch_sampler=CountsLate())


def next_epoch() -> Loader:
    return _sampled(KeepsPlace())


def second_resume() -> Loader:
    return _sampled(CountsFromResume())


class Packs:
    """A stream of blocks packed from documents. Its state has the next document, and not what is left over."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[Any]:
        left: list[int] = []
        while self.next < 40:
            left += [self.next * world() + rank()] * (2 + self.next % 2)
            self.next += 1
            while len(left) >= 6:
                yield torch.tensor(left[:6])
                left = left[6:]
        self.next = 0

    def state_dict(self) -> State:
        return {"next": self.next}

    def load_state_dict(self, state: State) -> None:
        self.next = state["next"]


def buffer_lost() -> Any:
    return Packs()


def refused() -> Loader:
    return _sampled(LacksKey())


def unseeded() -> Loader:
    own = range(rank(), LENGTH, world())
    return DataLoader(Subset(Numbers(LENGTH), own), batch_size=2, sampler=Unseeded(len(own)))


def workers_change_order() -> Loader:
    return Skips(OfWorkers(), batch_size=2, num_workers=2)
