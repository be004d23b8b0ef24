"""Collects one epoch's ids, and selects which of millions to report: those with the lowest hashes.

These are the same samples on all ranks that have them, so they reveal the overlap of two ranks (bottom-k sampling:
Cohen and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007).
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from preflight.checks.data.shared.readings import Epoch, Shown

if TYPE_CHECKING:
    import torch

COMMONEST = 20
WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
"""splitmix64's last shift (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014)."""
SHOWN_IN_ALL = 1 << 18
"""The most samples of one epoch that all ranks together show."""
SHOWN_OF_RANK = 7000
"""The most that one rank shows per epoch of all its loaders: each is up to 60 bytes of its facts (limit 1 MiB)."""
CHUNK = 1 << 15
"""Samples to process at once: their hashes stay in the processor's cache, and torch does not use threads for so few,
which would wait for each other on a node full of ranks."""


class Ids:
    def __init__(self) -> None:
        self.values = array("q")
        self.dropped = array("q")
        """Ids of an incomplete last batch, which the loader does not yield."""
        self.batches = 0
        self.whole = False
        self.indices = True
        """Whether all ids are indices, and none is a digest."""
        self._sizes: Counter[int] = Counter()
        self._last = 0
        self._sized = True

    def __len__(self) -> int:
        return len(self.values)

    def add_batch(self, ids: Sequence[int], *, sized: bool = True) -> None:
        """`sized`: whether each id is one sample. Raises TypeError or OverflowError if they are not 64-bit integers;
        then nothing is added."""
        batch = array("q", ids)
        self.values.extend(batch)
        if self.batches:
            self._sizes[self._last] += 1
        self.batches += 1
        self._last = len(batch)
        self._sized = self._sized and sized

    def drop_below(self, size: int) -> None:
        """Drops the last batch of an epoch that was read whole, if it has fewer samples than `size`."""
        if self.whole and 0 < self._last < size:
            self.values, self.dropped = self.values[: -self._last], self.values[-self._last :]
            self.batches, self._last = self.batches - 1, size if self.batches > 1 else 0
            self._sizes -= Counter({size: 1})

    def from_the_end(self, length: int) -> None:
        """Converts negative indices to those that they mean in a dataset of this length."""
        for ids in (_tensor(self.values), _tensor(self.dropped)):
            if self.indices:
                ids[(ids < 0) & (ids >= -length)] += length

    def map(self, change: "Callable[[torch.Tensor], torch.Tensor | None]") -> bool:
        """Replaces all ids; False if `change` returns None."""
        changed = [change(_tensor(ids)) for ids in (self.values, self.dropped)]
        if changed[0] is None or changed[1] is None:
            return False
        self.values, self.dropped = (array("q", ids.tolist()) for ids in changed if ids is not None)
        return True

    def chosen(self) -> "torch.Tensor":
        """int64[samples], in order; dropped ones at the end."""
        return _tensor(self.values + self.dropped)

    def epoch(self, world: int, loaders: int = 1, ordered: int | None = None) -> Epoch:
        """`ordered`: how many ids determine the order; None means all."""
        import torch

        ids = _tensor(self.values)
        _, counts = torch.unique(ids, return_counts=True)
        many, times = torch.unique(counts, return_counts=True)
        return Epoch(
            whole=self.whole,
            batches=self.batches,
            samples=len(ids),
            dropped=len(self.dropped),
            distinct=len(counts),
            sizes=_commonest(self._sizes) if self._sized else {},
            last=self._last if self._sized else 0,
            order=hashlib.blake2b(self.values[:ordered], digest_size=8).hexdigest(),
            ascending=bool((ids[1:] > ids[:-1]).all()),
            times=_commonest(Counter(dict(zip(many.tolist(), times.tolist(), strict=True)))),
            shown=shown(ids, world, loaders),
        )


def _tensor(values: "array[int]") -> "torch.Tensor":
    """The same memory as int64."""
    import torch

    return torch.frombuffer(values, dtype=torch.int64) if values else torch.empty(0, dtype=torch.int64)


def _commonest(counted: "Counter[int]") -> dict[str, int]:
    return {str(value): count for value, count in counted.most_common(COMMONEST)}


# The lowest hashes


def mixed(id: int) -> int:  # noqa: A002 -- the field's word
    """The hash of a sample, from 0 to 2^64 - 1; different for any two 64-bit ids."""
    word = (id + GOLDEN) & WORD
    for shift, factor in STEPS:
        word = ((word ^ (word >> shift)) * factor) & WORD
    return word ^ (word >> LAST_SHIFT)


def _mixed(ids: "torch.Tensor") -> "torch.Tensor":
    """The same for int64 of any shape, as signed bits, since torch has no unsigned arithmetic."""
    words = ids + _signed(GOLDEN)
    for shift, factor in STEPS:
        words = words.bitwise_xor_(_shifted(words, shift)).mul_(_signed(factor))
    return words.bitwise_xor_(_shifted(words, LAST_SHIFT))


def _shifted(words: "torch.Tensor", by: int) -> "torch.Tensor":
    """A logical right shift."""
    return (words >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def share(world: int, loaders: int = 1) -> int:
    """How many samples of an epoch a rank shows, given its number of loaders."""
    return min(max(64, min(4096, SHOWN_IN_ALL // world)), max(16, SHOWN_OF_RANK // loaders))


def shown(ids: "torch.Tensor", world: int, loaders: int = 1) -> list[Shown]:
    """The distinct `ids` (int64, in order) with the lowest `mixed`, ascending: all, or `share(world, loaders)`."""
    import torch

    wanted = share(world, loaders)
    part = 4.0 * wanted / max(1, len(ids))
    while True:
        places = _places_below(ids, part)
        order = _mixed(ids[places]) ^ (-1 << 63)  # signed words sort as unsigned ones do
        distinct, which, times = torch.unique(order, return_inverse=True, return_counts=True)
        if len(distinct) >= wanted or part >= 1.0:
            break
        part *= 8  # many ids are repeats
    first = torch.full_like(distinct, len(ids)).scatter_reduce_(0, which, places, "amin")[:wanted]
    columns = ids[first].tolist(), first.tolist(), times[:wanted].tolist()
    return [Shown(id=id_, place=place, times=often) for id_, place, often in zip(*columns, strict=True)]


def _places_below(ids: "torch.Tensor", part: float) -> "torch.Tensor":
    """Positions of the ids whose hash is in this lowest part of all hashes."""
    import torch

    if part >= 1.0 or not len(ids):
        return torch.arange(len(ids))
    limit = int(part * 2.0**64) - (1 << 63)
    chunks = ((_mixed(chunk) ^ (-1 << 63)) < limit for chunk in _chunks(ids))
    return torch.cat([places.nonzero().flatten() + at * CHUNK for at, places in enumerate(chunks)])


def _chunks(ids: "torch.Tensor") -> Iterator["torch.Tensor"]:
    return (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))
