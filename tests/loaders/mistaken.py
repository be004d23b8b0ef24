"""Loaders that are wrong: each function has one mistake. Where one rank makes it, that is rank 1."""

import os
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from tests.loaders.sound import Batches, EachNth, Endless, Loader, Numbers, even, for_validation, rank, world
from tests.loaders.streams import Stream


def sampled(sampler: Sampler[int], dataset: Dataset[Any] | None = None, **more: Any) -> Loader:
    return DataLoader(dataset or Numbers(), batch_size=2, sampler=sampler, **more)


# The function


def returns_none() -> None:
    even()


def returns_generator() -> Iterator[Any]:
    yield from even()


def returns_dataset() -> Numbers:
    return Numbers()


def returns_iterator() -> Any:
    return iter(even())


def returns_no_loaders() -> list[Loader]:
    return []


def raises_everywhere() -> Loader:
    dataset = Numbers()
    return DataLoader(dataset, shuffle=True, sampler=DistributedSampler(dataset))


def raises_on_one() -> Loader:
    if rank() == 1:
        raise FileNotFoundError("no shard train-0001.tar")
    return even()


def one_loader_less() -> list[Loader]:
    return [even(), for_validation()] if rank() != 1 else [even()]


def prints_everywhere() -> Loader:
    print("loading the data")
    print("ready")
    return even()


def writes_everywhere() -> Loader:
    with open(os.path.join(os.environ.get("TEST_FOLDER", "."), "index.json"), "w") as file:
        file.write("{}")
    return even()


# No sampler, or a wrong one


def no_sampler() -> Loader:
    return DataLoader(Numbers(), batch_size=2)


def no_sampler_shuffled() -> Loader:
    """In an order of each rank's own."""
    return DataLoader(Numbers(), batch_size=2, shuffle=True)


def no_sampler_shuffled_alike() -> Loader:
    torch.manual_seed(0)
    return DataLoader(Numbers(), batch_size=2, shuffle=True)


def all_are_rank_0() -> Loader:
    dataset = Numbers()
    return sampled(DistributedSampler(dataset, num_replicas=world(), rank=0), dataset)


def one_is_rank_0() -> Loader:
    dataset = Numbers()
    return sampled(DistributedSampler(dataset, rank=0 if rank() == 1 else rank()), dataset)


def too_many_replicas() -> Loader:
    dataset = Numbers()
    return sampled(DistributedSampler(dataset, num_replicas=2 * world(), rank=rank()), dataset)


def too_few_replicas() -> Loader:
    """As many as GPUs of one node, of which there are several."""
    dataset = Numbers()
    return sampled(DistributedSampler(dataset, num_replicas=2, rank=rank() % 2), dataset)


def seed_by_rank() -> Loader:
    dataset = Numbers()
    return sampled(DistributedSampler(dataset, seed=rank()), dataset)


def seed_of_one() -> Loader:
    dataset = Numbers()
    return sampled(DistributedSampler(dataset, seed=7 if rank() == 1 else 0), dataset)


class RepeatsAnother(EachNth):
    """It knows nothing of ranks but this: 1 is taken for 0."""

    def __iter__(self) -> Iterator[int]:
        order = list(self.samples)
        random.Random(self.epoch).shuffle(order)
        return iter(order[0 if rank() == 1 else rank() :: world()])


def repeats_another() -> Loader:
    return sampled(RepeatsAnother(range(24)))


class EndlessAlike(Endless):
    """All of it on each rank."""

    def __iter__(self) -> Iterator[int]:
        return self.order()


def endless_alike() -> Loader:
    return sampled(EndlessAlike())


class Overlapping(EachNth):
    """Each rank's block begins 2 samples before the end of the one before."""

    def __iter__(self) -> Iterator[int]:
        order = list(self.samples)
        random.Random(self.epoch).shuffle(order)
        own = len(order) // world()
        return iter([order[place] for place in range(rank() * own - 2, (rank() + 1) * own)])

    def __len__(self) -> int:
        return len(self.samples) // world() + 2


def overlapping() -> Loader:
    return sampled(Overlapping(range(24)))


