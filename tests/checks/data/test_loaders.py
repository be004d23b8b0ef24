"""One loader is read for two epochs: which way, and by its indices."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from preflight.checks.data.sampler import indices, loaders
from preflight.checks.data.shared import waiting
from preflight.checks.data.shared.waiting import Limit
from tests.checks.data.made_loaders import MADE, WORLD, Batches, Numbers, Stream, distributed, line_of, sound

# Which way


class StatefulDataLoader(DataLoader[Any]):
    """It is torchdata's by its module only."""

    def __iter__(self) -> Any:
        return super().__iter__()


class Wrapping(DataLoader[Any]):
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch * 2


def test_who_iterates_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = sound(type("Named", (DataLoader,), {})(Numbers(), 4))
    assert (plain["loader"], plain["known_by"]) == ("Named", "index")
    wrapping, _ = sound(Wrapping(Numbers(), 4))
    assert (wrapping["known_by"], wrapping["epochs"][0]["samples"]) == ("content", 25)
    assert sound(StatefulDataLoader(Numbers(), 4))[0]["known_by"] == "content"
    monkeypatch.setattr(StatefulDataLoader.__iter__, "__module__", "torchdata.stateful_dataloader.stateful_dataloader")
    assert sound(StatefulDataLoader(Numbers(), 4))[0]["known_by"] == "index"


def test_a_shard_that_holds_no_loader_is_read_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Accelerate's were before 1.0. (Others: test_wrappers.py.)"""
    monkeypatch.setattr(Wrapping.__iter__, "__module__", "accelerate.data_loader")
    monkeypatch.setattr(Wrapping.__iter__, "__qualname__", "DataLoaderShard.__iter__")
    assert sound(Wrapping(Numbers(), 4))[0]["known_by"] == "content"


def test_each_set_epoch_is_called_once_and_named() -> None:
    class Set:
        def __init__(self) -> None:
            self.epochs = list[int]()

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    class Data(Set, Numbers):
        def __init__(self) -> None:
            Set.__init__(self)
            Numbers.__init__(self)

    class Loader(Set, DataLoader[Any]):
        def __init__(self, *some: Any, **more: Any) -> None:
            Set.__init__(self)
            DataLoader.__init__(self, *some, **more)

    data, sampler = Data(), Batches([1, 2, 3])
    part = Subset(data, range(20))
    loader = Loader(part, batch_sampler=BatchSampler(sampler, 2, drop_last=False))
    reading, _ = sound(loader)
    assert reading["set_epoch"] == ["loader", "loader.batch_sampler.sampler", "loader.dataset.dataset"]
    assert data.epochs == sampler.epochs == loader.epochs == [0, 1]


# By index


def test_a_distributed_sampler() -> None:
    reading, ids = sound(distributed(seed=3))
    samplers: list[Sampler[int]] = [DistributedSampler(Numbers(), WORLD, 1, seed=3) for _ in range(2)]
    samplers[1].set_epoch(1)  # type: ignore[attr-defined]
    assert ids == [list(sampler) for sampler in samplers]
    first = reading["epochs"][0]
    assert {key: first[key] for key in ("whole", "batches", "samples", "distinct", "sizes", "last", "times")} == {
        "whole": True, "batches": 2, "samples": 7, "distinct": 7, "sizes": {"4": 1}, "last": 3, "times": {"1": 7},
    }  # fmt: skip
    assert sorted(index["id"] for index in first["shown"]) == sorted(ids[0])
    assert {index["id"]: index["place"] for index in first["shown"]} == {
        index: place for place, index in enumerate(ids[0])
    }
    assert first["order"] != reading["epochs"][1]["order"]
    assert not first["ascending"]
    known = (
        "name", "known_by", "loader", "sampler", "by_design", "file", "dataset", "length", "batches", "drop_last",
        "workers", "num_replicas", "replica", "seed", "shuffle", "set_epoch", "loaded",
    )  # fmt: skip
    assert [reading[key] for key in known] == [  # type: ignore[literal-required]
        "train", "index", "DataLoader", "DistributedSampler", "", None, "Numbers", 25, 2, False,
        0, 4, 1, 3, True, ["loader.sampler"], [4, 3],
    ]  # fmt: skip


