"""What workers of real DataLoaders draw from: on two made-up ranks, whose seeds only differ where a case says so."""

import json
import multiprocessing
import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from preflight.check import UserCode
from preflight.checks.data.seeds import rng_draws
from preflight.checks.data.seeds.repeated_draws import repeats
from preflight.checks.data.shared import generators
from tests import running

pytestmark = pytest.mark.process

numpy: Any = sys.modules.get("numpy")
CODE = UserCode(__name__, "made")
RANK = 0
Made = Callable[[], Any]


class Plain(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return float(index)

    def __len__(self) -> int:
        return 8


class ByTorch(Plain):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(2)


class ByPython(Plain):
    def __getitem__(self, index: int) -> Any:
        return random.random()


class ByNumPy(Plain):
    def __getitem__(self, index: int) -> Any:
        return float(numpy.random.rand())


class Own(Plain):
    """Whose generator each worker has a copy of."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __getitem__(self, index: int) -> Any:
        return self.rng.random()


class ByEpoch(Own):
    def set_epoch(self, epoch: int) -> None:
        self.rng = random.Random(10 * RANK + epoch)


class Lazy(Plain):
    """Makes its generator at the first sample."""

    def __init__(self, seed: Callable[[], int]) -> None:
        self.seed = seed
        self.rng: random.Random | None = None

    def __getitem__(self, index: int) -> Any:
        self.rng = self.rng or random.Random(self.seed())
        return self.rng.random()


class ByIndex(Plain):
    """Seeds each sample by its number and epoch."""

    def __getitem__(self, index: int) -> Any:
        random.seed(index + 1000 * RANK)
        return random.random()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield torch.rand(1)


class SeededStream(IterableDataset[Any]):
    """Seeds by rank, worker and epoch when it begins."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        random.seed(100 * RANK + 10 * info.id + self.epoch)
        yield from (random.random() for _ in range(8))


class HalfAStream(IterableDataset[Any]):
    """Of which the second worker has nothing."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        return iter([torch.rand(1)] if info is None or not info.id else [])


class Wrapper:
    def __init__(self, loader: Any) -> None:
        self.inner = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)


def constant(worker: int) -> None:
    random.seed(42)


def by_worker(worker: int) -> None:
    random.seed(worker)


def by_worker_and_rank(worker: int) -> None:
    """Worker 1 of rank 0 is as worker 0 of rank 1."""
    random.seed(worker + RANK)


def by_torch(worker: int) -> None:
    random.seed(torch.initial_seed())


def of_the_dataset(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.rng = random.Random(info.seed)


def numpy_constant(worker: int) -> None:
    numpy.random.seed(42)


def numpy_by_torch(worker: int) -> None:
    numpy.random.seed(torch.initial_seed() % 2**32)


def drawing_collate(samples: list[Any]) -> Any:
    return torch.rand(1)


def failing_collate(samples: list[Any]) -> Any:
    torch.rand(1)
    raise ValueError("a batch of one")


def raises(worker: int) -> None:
    raise RuntimeError("no such shard")


def waits(worker: int) -> None:
    threading.Event().wait(60)


def loader(dataset: Any, init: Any = None, workers: int = 2, **more: Any) -> Any:
    return DataLoader(dataset, num_workers=workers, worker_init_fn=init, **more)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def read(make: Made, rank: int, seed: int, patience_s: float = 30.0) -> rng_draws.Draws:
    """As on a rank whose function seeds all with `seed` and then makes the loader."""
    global RANK
    RANK = rank
    before = generators.snapshot()
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        made = make()
        return rng_draws.read(made, "", CODE, generators.snapshot(), patience_s)
    finally:
        generators.restore(before)


def found(make: Made, *, alike: bool = False) -> set[tuple[str, str]]:
    """What repeats, and in which generator. `alike`: both ranks seed alike."""
    by_rank = {rank: read(make, rank, 42 if alike else 42 + rank) for rank in (0, 1)}
    assert not [of_rank["unseen"] for of_rank in by_rank.values() if of_rank["unseen"]]
    expected = [max(of_rank["workers"], 1) * of_rank["epochs"] for of_rank in by_rank.values()]
    assert [len(of_rank["looks"]) for of_rank in by_rank.values()] == expected
    return {(of_rank.kind, name) for of_rank in repeats(by_rank, {}) for name in of_rank.generators}


ALL = ("workers", "ranks", "epochs")
SOUND: dict[str, Made] = {
    "nothing drawn, one constant seed": lambda: loader(Plain(), constant),
    "torch": lambda: loader(ByTorch()),
    "Python, seeded by torch's worker": lambda: loader(ByPython()),
    "worker_init_fn by torch.initial_seed()": lambda: loader(ByPython(), by_torch),
    "own, made in worker_init_fn": lambda: loader(Own(random.Random(1)), of_the_dataset),
    "own, made at the first sample": lambda: loader(Lazy(torch.initial_seed)),
    "a stream": lambda: loader(Stream()),
    "the rank's own process": lambda: loader(ByTorch(), workers=0),
    "its own generator of the rank's own process": lambda: loader(Own(random.Random(RANK)), workers=0),
    "persistent workers": lambda: loader(ByPython(), persistent_workers=True),
}
SOUND_ALIKE: dict[str, Made] = {
    "nothing drawn": lambda: loader(Plain()),
    "seeded by the sample": lambda: loader(ByIndex()),
    "a stream that seeds itself": lambda: loader(SeededStream()),
    "the loader's generator by rank": lambda: loader(ByTorch(), generator=generator(RANK)),
}
REPEATED: dict[str, tuple[Made, set[tuple[str, str]]]] = {
    "a constant": (lambda: loader(ByPython(), constant), {(kind, "Python") for kind in ALL}),
    "the worker's number": (lambda: loader(ByPython(), by_worker), {("ranks", "Python"), ("epochs", "Python")}),
    "worker + rank": (lambda: loader(ByPython(), by_worker_and_rank), {("ranks", "Python"), ("epochs", "Python")}),
    "a copied generator": (lambda: loader(Own(random.Random(1))), {(kind, "Own.rng") for kind in ALL}),
    "a copied generator by rank": (
        lambda: loader(Own(random.Random(RANK))),
        {("workers", "Own.rng"), ("epochs", "Own.rng")},
    ),
    "one worker's copy": (lambda: loader(Own(random.Random(RANK)), workers=1), {("epochs", "Own.rng")}),
    "made anew by set_epoch": (lambda: loader(ByEpoch(None)), {("workers", "ByEpoch.rng")}),
    "made at the first sample": (lambda: loader(Lazy(lambda: 1)), {(kind, "Lazy.rng") for kind in ALL}),
    "persistent workers": (
        lambda: loader(ByPython(), constant, persistent_workers=True),
        {("workers", "Python"), ("ranks", "Python")},
    ),
    "own alike": (lambda: loader(Own(random.Random(1)), workers=0), {("ranks", "Own.rng")}),
    "the loader's generator": (lambda: loader(ByTorch(), generator=generator(1)), {("ranks", "torch")}),
}
REPEATED_ALIKE: dict[str, tuple[Made, set[tuple[str, str]]]] = {
    "torch": (lambda: loader(ByTorch()), {("ranks", "torch")}),
    "by torch.initial_seed()": (lambda: loader(ByPython(), by_torch), {("ranks", "Python")}),
    "in collate_fn": (lambda: loader(Plain(), collate_fn=drawing_collate), {("ranks", "torch")}),
    "in a collate_fn of more": (lambda: loader(Plain(), collate_fn=failing_collate), {("ranks", "torch")}),
    "a stream": (lambda: loader(Stream()), {("ranks", "torch")}),
    "the rank's own process": (lambda: loader(ByPython(), workers=0), {("ranks", "Python")}),
    "a loader of his own around it": (lambda: Wrapper(loader(ByTorch())), {("ranks", "torch")}),
}
WITH_NUMPY: dict[str, tuple[Made, set[tuple[str, str]]]] = {
    "seeded by torch's worker": (lambda: loader(ByNumPy()), set()),
    "by torch.initial_seed()": (lambda: loader(ByNumPy(), numpy_by_torch), set()),
    "a constant": (lambda: loader(ByNumPy(), numpy_constant), {(kind, "NumPy") for kind in ALL}),
    "default_rng": (lambda: loader(Own(numpy.random.default_rng(1))), {(kind, "Own.rng") for kind in ALL}),
    "RandomState": (lambda: loader(Own(numpy.random.RandomState(1))), {(kind, "Own.rng") for kind in ALL}),
}


@pytest.mark.parametrize("case", SOUND)
def test_of_sound_workers_nothing_repeats(case: str) -> None:
    assert found(SOUND[case]) == set()


@pytest.mark.parametrize("case", SOUND_ALIKE)
def test_ranks_that_are_seeded_alike_may_be_sound(case: str) -> None:
    assert found(SOUND_ALIKE[case], alike=True) == set()


@pytest.mark.parametrize("case", REPEATED)
def test_what_repeats_is_found_with_its_generator(case: str) -> None:
    make, expected = REPEATED[case]
    assert found(make) == expected


@pytest.mark.parametrize("case", REPEATED_ALIKE)
def test_what_repeats_since_ranks_are_seeded_alike_is_found(case: str) -> None:
    make, expected = REPEATED_ALIKE[case]
    assert found(make, alike=True) == expected


@pytest.mark.more
def test_numpys_generators() -> None:
    """In a process that has it."""
    done = running.run_to_end([sys.executable, "-m", __name__], running.environment(), running.ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {case: sorted(map(list, expected)) for case, (_, expected) in _expected().items()}


def _expected() -> dict[str, tuple[Made, set[tuple[str, str]]]]:
    return WITH_NUMPY


def test_a_streams_worker_may_have_nothing() -> None:
    looks = read(lambda: loader(HalfAStream()), 0, 42)["looks"]
    assert [(look["epoch"], look["worker"]) for look in looks] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_begins_where_the_function_ended_and_all_generators_stay_as_they_are(workers: int) -> None:
    """data.sampler has read the loader before, and not as much on each rank."""
    own = generator(3)
    made = loader(ByTorch(), workers=workers, generator=own)
    after = generators.snapshot()
    first = rng_draws.read(made, "", CODE, after, 30.0)
    torch.rand(7, generator=own)
    random.random()
    torch.rand(7)
    moved = generators.digests({"made": made})
    assert rng_draws.read(made, "", CODE, after, 30.0) == first
    assert generators.digests({"made": made}) == moved


def test_his_functions_are_named_with_their_lines() -> None:
    seen = read(lambda: loader(ByPython(), constant), 0, 42)
    assert seen["init"] == {"name": "constant", "file": _here(), "line": constant.__code__.co_firstlineno}
    assert (seen["dataset"]["name"], seen["dataset"]["file"]) == ("ByPython", _here())


def _here() -> str:
    return str(Path(__file__).relative_to(Path.cwd()))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: loader(ByTorch(), raises), "in raises()"),
        (lambda: [1, 2], "a list is not a DataLoader, and contains none"),
        (lambda: loader([]), "list index out of range"),
    ],
)
def test_what_cannot_be_seen_is_told(make: Made, says: str) -> None:
    seen = read(make, 0, 42)
    assert says in seen["unseen"] and seen["looks"] == []


def test_stuck_workers_are_ended() -> None:
    seen = read(lambda: loader(ByTorch(), waits), 0, 42, patience_s=3.0)
    assert "in waits()" in seen["unseen"] and seen["looks"] == []
    for worker in multiprocessing.active_children():
        worker.join(10.0)  # it was told to end; else it would be there for a minute
    assert not multiprocessing.active_children()


def test_no_worker_is_started_when_the_time_is_spent() -> None:
    assert "spent" in read(lambda: loader(ByTorch(), waits), 0, 42, patience_s=0.0)["unseen"]


def test_spawned_workers_get_one_watch() -> None:
    """What their worker_init_fn has seen is known to their collate_fn."""
    watch = rng_draws.DrawWatch(loader(Plain(), constant))
    begin, collate = pickle.loads(pickle.dumps((watch.begin, watch.collate)))
    assert begin.__self__ is collate.__self__


if __name__ == "__main__":
    from tests.checks.data import test_draws as this  # workers and pickles know it by this name

    print(json.dumps({case: sorted(map(list, this.found(make))) for case, (make, _) in this.WITH_NUMPY.items()}))
