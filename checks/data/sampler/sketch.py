"""What a rank tells of millions of samples: the few with the lowest hashes, and a sketch of all of them.

The lowest hashes are the same samples on all ranks that have them, so two ranks' overlap shows among them (bottom-k
sampling: Cohen and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007). A sketch is an invertible Bloom
lookup table (Goodrich and Mitzenmacher, "Invertible Bloom Lookup Tables", 2011): sketches add up as their samples do,
and what is left of all ranks' samples minus range(length) is told id by id, if it is not too much.
"""

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from preflight.checks.data.shared.readings import Shown

if TYPE_CHECKING:
    import torch

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
"""splitmix64's (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014)."""
SHOWN_IN_ALL = 1 << 18
"""By all ranks together, of one epoch."""
SHOWN_OF_RANK = 7000
"""By one rank, of one epoch of all its loaders. One is at most 60 bytes of its facts, which end at 1 MiB."""
PARTS = 4
"""A sample is in one cell of each part. A sketch does not decode where two samples share all cells: see `decode`."""
CELL_BYTES = 24
BYTES_IN_ALL = 64 << 20
"""Of all ranks' sketches of one epoch: one rank reads them."""
CHUNK = 1 << 15
"""Samples at once: their hashes stay in the processor's cache, and torch does not spread so few over threads, which on
a node full of ranks wait for each other."""


def mixed(id: int) -> int:  # noqa: A002 -- the field's word
    """The hash of a sample, from 0 to 2^64 - 1. No two ids of 64 bits have the same."""
    word = (id + GOLDEN) & WORD
    for shift, factor in STEPS:
        word = ((word ^ (word >> shift)) * factor) & WORD
    return word ^ (word >> LAST_SHIFT)


def _mixed(ids: "torch.Tensor") -> "torch.Tensor":
    """The same for int64 of any shape; its bits, since torch has no unsigned arithmetic."""
    words = ids + _signed(GOLDEN)
    for shift, factor in STEPS:
        words = words.bitwise_xor_(_shifted(words, shift)).mul_(_signed(factor))
    return words.bitwise_xor_(_shifted(words, LAST_SHIFT))


