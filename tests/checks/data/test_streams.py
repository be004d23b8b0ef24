"""Loaders that are read by content: streams, and those of the user's own."""

import multiprocessing
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.checks.data.made_loaders import MADE, Own, Stream, line_of, read, sound


def test_a_stream() -> None:
    reading, ids = sound(DataLoader(Stream(), 4))
    assert (reading["known_by"], reading["sampler"], reading["dataset"], ids) == ("content", "", "Stream", [])
    assert (reading["length"], reading["batches"], reading["drop_last"]) == (None, None, False)
    first, second = reading["epochs"]
    assert (first["samples"], first["distinct"], first["sizes"], first["last"]) == (10, 10, {"4": 2}, 2)
    assert {index["id"] for index in first["shown"]} == {index["id"] for index in second["shown"]}
    assert first["order"] != second["order"]
    assert reading["set_epoch"] == ["loader.dataset"]
    stream = line_of("class Stream(", MADE)
    assert reading["file"] == MADE
    assert stream < (reading["line"] or 0) < stream + 12


@pytest.mark.parametrize(("sharded", "times"), [(True, {"1": 10}), (False, {"2": 10})])
def test_a_stream_in_workers(sharded: bool, times: dict[str, int]) -> None:
    loader = DataLoader(Stream(sharded=sharded), 4, num_workers=2, persistent_workers=True)
    reading, _ = sound(loader)
    assert (reading["epochs"][1]["times"], reading["workers"]) == (times, 2)
    assert multiprocessing.active_children() == []
    assert next(iter(loader)) is not None, "it can be iterated again"
    loader._iterator = None


def test_persistent_workers_do_not_hear_set_epoch() -> None:
    """As in training, where they live as long as the loader. Workers that end are forked anew, and have heard it."""
    for lasting in (True, False):
        reading, _ = sound(DataLoader(Stream(), 4, num_workers=1, persistent_workers=lasting))
        first, second = reading["epochs"]
        assert (first["order"] == second["order"]) is lasting
        assert multiprocessing.active_children() == []


def test_persistent_workers_go_on_after_an_epoch_that_was_not_read_whole() -> None:
    reading, _ = sound(DataLoader(Stream(100), 4, num_workers=2, persistent_workers=True), samples=20)
    assert [epoch["samples"] for epoch in reading["epochs"]] == [20, 20]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_stream_that_says_whether_it_shuffles(shuffle: bool) -> None:
    stream = Stream()
    stream.shuffle = shuffle  # type: ignore[attr-defined]
    assert sound(DataLoader(stream, 4))[0]["shuffle"] is shuffle
    assert sound(DataLoader(Stream(), 4))[0]["shuffle"] is None


def test_a_length_that_lies() -> None:
    class Lying(Stream):
        def __len__(self) -> int:
            return 1000

    class Refusing(Stream):
        def __len__(self) -> int:
            raise RuntimeError("nobody knows")

    reading, _ = sound(DataLoader(Lying(), 4))
    assert (reading["length"], reading["batches"], reading["epochs"][0]["samples"]) == (1000, 250, 10)
    reading, _ = sound(DataLoader(Refusing(), 4))
    assert (reading["length"], reading["batches"]) == (None, None)


def test_an_endless_stream() -> None:
    reading, _ = sound(DataLoader(Stream(1000), 4, num_workers=1), samples=100)
    assert [(epoch["whole"], epoch["samples"]) for epoch in reading["epochs"]] == [(False, 100)] * 2
    assert multiprocessing.active_children() == []


def test_a_loader_of_the_users_own() -> None:
    reading, _ = sound(Own([{"x": torch.rand(3, 2), "id": torch.arange(3)}, {"x": torch.rand(1, 2), "id": [7]}]))
    assert (reading["loader"], reading["dataset"], reading["batches"], reading["length"]) == ("Own", "", 2, None)
    assert (reading["epochs"][0]["samples"], reading["epochs"][0]["sizes"]) == (4, {"3": 1})
    own = line_of("class Own:", MADE)
    assert (reading["file"], own < (reading["line"] or 0) < own + 12) == (MADE, True)


def test_a_list_of_batches() -> None:
    reading, _ = sound([torch.rand(3, 2), torch.rand(3, 2)])
    assert (reading["loader"], reading["epochs"][0]["samples"], reading["file"]) == ("list", 6, None)


def test_batches_that_cannot_be_cut_have_no_size() -> None:
    reading, _ = sound(Own([torch.arange(9), torch.arange(5)]))
    first = reading["epochs"][0]
    assert (first["batches"], first["samples"], first["sizes"], first["last"]) == (2, 2, {}, 0)


def test_a_field_that_tells_samples_apart() -> None:
    class Noisy(Stream):
        def __iter__(self) -> Iterator[Any]:
            return iter([{"x": random.random(), "id": number} for number in range(self.length)])

    plain, _ = sound(DataLoader(Noisy(), 4))
    told, _ = sound(DataLoader(Noisy(), 4), key="id")
    assert plain["epochs"][0]["order"] != plain["epochs"][1]["order"]
    assert told["epochs"][0]["order"] == told["epochs"][1]["order"]
    wrong, _ = read(DataLoader(Noisy(), 4), key="name")
    assert wrong["mistake"] is not None
    assert "loader 'train' yields no field 'name', but x, id" in wrong["mistake"]["text"]


def test_a_loader_that_can_be_read_only_once() -> None:
    class Once(Own):
        def __iter__(self) -> Iterator[Any]:
            while self.batches:
                yield self.batches.pop()

    reading, _ = sound(Once([torch.rand(3, 2)]))
    assert [(epoch["whole"], epoch["batches"]) for epoch in reading["epochs"]] == [(True, 1), (True, 0)]
