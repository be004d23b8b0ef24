"""How all ranks' samples of an epoch cover the dataset: which are repeated or missing, and which of it is intended.

Intended are a few extra samples that even out the ranks, or a tail that is dropped for that. torch's DistributedSampler
rounds the dataset's length to a multiple of the ranks; batch samplers such as Accelerate's round it to a multiple of
ranks times batch size.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from preflight.checks.data.sampler import overlaps
from preflight.checks.data.sampler.one_loader import Loader
from preflight.checks.data.sampler.overlaps import Overlaps
from preflight.checks.data.shared.readings import EPOCHS, Epoch

LARGE_PART = 0.05
"""Share of a dataset. A sampler that leaves out more does so on purpose, or is reported for it."""
SAME = 0.99
"""Share of what an epoch shows; the rest may be padding."""


@dataclass(frozen=True)
class Coverage:
    """The coverage of one epoch that all ranks read whole, by index. Ranks that share samples on purpose count once."""

    length: int
    """Length of the dataset."""
    samples: int
    """Samples of all ranks."""
    again: int
    """How many reads are repeats."""
    missing: int
    """Samples that no rank reads; a lower bound, if not `exact`."""
    exact: bool
    """If false, `again` is estimated from what ranks show."""
    own: int
    """How many repeats are on the same rank."""
    most: int
    """Samples of the rank with the most; and of the one with the fewest."""
    least: int
    ranks: int
    unequal: bool
    """Whether some ranks have more batches than others."""
    is_padding: bool
    """Whether `again` is only what evens out the ranks."""
    is_tail: bool
    """Whether `missing` is only what is dropped to even them out."""

    @property
    def is_sound(self) -> bool:
        return self.exact and (not self.again or self.is_padding) and (not self.missing or self.is_tail)

    @property
    def is_uneven_only(self) -> bool:
        """Whether the only fault is that some ranks have more than others: then their batches are reported."""
        more, less = self.samples - self.ranks * self.least, self.ranks * self.most - self.samples
        return self.unequal and self.most > self.least and self.exact and self.again <= more and self.missing <= less


@functools.lru_cache(maxsize=8)
def coverage(loader: Loader, number: int) -> Coverage | None:
    """None unless all ranks read the epoch whole and by index."""
    length, epochs = loader.length, loader.heads(number)
    if not (loader.by_index and loader.whole_world and loader.is_whole(number) and length is not None and epochs):
        return None
    counted, seen = loader.together.get(number), overlaps.of(loader, number)
    samples, distinct = (sum(epoch[key] for epoch in epochs.values()) for key in ("samples", "distinct"))
    exact = counted is not None or seen.is_all
    again = counted["agains"] - counted["again_dropped"] if counted else samples - distinct + seen.again
    missing = max(0, length - (samples - again if exact else distinct))
    given = (counted["agains"], counted["misses"]) if counted else (again, missing)  # before batch samplers drop any
    given = (given[0], 0) if loader.of_subsets else given
    return Coverage(
        length=length,
        samples=samples,
        again=again,
        missing=missing,
        exact=exact,
        own=samples - distinct,
        most=max(epoch["samples"] for epoch in epochs.values()),
        least=min(epoch["samples"] for epoch in epochs.values()),
        ranks=len(epochs),
        unequal=len({epoch["batches"] for epoch in epochs.values()}) > 1,
        is_padding=not again or _is_padding(samples - again, *given, length, epochs, seen),
        is_tail=not missing or not given[1] or (not given[0] and _is_tail(missing, length, loader, epochs)),
    )


def _is_padding(
    distinct: int, again: int, missing: int, length: int, epochs: Mapping[int, Epoch], seen: Overlaps
) -> bool:
    """`again`, `missing`: before a batch sampler drops anything. If a large part is left out, only few samples can be
    padding, and none if a rank has all of another's; if a small part is, none: then the ranks need no padding."""
    ranks, size, each = len(epochs), whole_batches(epochs), [epoch["samples"] for epoch in epochs.values()]
    if missing:
        is_even = min(each) == max(each)
        return missing > LARGE_PART * length and again < ranks and is_even and not seen.alike()
    samples = sum(each)
    return again < ranks or (bool(size) and samples <= _up(distinct, ranks * size) and samples < 2 * distinct)


def _is_tail(dropped: int, length: int, loader: Loader, epochs: Mapping[int, Epoch]) -> bool:
    ranks, size = len(epochs), whole_batches(epochs)
    biggest = max(max([epoch["last"], *map(int, epoch["sizes"])]) for epoch in epochs.values())
    if dropped < ranks or (size and dropped == length % (ranks * size)):
        return True
    drops = any(reading["drop_last"] for reading in loader.readings.values())
    varies = any(len(epoch["sizes"]) > 1 for epoch in epochs.values())
    as_many = len({epoch["batches"] for epoch in epochs.values()}) == 1
    return dropped < ranks * biggest and (drops or (varies and as_many))


def whole_batches(epochs: Mapping[int, Epoch]) -> int:
    """The batch size if every batch of all ranks has it, even the last; else 0."""
    sizes = {size for epoch in epochs.values() for size in (epoch["last"], *map(int, epoch["sizes"]))}
    return sizes.pop() if len(sizes) == 1 else 0


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def both(loader: Loader) -> list[Coverage]:
    """The coverage of both epochs, or nothing."""
    known = [cover for number in EPOCHS if (cover := coverage(loader, number))]
    return known if len(known) == len(EPOCHS) else []


def is_sound(loader: Loader) -> bool:
    """Whether both epochs are proven disjoint and complete, except for what evens out the ranks."""
    known = both(loader)
    return bool(known) and all(cover.is_sound for cover in known)


def misses_the_same(loader: Loader) -> bool:
    """Whether the same samples are missing in both epochs; else an epoch is only a part of the dataset."""
    first, second = (loader.together.get(number) for number in EPOCHS)
    if first and second and max(first["misses"], second["misses"]) == len(first["missing"]):
        return first["missing"] == second["missing"]
    share = overlaps.again_next_epoch(loader)
    return share is None or share > SAME