def test_ranks_with_the_same_order_have_the_same_digest_and_others_do_not() -> None:
    orders = [sound(distributed(rank=rank))[0]["epochs"][0]["order"] for rank in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize(
    ("more", "ids", "drop_last"),
    [
        ({"shuffle": False}, [1, 5, 9, 13, 17, 21, 0], False),
        ({"shuffle": False, "drop_last": True}, [1, 5, 9, 13, 17, 21], True),
    ],
)
def test_an_unshuffled_one(more: Any, ids: list[int], drop_last: bool) -> None:
    reading, found = sound(distributed(**more))
    assert found == [ids, ids]
    assert (reading["drop_last"], reading["shuffle"]) == (drop_last, False)
    assert reading["epochs"][0]["ascending"] is (ids[-1] > 0)
    assert reading["epochs"][0]["order"] == reading["epochs"][1]["order"]


def test_the_loader_drops_a_batch() -> None:
    dataset = Numbers(10)
    reading, ids = sound(DataLoader(dataset, 4, drop_last=True))
    epoch = reading["epochs"][0]
    assert ids[0] == list(range(10))  # also what is dropped: all ranks' are held against the dataset
    assert (epoch["batches"], epoch["samples"], epoch["dropped"]) == (2, 8, 2)
    assert (epoch["sizes"], epoch["last"], [index["id"] for index in epoch["shown"] if index["id"] > 7]) == (
        {"4": 1},
        4,
        [],
    )
    assert (reading["drop_last"], reading["sampler"], reading["num_replicas"]) == (True, "SequentialSampler", None)
    assert (reading["epochs"][0]["ascending"], reading["set_epoch"]) == (True, [])


class Repeating(Batches):
    """Each sample three times, as DeiT's and timm's say that they do."""

    def __init__(self, name: str) -> None:
        super().__init__([number for number in range(5) for _ in range(3)])
        setattr(self, name, 3)


@pytest.mark.parametrize(
    ("make", "by_design"),
    [
        (lambda _: WeightedRandomSampler([1.0] * 25, 10), "repeats"),
        (lambda _: WeightedRandomSampler([1.0] * 25, 10, replacement=False), "subset"),
        (lambda _: SubsetRandomSampler(range(5)), "subset"),
        (lambda data: RandomSampler(data, num_samples=5), "subset"),
        (lambda data: RandomSampler(data, replacement=True), "repeats"),
        (lambda data: RandomSampler(data, num_samples=40), "repeats"),
        (lambda data: RandomSampler(data), ""),
        (lambda _: range(3), ""),
        (lambda _: Repeating("repetitions"), "augments"),
        (lambda _: Repeating("num_repeats"), "augments"),
    ],
)
def test_what_a_sampler_is_for(make: Any, by_design: str) -> None:
    dataset = Numbers()
    reading, _ = sound(DataLoader(dataset, 2, sampler=make(dataset)))
    assert (reading["known_by"], reading["by_design"]) == ("index", by_design)


def test_a_batch_sampler_of_the_users_own() -> None:
    batches = Batches([[3, 1, 2], torch.tensor([4, 5]), (6, 7), range(8, 10), [torch.tensor(-1)]])
    reading, ids = sound(DataLoader(Numbers(), batch_sampler=batches))
    assert ids[0] == [3, 1, 2, 4, 5, 6, 7, 8, 9, 24], "index -1 is the last sample"
    first = reading["epochs"][0]
    assert (first["sizes"], first["last"], reading["loaded"]) == ({"3": 1, "2": 3}, 1, [3, 2, 2])
    assert (reading["set_epoch"], batches.epochs) == (["loader.batch_sampler"], [0, 1])
    assert (reading["sampler"], reading["file"], reading["line"]) == ("Batches", MADE, line_of("class Batches(", MADE))
    assert reading["batches"] is None


def test_samples_without_batches() -> None:
    """What stands at an index may be a batch by itself: no size is known."""
    reading, ids = sound(DataLoader(Numbers(5), batch_size=None))
    assert ids[0] == [0, 1, 2, 3, 4]
    first = reading["epochs"][0]
    assert (first["batches"], first["sizes"], first["last"], reading["loaded"]) == (5, {}, 0, [0, 0, 0])


def test_lists_of_indices_without_a_batch_sampler() -> None:
    """As torch's documentation has it for datasets that load a batch at once."""
    sampler = BatchSampler(DistributedSampler(range(9), 2, 0, shuffle=False), 2, drop_last=True)  # type: ignore[arg-type]

    class Wide(Numbers):
        def __getitem__(self, index: Any) -> Any:
            return torch.tensor(index)

    reading, ids = sound(DataLoader(Wide(9), batch_size=None, sampler=sampler))
    assert (ids[0], reading["epochs"][0]["samples"], reading["epochs"][0]["dropped"]) == ([0, 2, 4, 6, 8], 4, 1)
    assert (reading["num_replicas"], reading["replica"]) == (2, 0)
    assert reading["set_epoch"] == ["loader.sampler.sampler"]
    assert "" not in reading["content"].values()


def test_a_dataset_that_takes_lists_of_indices_only_is_not_asked_for_one() -> None:
    class Rows(Numbers):
        def __getitem__(self, index: Any) -> Any:
            return torch.tensor(index)[:, None]

    sampler = BatchSampler(range(9), 3, drop_last=False)
    reading, _ = sound(DataLoader(Rows(9), batch_size=None, sampler=sampler))
    assert len(reading["content"]) == 8

    class Many(Dataset[Any]):
        def __len__(self) -> int:
            return 9

        def __getitems__(self, places: list[int]) -> Any:
            return [torch.tensor(place) for place in places]

    reading, _ = sound(DataLoader(Many(), 3))
    assert len(set(reading["content"].values())) == 8


def test_ids_that_are_no_indices() -> None:
    """They are known by their digests: nothing says which there should be."""

    class Named(Numbers):
        def __getitem__(self, index: Any) -> Any:
            return torch.zeros(2)

    keys = Batches([["a", "b"], [("a", 1), 3], [2**70]])
    reading, ids = sound(DataLoader(Named(), batch_sampler=keys))
    assert (reading["known_by"], ids) == ("content", [])
    assert reading["epochs"][0]["distinct"] == 5
    assert 3 in {epoch["id"] for epoch in reading["epochs"][0]["shown"]}, "a number is the same with others beside it"
    assert reading["content"] == {}


def test_an_empty_sampler() -> None:
    reading, ids = sound(DataLoader(Numbers(), batch_sampler=Batches([])))
    assert ids == [[], []]
    assert (reading["epochs"][0]["batches"], reading["epochs"][0]["last"], reading["loaded"]) == (0, 0, [])


def test_an_endless_sampler() -> None:
    endless: Any = itertools.cycle(range(7))
    reading, ids = sound(DataLoader(Numbers(), 2, sampler=endless), samples=1000)
    assert ids == []
    assert [(epoch["whole"], epoch["samples"]) for epoch in reading["epochs"]] == [(False, 50)] * 2, "twice the dataset"
    assert reading["by_design"] == "endless"
    assert reading["loaded"] == [2, 2, 2]


def test_a_slow_sampler_is_not_a_stuck_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alarm clock is for one index where these come slowly, and for many where they come quickly."""
    on, asked = waiting.Waiting.on, list[str]()

    def counted(self: waiting.Waiting, what: str) -> Any:
        asked.append(what)
        return on(self, what)

    monkeypatch.setattr(waiting.Waiting, "on", counted)
    sound(distributed(length=2000))
    quick = sum("index of epoch 0" in what for what in asked)
    asked.clear()
    monkeypatch.setattr(indices, "AT_ONCE_S", -1.0)
    sound(distributed(length=2000))
    slow = sum("index of epoch 0" in what for what in asked)
    assert quick < 10
    assert slow > 125, "one for each batch"


@pytest.mark.parametrize("make", [distributed, lambda: DataLoader(Stream(), 4)])
def test_no_time_is_left(make: Any) -> None:
    reading, ids = sound(make(), seconds=0)
    assert ids == []
    assert [(epoch["whole"], epoch["batches"]) for epoch in reading["epochs"]] == [(False, 0)] * 2


def test_as_much_of_the_second_epoch_as_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the time is over before the first one's end: so much can be compared."""

    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

    class Slow(Batches):
        def __iter__(self) -> Iterator[Any]:
            for index in range(400):
                clock.now += 5 if index == 9 and self.epochs[-1] == 0 else 0
                yield index

    clock = Clock()
    for module in (loaders, indices, waiting):
        monkeypatch.setattr(module, "time", clock)
    reading, _ = sound(DataLoader(Numbers(400), 1, sampler=Slow([])), seconds=10)
    assert [(epoch["whole"], epoch["samples"]) for epoch in reading["epochs"]] == [(False, 10), (False, 10)]
    assert reading["epochs"][0]["order"] == reading["epochs"][1]["order"]


def test_torchs_own_sampler_is_read_without_loading() -> None:
    budget = loaders.Budget(20, 10_000, 20, WORLD, 0)
    reading, ids = loaders.read(distributed(), "", None, budget)
    assert (len(ids), reading["loaded"], reading["content"]) == (2, [], {})


def test_an_epoch_that_begins_with_a_collective_is_begun_also_late() -> None:
    late = Limit(0.0, 10_000, begins=True)
    assert not late.spent(0) and late.spent(1)
    assert Limit(0.0, 10_000).spent(0)
