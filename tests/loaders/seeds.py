"""How scripts seed their random generators, for data.seeds. Loaders are sharded rightly."""

import random
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler, get_worker_info

from tests.loaders.mistaken import Wrapper
from tests.loaders.sound import Loader, Numbers, even, rank
from tests.loaders.streams import NoisyStream


class ByTorch(Numbers):
    """Augmented with torch's generator."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand(3)


class ByPython(Numbers):
    """Augmented with Python's, of which NumPy's global one is a cousin."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) * random.choice([-1.0, 1.0])


class ByItsOwn(Numbers):
    """Augmented with a generator of its own, which each worker gets a copy of."""

    def __init__(self, seed: Any) -> None:
        super().__init__()
        self.generator = random.Random(seed)

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) * self.generator.choice([-1.0, 1.0])


class ByIndex(Numbers):
    """Augmented by what a sample's own number seeds."""

    def __getitem__(self, index: int) -> torch.Tensor:
        own = torch.Generator().manual_seed(1000 * rank() + index)
        return super().__getitem__(index) + torch.rand(3, generator=own)


def _loader(dataset: Numbers, **more: Any) -> Loader:
    sampler: Sampler[int] = DistributedSampler(dataset)
    return DataLoader(dataset, batch_size=2, sampler=sampler, **more)


# Sound


def nothing_seeded() -> Loader:
    """And nothing drawn."""
    return even()


def all_seeded_alike() -> Loader:
    """For the same weights on all ranks; nothing is drawn in the loader."""
    random.seed(42)
    torch.manual_seed(42)
    return _loader(Numbers(), num_workers=2)


def seeded_by_rank() -> Loader:
    torch.manual_seed(42 + rank())
    return _loader(ByTorch(), num_workers=2)


def _by_torch_and_rank(worker: int) -> None:
    random.seed(torch.initial_seed() + 1000 * rank())


def workers_seeded_rightly() -> Loader:
    torch.manual_seed(42)
    return _loader(ByPython(), num_workers=2, worker_init_fn=_by_torch_and_rank)


def own_generator_for_workers() -> Loader:
    """The loader's generator, which is another on each rank, seeds its workers."""
    torch.manual_seed(42)
    return _loader(ByTorch(), num_workers=2, generator=torch.Generator().manual_seed(rank()))


def drawn_in_main() -> Loader:
    random.seed(42 + rank())
    return _loader(ByPython())


def drawn_by_index() -> Loader:
    torch.manual_seed(42)
    return _loader(ByIndex(), num_workers=2)


def stream_seeded_by_rank() -> Loader:
    torch.manual_seed(rank())
    return DataLoader(NoisyStream(), batch_size=2, num_workers=2)


# Mistaken


def ranks_repeat_in_workers() -> Loader:
    """A worker's seed is the loader's and its number: on all ranks the same."""
    torch.manual_seed(42)
    return _loader(ByTorch(), num_workers=2)


def ranks_repeat_in_main() -> Loader:
    random.seed(42)
    return _loader(ByPython())


def _constant(worker: int) -> None:
    random.seed(42)


def workers_repeat() -> Loader:
    torch.manual_seed(42 + rank())
    return _loader(ByPython(), num_workers=2, worker_init_fn=_constant)


def _by_worker(worker: int) -> None:
    random.seed(worker)


def epochs_and_ranks_repeat() -> Loader:
    torch.manual_seed(42 + rank())
    return _loader(ByPython(), num_workers=2, worker_init_fn=_by_worker)


def _by_worker_and_rank(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    random.seed(info.num_workers * rank() + worker)


def epochs_repeat() -> Loader:
    torch.manual_seed(42 + rank())
    return _loader(ByPython(), num_workers=2, worker_init_fn=_by_worker_and_rank)


def copied_generator() -> Loader:
    """Each worker of each epoch begins with the same copy; another on each rank."""
    torch.manual_seed(42 + rank())
    return _loader(ByItsOwn(rank()), num_workers=2)


def one_seeded_otherwise() -> Loader:
    torch.manual_seed(7 if rank() == 1 else 42)
    return _loader(Numbers())


def weights_differ() -> Loader:
    """Sound with DDP, which sends rank 0's weights to all."""
    torch.manual_seed(42 + rank())
    return _loader(Numbers())


def dropout_repeats() -> Loader:
    torch.manual_seed(42)
    return _loader(Numbers())


class Batches(Wrapper):
    """A loader of the user's own, in which no DataLoader is found."""

    def __init__(self, loader: Loader) -> None:
        super().__init__(loader)
        self.make = self._inner.__iter__
        del self._inner

    def __iter__(self) -> Any:
        return self.make()


def not_a_dataloader() -> Batches:
    return Batches(even())
