"""Loaders that raise, are stuck or die; and the few samples that are drawn to compare datasets."""

import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from preflight.checks.data.shared import timeouts
from tests.checks.data.made_loaders import Batches, Numbers, Own, Stream, line_of, read, sound

pytestmark = pytest.mark.process

HERE = "tests/checks/data/test_bad_loaders.py"


class Bad(Numbers):
    def __init__(self, *, at: int, stuck: bool = False) -> None:
        super().__init__()
        self.at, self.stuck = at, stuck

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            if self.stuck:
                time.sleep(10**6)
            raise ValueError(f"image {index} is truncated")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [9, 24])
def test_a_loader_that_raises(workers: int, at: int) -> None:
    """Index 24 is in none of the batches that are loaded, but the last one of the dataset."""
    reading, _ = read(DataLoader(Bad(at=at), 4, num_workers=workers))
    mistake = reading["mistake"]
    assert mistake is not None
    line = line_of('raise ValueError(f"image', HERE)
    assert (mistake["kind"], mistake["file"], mistake["line"]) == ("user_error", HERE, line)
    assert f"__getitem__(): ValueError: image {at} is truncated" in mistake["text"]
    assert len(reading["epochs"]) == 2, "the indices were read"
    assert multiprocessing.active_children() == []


def test_what_nobody_reads_may_raise() -> None:
    reading, _ = sound(DataLoader(Bad(at=24), 4, sampler=range(12)))
    assert sorted(map(int, reading["content"])) == [0, 3, 6, 10, 13, 17, 20]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_is_stuck(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "ANSWER_S", 30.0)  # a busy machine's workers answer late, and start late
    monkeypatch.setattr(timeouts, "ANSWERS_S", 60.0)
    start = time.monotonic()
    reading, _ = read(DataLoader(Bad(at=5, stuck=True), 4, num_workers=workers), patience_s=3)
    mistake = reading["mistake"]
    assert mistake is not None
    assert (mistake["kind"], mistake["file"]) == ("stuck", HERE)
    assert mistake["line"] == line_of("time.sleep(10**6)", HERE)
    assert "batch 1" in mistake["text"]
    assert "loader 'train'" in mistake["text"]
    assert time.monotonic() - start < 60
    assert multiprocessing.active_children() == []


def test_a_stream_that_raises_in_a_worker() -> None:
    class Torn(Stream):
        def __iter__(self) -> Iterator[Any]:
            yield torch.zeros(2)
            raise OSError("the shard is torn")

    reading, _ = read(DataLoader(Torn(), 1, num_workers=1))
    mistake = reading["mistake"]
    assert mistake is not None
    assert "OSError: the shard is torn" in mistake["text"]
    assert (mistake["line"], reading["epochs"]) == (line_of('raise OSError("the shard', HERE), [])


def test_a_sampler_that_raises_in_its_second_epoch() -> None:
    class Raising(Batches):
        def __iter__(self) -> Iterator[Any]:
            if self.epochs[-1]:
                raise KeyError("no weights")
            return iter([1, 2])

    reading, _ = read(DataLoader(Numbers(), 4, sampler=Raising([])))
    assert reading["mistake"] is not None
    assert "Raising.__iter__(): KeyError: 'no weights'" in reading["mistake"]["text"]
    assert len(reading["epochs"]) == 1


def test_what_torch_refuses_is_said_in_its_words() -> None:
    class Ragged(Numbers):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(3 + index % 2)

    reading, _ = read(DataLoader(Ragged(), 4))
    mistake = reading["mistake"]
    assert mistake is not None
    assert (mistake["kind"], mistake["file"]) == ("user_error", None)
    assert "stack expects each tensor to be equal size" in mistake["text"]


def test_what_a_collective_raises_tells_of_another_rank() -> None:
    class Together(Own):
        def __iter__(self) -> Iterator[Any]:
            raise RuntimeError("Application timeout caused pair closure")
            yield

    with pytest.raises(RuntimeError, match="pair closure"):
        read(Together([]))


def test_a_killed_worker() -> None:
    class Killing(Numbers):
        def __getitem__(self, index: int) -> Any:
            os._exit(1)

    reading, _ = read(DataLoader(Killing(), 4, num_workers=1))
    assert reading["mistake"] is not None
    assert "1 of 1 DataLoader worker ended by exit status 1" in reading["mistake"]["text"]


# The dataset's content


class Drawn(Numbers):
    def __init__(self, shift: float = 0.0, *, own: bool = False) -> None:
        super().__init__()
        self.shift, self.generator = shift, random.Random() if own else random

    def __getitem__(self, index: int) -> Any:
        return torch.rand(2) + index + self.shift, self.generator.random()


@pytest.mark.parametrize("workers", [0, 1])
def test_content_is_drawn_with_the_same_seeds(workers: int) -> None:
    contents = [sound(DataLoader(data, 4, num_workers=workers))[0]["content"] for data in (Drawn(), Drawn(), Drawn(1))]
    assert contents[0] == contents[1]
    assert sorted(map(int, contents[0])) == [0, 3, 6, 10, 13, 17, 20, 24]
    assert all(contents[0][index] != contents[2][index] for index in contents[0])


def test_content_that_is_drawn_anew_is_not_compared() -> None:
    assert set(sound(DataLoader(Drawn(own=True), 4))[0]["content"].values()) == {""}


def test_a_dataset_with_workers_is_drawn_in_one() -> None:
    """A file that is open before workers are forked is shared by them. And their worker_init_fn is called."""

    class Opening(Numbers):
        process, begun = 0, False

        def __getitem__(self, index: int) -> Any:
            assert self.begun
            self.process = os.getpid()
            return super().__getitem__(index)

    def begin(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        dataset: Any = info.dataset
        dataset.begun = True

    dataset = Opening()
    reading, _ = sound(DataLoader(dataset, 4, num_workers=1, worker_init_fn=begin))
    assert len(reading["content"]) == 8
    assert dataset.process == 0
