"""Samples by content: how batches are cut, and digests that are the same in every process."""

import dataclasses
import datetime
import fractions
import random
import subprocess
import sys
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from preflight.checks.data.sampler import spot_check
from preflight.checks.data.sampler.content import Cutter, NoKey
from preflight.checks.data.shared import digests


class Point(typing.NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Pair:
    image: Any
    name: Any


class Image:
    """As PIL's: pickle takes it apart."""

    def __init__(self, pixels: bytes) -> None:
        self.pixels = pixels

    def __getstate__(self) -> Any:
        return ["RGB", self.pixels]


def values() -> dict[str, Any]:
    """All different from each other; those of one line in the type or the shape only."""
    return {
        "none": None, "false": False, "zero": 0, "float": 0.0, "complex": 0j, "text of it": "0", "its byte": b"0",
        "empty": [], "no tuple": (), "no dict": {}, "no set": set(),
        "texts": ["ab"], "letters": ["a", "b"], "nested": [["a"], "b"], "lone surrogate": "\udc80",
        "set": {"a", "b", "c"}, "frozen": frozenset({"a", "b", "c"}), "dict": {"a": 1}, "other": {"a": 2},
        "named": Point(1, 2), "pair": Pair(1, "a"), "date": datetime.date(2024, 2, 29), "path": Path("a/b"),
        "image": Image(b"1"), "other image": Image(b"2"), "class": Image, "function": values,
        "tensor": torch.zeros(4), "its shape": torch.zeros(2, 2), "its type": torch.zeros(4, dtype=torch.int32),
        "scalar": torch.tensor(1.5), "no numbers": torch.zeros(0), "bool": torch.tensor([True]),
        "bfloat16": torch.ones(2, dtype=torch.bfloat16), "sparse": torch.eye(3).to_sparse(),
        "other sparse": (2 * torch.eye(3)).to_sparse(), "dense": torch.eye(3),
        "conjugated": torch.tensor([1 + 2j]).conj(),
        "parameter": torch.nn.Parameter(torch.ones(3)), "transposed": torch.arange(6.0).reshape(2, 3).t(),
        "nested tensor": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_differs_has_another_digest_and_63_bits() -> None:
    known = {name: digests.digest(value) for name, value in values().items()}
    twins = {(a, b) for a in known for b in known if a < b and known[a] == known[b]}
    assert twins == set()
    assert all(0 <= card < 2**63 for card in known.values())


def test_layout_in_memory_and_gradients_do_not_count() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    assert digests.digest(tensor.t()) == digests.digest(tensor.t().contiguous())
    assert digests.digest(tensor[:, 1]) == digests.digest(torch.tensor([1.0, 4.0]))
    assert digests.digest(tensor.clone().requires_grad_()) == digests.digest(tensor)
    assert digests.digest(torch.tensor([1 + 2j]).conj()) == digests.digest(torch.tensor([1 - 2j]))
    assert digests.digest({"a": 1, "b": 2}) == digests.digest({"b": 2, "a": 1})


def test_another_process_has_the_same_digests() -> None:
    """Its hashes of texts are others, and so is the order of its sets."""
    plain = "[{'a', 'b', 'c'}, {'a': 1, 'b': 2}, frozenset('xyz'), ('a', 1.5, None, b'c'), fractions.Fraction(1, 3)]"
    told = f"import fractions; from preflight.checks.data.shared import digests; print(digests.digest({plain}))"
    done = subprocess.run(
        [sys.executable, "-c", told],
        cwd=Path(__file__).parents[3], env={"PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) == digests.digest(eval(plain, {"fractions": fractions}))


class Mirror:
    def __init__(self) -> None:
        self.own = self


class Refusing:
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("mine")


@pytest.mark.parametrize(
    "make",
    [threading.Lock, lambda: (letter for letter in "ab"), Mirror, Refusing, lambda: torch.zeros(2, device="meta")],
)
def test_what_cannot_be_told_counts_as_drawn_anew(make: Any) -> None:
    value = make()
    with pytest.raises(digests.Unknown):
        digests.digest(value)
    assert digests.id_of(value) != digests.id_of(value)


class Kind(typing.NamedTuple):
    str: str
    hasobject: bool


class Array:
    """NumPy's, as far as it is asked."""

    def __init__(self, rows: int, width: int) -> None:
        self.shape, self.ndim = (rows, width), 2
        self.dtype = Kind("<i2", hasobject=False)

    def __len__(self) -> int:
        return self.shape[0]

    def tobytes(self) -> bytes:
        return bytes(range(2 * self.shape[0] * self.shape[1]))


class Objects(Array):
    """An array of objects: its bytes are addresses."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.dtype = Kind("|O", hasobject=True)

    def __iter__(self) -> Iterator[Any]:
        return iter([["a"], ["b"]])

    def tobytes(self) -> bytes:
        return random.randbytes(16)

    def tolist(self) -> list[Any]:
        return list(self)


def test_an_array_of_objects_is_what_it_holds() -> None:
    assert digests.digest(Objects()) == digests.digest(Objects()) != digests.digest(Array(2, 1))
    assert digests.rows(Objects()) == [digests.digest(["a"]), digests.digest(["b"])]


def test_rows_of_a_batch_are_its_samples() -> None:
    batch = torch.arange(12.0).reshape(4, 3)
    ids = digests.rows(batch)
    assert len(set(ids)) == 4
    assert digests.rows(batch[2:]) == ids[2:]
    assert digests.rows(batch.double()) != ids
    assert len(set(digests.rows(Array(3, 2)))) == 3
    assert digests.rows(torch.zeros(3, 0)) == digests.rows(torch.zeros(3, 0))


IMAGES, LABELS, NAMES = torch.arange(24.0).reshape(4, 2, 3), torch.arange(4), ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("batch", "size", "count"),
    [
        (IMAGES, 4, 4),
        (IMAGES, None, 4),
        ([IMAGES, LABELS], None, 4),
        ({"image": IMAGES, "name": NAMES, "more": {"label": LABELS}}, None, 4),
        (Pair(IMAGES, NAMES), None, 4),
        (Point(IMAGES, LABELS), 8, 4),  # type: ignore[arg-type]
        (NAMES, None, 4),
        ([(IMAGES[0], 0), (IMAGES[1], 1), (IMAGES[2], 2)], None, 3),
        (((IMAGES[0], IMAGES[1, :1], IMAGES[2]), ({"box": 1}, {"box": 2}, {"box": 3})), None, 3),
        ([IMAGES[0], IMAGES[1], IMAGES[2]], 3, 3),
        (LABELS, 4, 4),
        (Array(5, 2), None, 5),
        # The size is not known.
        (LABELS, None, None),
        ({"tokens": LABELS, "mask": LABELS}, None, None),
        (torch.zeros(8, 2), 4, None),
        ((IMAGES[0], 7), None, None),
        ({"tokens": torch.zeros(9), "starts": torch.zeros(3)}, None, None),
        ("text", None, None),
        (torch.tensor(3.0), None, None),
        ({}, None, None),
    ],
)
def test_a_batch_is_cut_into_its_samples(batch: Any, size: int | None, count: int | None) -> None:
    ids, sized = Cutter(size).samples(batch)
    assert (len(ids), sized) == ((1, False) if count is None else (count, True))
    assert len(set(ids)) == len(ids)
    assert Cutter(size).size(batch) == (count or 0)


def test_all_columns_count() -> None:
    """Equal images with other labels are other samples."""
    first, _ = Cutter(4).samples([IMAGES, LABELS])
    other, _ = Cutter(4).samples([IMAGES, LABELS.flip(0)])
    assert not set(first) & set(other)


def test_a_last_batch_is_cut_as_the_others_were() -> None:
    """Three samples of two numbers each, not two columns of three."""
    samples = [torch.tensor([float(number), -float(number)]) for number in range(7)]
    cutter = Cutter(4)
    whole, _ = cutter.samples(samples[:4])
    last, _ = cutter.samples(samples[4:])
    assert (len(whole), len(last)) == (4, 3)


@pytest.mark.parametrize(
    ("batch", "key", "count"),
    [
        ({"id": LABELS, "image": IMAGES + torch.rand(4, 2, 3)}, "id", 4),
        ((IMAGES + torch.rand(4, 2, 3), LABELS), "1", 4),
        (Pair(IMAGES + random.random(), NAMES), "name", 4),
        ([{"id": 1, "x": random.random()}, {"id": 2, "x": random.random()}], "id", 2),
        ({"id": "one", "x": random.random()}, "id", 1),
    ],
)
def test_a_key_tells_samples_apart(batch: Any, key: str, count: int) -> None:
    ids, _ = Cutter(None, key).samples(batch)
    assert len(set(ids)) == count


def test_the_key_alone_counts() -> None:
    ids = [Cutter(None, "id").samples({"id": LABELS, "image": torch.rand(4, 2)})[0] for _ in range(2)]
    assert ids[0] == ids[1]


def test_a_key_that_is_not_there() -> None:
    with pytest.raises(NoKey, match="image, label"):
        Cutter(None, "id").samples({"image": IMAGES, "label": LABELS})


def test_drawing_leaves_random_generators_as_they_were() -> None:
    before = random.getstate(), torch.get_rng_state()
    with spot_check.seeded():
        first = random.random(), torch.rand(1)
    with spot_check.seeded():
        assert (random.random(), torch.rand(1)) == first
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize("length", [1, 2, 7, 8, 1000, 10**8])
def test_the_places_that_are_compared(length: int) -> None:
    places = spot_check.places(length)
    assert places[0] == 0
    assert places[-1] == length - 1
    assert len(places) == min(length, spot_check.MOST)
    assert spot_check.places(0) == []