def _shifted(words: "torch.Tensor", by: int) -> "torch.Tensor":
    """To the right, with zeros from the left."""
    return (words >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def share(world: int, loaders: int = 1) -> int:
    """How many samples of an epoch a rank shows, if it has so many loaders."""
    return min(max(64, min(4096, SHOWN_IN_ALL // world)), max(16, SHOWN_OF_RANK // loaders))


def shown(ids: "torch.Tensor", world: int, loaders: int = 1) -> list[Shown]:
    """Of `ids` (int64, in their order) the distinct ones with the lowest `mixed`, ascending by it: all there are, or
    `share(world, loaders)`."""
    import torch

    wanted = share(world, loaders)
    part = 4.0 * wanted / max(1, len(ids))
    while True:
        places = _places_below(ids, part)
        order = _mixed(ids[places]) ^ (-1 << 63)  # signed words sort as unsigned ones do
        distinct, which, times = torch.unique(order, return_inverse=True, return_counts=True)
        if len(distinct) >= wanted or part >= 1.0:
            break
        part *= 8  # ids that come again and again
    first = torch.full_like(distinct, len(ids)).scatter_reduce_(0, which, places, "amin")[:wanted]
    columns = ids[first].tolist(), first.tolist(), times[:wanted].tolist()
    return [Shown(id=id_, place=place, times=often) for id_, place, often in zip(*columns, strict=True)]


def _places_below(ids: "torch.Tensor", part: float) -> "torch.Tensor":
    """Where the ids stand whose hash is in this lowest part of all hashes."""
    import torch

    if part >= 1.0 or not len(ids):
        return torch.arange(len(ids))
    limit = int(part * 2.0**64) - (1 << 63)
    chunks = ((_mixed(chunk) ^ (-1 << 63)) < limit for chunk in _chunks(ids))
    return torch.cat([places.nonzero().flatten() + at * CHUNK for at, places in enumerate(chunks)])


def _chunks(ids: "torch.Tensor") -> Iterator["torch.Tensor"]:
    return (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))


def width(world: int) -> int:
    """Cells in each part, so that world + 100 ids decode: as many as torch's DistributedSampler may add or leave out,
    and some. Above 1,000 ranks fewer, since all ranks' sketches are read by one: 512 cells, and some 340 ids, from
    5,500 ranks on."""
    return max(128, min((2 * world + 768) // PARTS, BYTES_IN_ALL // (CELL_BYTES * PARTS * world)))


@dataclass(frozen=True)
class Difference:
    """What a sketch holds: ids that are there more than no times, or less."""

    exact: bool
    """Else there are too many, and the rest is empty."""
    again: dict[int, int] = field(default_factory=dict)
    """Ids that are there, and how many times."""
    missing: list[int] = field(default_factory=list)
    """Ids that are there less than no times, ascending; as often as they are missing."""


class Sketch:
    """Of ids, each of which may be in it many times, or less than no times.

    A cell has the count of its ids, their sum and the sum of their hashes, all modulo 2^64: where one id is left in it,
    it is the sum divided by the count, and its hash says whether that is so. Whatever was added and taken away on the
    way may wrap around; an id that is left must be below 2^63 divided by its count (ids below 2^53 on 1,024 ranks that
    all see it), else nothing is told.
    """

    def __init__(self, world: int) -> None:
        import torch

        self.cells = torch.zeros(3, PARTS, width(world), dtype=torch.int64)

    @classmethod
    def of(cls, ids: "torch.Tensor", world: int) -> "Sketch":
        """Of int64 ids in any order."""
        made = cls(world)
        for chunk in _chunks(ids):
            made._add(chunk, 1)
        return made

    def minus_range(self, first: int, last: int) -> "Sketch":
        """Takes away each of range(first, last) once; returns itself."""
        import torch

        for start in range(first, last, CHUNK):
            self._add(torch.arange(start, min(last, start + CHUNK)), -1)
        return self

    def _add(self, ids: "torch.Tensor", times: int) -> None:
        import torch

        hashes = _mixed(ids)
        rows = torch.full_like(ids, times), ids * times, hashes * times
        for part in range(PARTS):
            places = _places(hashes, part, self.cells.shape[2])
            for sums, row in zip(self.cells[:, part], rows, strict=True):
                sums.scatter_add_(0, places, row)

    def __add__(self, other: "Sketch") -> "Sketch":
        return self._sum(other, 1)

    def __sub__(self, other: "Sketch") -> "Sketch":
        return self._sum(other, -1)

    def _sum(self, other: "Sketch", times: int) -> "Sketch":
        made = object.__new__(Sketch)
        if self.cells.shape != other.cells.shape:
            raise ValueError(f"sketches of {self.cells.shape[2]} and {other.cells.shape[2]} cells a part do not add up")
        made.cells = self.cells + other.cells * times
        return made

    def to_bytes(self) -> bytes:
        """In this machine's byte order; as many for all sketches of one world."""
        return to_bytes(self.cells.flatten())

    @classmethod
    def from_bytes(cls, raw: bytes, world: int) -> "Sketch":
        """Raises ValueError where they are no sketch of this world's size."""
        made = cls(world)
        if len(raw) != made.cells.numel() * 8:
            raise ValueError(f"{len(raw)} bytes are no sketch for {world} ranks, which has {made.cells.numel() * 8}")
        made.cells = from_bytes(raw).view_as(made.cells)
        return made

    def decode(self) -> Difference:
        """All that is in it. Of sketches with `world + 100` ids, 4 in a million do not decode: n ids in cells of which
        a part has w give n^2 / 2 w^4 pairs that share all their cells. (None of 200,000 simulated ones for 4 ranks, of
        100,000 for 64 and of 20,000 for 1,024 failed.) Up to 0.65 ids a cell nearly always decode, from 0.8 on hardly
        any do."""
        counts = _Peeled(self.cells.flatten(1).tolist(), self.cells.shape[2]).counts()
        if counts is None:
            return Difference(exact=False)
        again = {id_: times for id_, times in sorted(counts.items()) if times > 0}
        return Difference(True, again, sorted(Counter({id_: -times for id_, times in counts.items()}).elements()))


def to_bytes(words: "torch.Tensor") -> bytes:
    """Of int64[n], in this machine's byte order."""
    return array("q", words.tolist()).tobytes()


def from_bytes(raw: bytes) -> "torch.Tensor":
    """int64[n]."""
    import torch

    return torch.frombuffer(bytearray(raw), dtype=torch.int64) if raw else torch.empty(0, dtype=torch.int64)


def _places(hashes: "torch.Tensor", part: int, cells: int) -> "torch.Tensor":
    """16 bits of the hash for each part, spread over its cells."""
    return ((hashes >> (16 * part)) & 0xFFFF).mul_(cells) >> 16


@dataclass
class _Peeled:
    """Cells in Python's numbers: from one with a single id this id is taken out of its other cells, and so on."""

    cells: list[list[int]]
    """Counts, sums of ids, sums of hashes; all parts in a row."""
    width: int

    def counts(self) -> dict[int, int] | None:
        """How many times each id is there; None where something is left that cannot be told. None is taken out twice,
        else cells that are no sketch might never end."""
        found: dict[int, int] = {}
        waiting = list(range(len(self.cells[0])))
        while waiting:
            single = self._single(waiting.pop())
            if single is None:
                continue
            id_, times = single
            if id_ in found:
                return None
            found[id_] = times
            for cell in self._cells_of(mixed(id_)):
                self._take(cell, (times, times * id_, times * mixed(id_)))
                waiting.append(cell)
        return None if any(map(any, self.cells)) else found

    def _single(self, cell: int) -> tuple[int, int] | None:
        """The only id in this cell, and how many times; None where there is none, or more than one."""
        times, ids, hashes = (sums[cell] for sums in self.cells)
        if not times or ids % times:
            return None
        return (ids // times, times) if _word(times * mixed(ids // times)) == hashes else None

    def _cells_of(self, hashed: int) -> Iterator[int]:
        for part in range(PARTS):
            yield part * self.width + (((hashed >> (16 * part)) & 0xFFFF) * self.width >> 16)

    def _take(self, cell: int, row: tuple[int, int, int]) -> None:
        for sums, number in zip(self.cells, row, strict=True):
            sums[cell] = _word(sums[cell] - number)


def _word(number: int) -> int:
    """As 64 bits with a sign hold it."""
    return ((number + (1 << 63)) & WORD) - (1 << 63)