def split_by_rank() -> Loader:
    """Each rank draws a split of its own."""
    parts = torch.utils.data.random_split(Numbers(240), [48, 192], torch.Generator().manual_seed(rank()))
    return DataLoader(parts[0], batch_size=2, shuffle=True)


class LeavesOut(EachNth):
    """The second half, in every epoch."""

    def __init__(self, length: int) -> None:
        super().__init__(range(length // 2))


def leaves_out() -> Loader:
    return sampled(LeavesOut(48), Numbers(48))


# Epochs


class Deaf(DistributedSampler[Any]):
    def set_epoch(self, epoch: int) -> None:
        pass


def set_epoch_ignored() -> Loader:
    dataset = Numbers()
    return sampled(Deaf(dataset), dataset)


class SameOrder(Sampler[int]):
    """Shuffled once for ever."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(24))
        random.Random(0).shuffle(order)
        return iter(order[rank() :: world()])

    def __len__(self) -> int:
        return len(range(rank(), 24, world()))


def same_order() -> Loader:
    return sampled(SameOrder())


class Wrapper:
    """It passes on everything but set_epoch."""

    def __init__(self, loader: Loader) -> None:
        self._inner = loader

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._inner)


def wrapped() -> Wrapper:
    return Wrapper(even())


class WrappedSampler(Sampler[int]):
    def __init__(self, sampler: Sampler[int]) -> None:
        self._inner = sampler

    def __iter__(self) -> Iterator[int]:
        return iter(self._inner)

    def __len__(self) -> int:
        return 24 // world()


def wrapped_sampler() -> Loader:
    dataset = Numbers()
    return sampled(WrappedSampler(DistributedSampler(dataset)), dataset)


# Batches


def a_batch_more() -> Loader:
    """25 samples are dealt out and not evened out: rank 0 has one more."""
    return DataLoader(Numbers(25), batch_size=1, sampler=EachNth(range(25)))


class Files(Stream):
    """Files are dealt out, of which there is one less than ranks: the last has none."""

    def __iter__(self) -> Iterator[Any]:
        for file in range(world() - 1)[rank() :: world()]:
            for line in range(8):
                yield torch.tensor([file, line])


def no_batches() -> Loader:
    return DataLoader(Files(), batch_size=2)


class UnlikeSizes(Batches):
    """Rank 1 takes 4 samples where the others take 2."""

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(self.length))
        random.Random(self.epoch).shuffle(order)
        sizes = [4 if number == 1 else 2 for number in range(world())]
        start = sum(sizes[: rank()])
        for step in range(len(self)):
            first = start + step * sum(sizes)
            yield order[first : first + sizes[rank()]]

    def __len__(self) -> int:
        return self.length // (2 * world() + 2)


def unlike_sizes() -> Loader:
    length = 6 * (2 * world() + 2)
    return DataLoader(Numbers(length), batch_sampler=UnlikeSizes(length, 2, wrap=False))


# Datasets


def shorter_on_one() -> Loader:
    dataset = Numbers(23 if rank() == 1 else 24)
    return sampled(DistributedSampler(dataset), dataset)


def other_order_on_one() -> Loader:
    """Its files as os.listdir gave them, which sorts nothing."""
    return _of_files(sorted(_names(), reverse=rank() == 1))


def other_order_everywhere() -> Loader:
    """A set of file names: their hashes are drawn by each process."""
    return _of_files(sorted(_names(), key=lambda name: random.Random(f"{rank()} {name}").random()))


def _names() -> list[str]:
    return [f"image-{number:02}.png" for number in range(24)]


class OfFiles(Numbers):
    def __init__(self, names: list[str]) -> None:
        super().__init__(len(names))
        self.names = names

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(list(self.names[index].encode())), index % 2


def _of_files(names: list[str]) -> Loader:
    dataset = OfFiles(names)
    return sampled(DistributedSampler(dataset), dataset)


class Unsharded(Stream):
    def numbers(self) -> range:
        return range(24)


def unsharded() -> Loader:
    return DataLoader(Unsharded(), batch_size=2)


class WorkersRepeat(Stream):
    def numbers(self) -> range:
        return range(rank(), 24, world())


def workers_repeat() -> Loader:
    return DataLoader(WorkersRepeat(), batch_size=2, num_workers=2)
