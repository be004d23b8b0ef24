"""Which ranks read the same samples, as far as they show them.

Each rank shows the samples with the lowest hashes, so both ranks have what both show, and its share of what they show
is its share of all (bottom-k sampling: see epoch.py).
"""

import bisect
import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from preflight.checks.data.sampler.epoch import mixed
from preflight.checks.data.sampler.one_loader import Loader
from preflight.checks.data.shared.readings import EPOCHS, Epoch, Shown

EVERYTHING = 1 << 64
LEAST_SHARE = 0.1
"""Share of a rank's samples. If equal ones may be chance, fewer are taken as chance."""
TIMES_CHANCE, SIGMAS, LEAST_PAIRS = 2.0, 6.0, 5.0
"""Equal data, and draws with replacement, fall on ranks by chance: as often on both of two ranks as twice on one. It is
an overlap if more than twice as many are on both, and more than such counts vary among thousands of ranks."""
LEAST_DISTINCT = 5
"""The fewest distinct samples on a rank before equal content of all of them counts as an overlap."""


@dataclass(frozen=True)
class RankPair:
    """Two ranks that show the same samples."""

    first: int
    second: int
    shared: list[int]
    of: int
    """Samples that the rank with fewer shows, of those that both would show."""
    twice: float
    """Pairs of equal samples with one on each rank."""
    own: float
    """Pairs of equal samples on the same rank."""

    @property
    def share(self) -> float:
        return len(self.shared) / max(1, self.of)


@dataclass(frozen=True, eq=False)
class Overlaps:
    epochs: Mapping[int, Epoch]

    @cached_property
    def common(self) -> dict[int, list[tuple[int, Shown]]]:
        """Samples that more than one rank shows, by id: (rank, sample)."""
        seen: set[int] = set()
        again: set[int] = set()
        for epoch in self.epochs.values():
            ids = {sample["id"] for sample in epoch["shown"]}
            again |= seen & ids
            seen |= ids
        holders: dict[int, list[tuple[int, Shown]]] = {id_: [] for id_ in again}
        for rank, epoch in self.epochs.items() if again else ():
            for sample in epoch["shown"]:
                if sample["id"] in again:
                    holders[sample["id"]].append((rank, sample))
        return holders

    @cached_property
    def looked(self) -> int:
        return sum(len(epoch["shown"]) for epoch in self.epochs.values())

    @cached_property
    def is_all(self) -> bool:
        return all(shows_all(epoch) for epoch in self.epochs.values())

    @cached_property
    def again(self) -> int:
        """How many times samples come again on another rank; estimated if not all are shown."""
        distinct = sum(epoch["distinct"] for epoch in self.epochs.values())
        return round(sum(len(samples) - 1 for samples in self.common.values()) * distinct / max(1, self.looked))

    @cached_property
    def pairs(self) -> list[RankPair]:
        """Pairs of ranks, most in common first. If more than two share a sample, each is only paired with the lowest,
        so there are no more pairs than shown samples."""
        shared: dict[tuple[int, int], list[int]] = {}
        crossing: dict[tuple[int, int], float] = {}
        for id_, ((first, sample), *others) in self.common.items():
            for second, other in others:
                shared.setdefault((first, second), []).append(id_)
                crossing[first, second] = crossing.get((first, second), 0.0) + sample["times"] * other["times"]
        found = [self._pair(*both, ids, crossing[both]) for both, ids in shared.items()]
        return sorted(found, key=lambda pair: (-pair.share, pair.first, pair.second))

    def _pair(self, first: int, second: int, shared: list[int], twice: float) -> RankPair:
        limit = min(self._limits[first], self._limits[second])
        shown = [_below(self.epochs[rank], limit) for rank in (first, second)]
        own = sum(
            self._own[rank] * below / max(1, len(self.epochs[rank]["shown"]))
            for rank, below in zip((first, second), shown, strict=True)
        )
        return RankPair(first, second, shared, min(shown), twice, own)

    @cached_property
    def _limits(self) -> dict[int, int]:
        """By rank, the hash up to which it shows all its samples."""
        return {
            rank: EVERYTHING if shows_all(epoch) else mixed(epoch["shown"][-1]["id"])
            for rank, epoch in self.epochs.items()
        }

    @cached_property
    def _own(self) -> dict[int, float]:
        """Pairs of equal samples on one rank."""
        return {
            rank: sum(sample["times"] * (sample["times"] - 1) / 2 for sample in epoch["shown"])
            for rank, epoch in self.epochs.items()
        }

    def alike(self) -> list[tuple[int, ...]]:
        """Groups of ranks that read exactly the same samples."""
        groups: dict[object, list[int]] = {}
        for rank, epoch in self.epochs.items():
            ids = tuple(sample["id"] for sample in epoch["shown"])
            groups.setdefault((epoch["distinct"], ids) if ids else rank, []).append(rank)
        return [tuple(ranks) for ranks in groups.values() if len(ranks) > 1]

    def beyond_chance(self, *, by_index: bool) -> list[RankPair]:
        """Pairs of ranks with more in common than by chance; all pairs, if only all together have more."""
        own = sum(self._own.values())
        each = 2 * own / max(1, len(self.epochs))
        surely = by_index and not own
        beyond = [
            pair for pair in self.pairs if _exceeds(pair.twice, max(pair.own, each), 1.0, pair.share, surely=surely)
        ]
        return beyond or (self.pairs if self._all_exceed(own, surely=surely) else [])

    def _all_exceed(self, own: float, *, surely: bool) -> bool:
        """Whether all together exceed chance, as if many ranks each shuffle: pairs share little, a rank shares much."""
        twice = 0.0
        held = dict.fromkeys(self.epochs, 0)
        for samples in self.common.values():
            times = [sample["times"] for _, sample in samples]
            twice += (sum(times) ** 2 - sum(time * time for time in times)) / 2
            for rank, _ in samples:
                held[rank] += 1
        share = max((number / len(self.epochs[rank]["shown"]) for rank, number in held.items() if number), default=0.0)
        return _exceeds(twice, own, len(self.epochs) - 1.0, share, surely=surely)


def _exceeds(twice: float, own: float, chances: float, share: float, *, surely: bool) -> bool:
    """`chances`: how much likelier an equal sample is elsewhere than on the same rank. `surely`: ids are indices and no
    rank repeats its own, so one in common is enough."""
    if surely:
        return twice > 0
    noise = SIGMAS * math.sqrt(own) + LEAST_PAIRS
    return twice > max(TIMES_CHANCE * own, own + noise) * chances and share >= LEAST_SHARE


def shows_all(epoch: Epoch) -> bool:
    return epoch["distinct"] <= len(epoch["shown"])


def _below(epoch: Epoch, limit: int) -> int:
    """How many shown samples have a hash up to `limit`."""
    if limit == EVERYTHING:
        return len(epoch["shown"])
    return bisect.bisect_right(epoch["shown"], limit, key=lambda sample: mixed(sample["id"]))


@functools.lru_cache(maxsize=8)
def of(loader: Loader, number: int) -> Overlaps:
    """The overlaps of an epoch, with one rank of each group that shares samples on purpose."""
    return Overlaps(loader.heads(number))


def found(loader: Loader) -> bool:
    """Whether ranks have more in common than by chance, including what evens them out."""
    return any(of(loader, number).beyond_chance(by_index=loader.by_index) for number in EPOCHS)


def again_next_epoch(loader: Loader) -> float | None:
    """The share of one epoch's samples that come again in the other, on any rank: 1.0 if content is stable. None if
    nothing can be compared."""
    first, second = (_union(loader, number) for number in EPOCHS)
    if not first or not second:
        return None
    limit = min(_highest(loader, number) for number in EPOCHS)
    if limit != EVERYTHING:
        first, second = ({id_ for id_ in ids if mixed(id_) <= limit} for ids in (first, second))
    fewer, more = sorted((first, second), key=len)
    return len(fewer & more) / len(fewer) if fewer else None


def _union(loader: Loader, number: int) -> set[int]:
    return {sample["id"] for epoch in loader.heads(number).values() for sample in epoch["shown"]}


def _highest(loader: Loader, number: int) -> int:
    """The hash up to which all ranks show all their samples."""
    limits = of(loader, number)._limits
    return min(limits.values(), default=EVERYTHING)


def example(loader: Loader, pair: RankPair, overlaps: Overlaps) -> Iterator[str]:
    """ "index 17 (sample 3 of rank 0, sample 0 of rank 1)": at most one."""
    for id_ in pair.shared[:1]:
        place = {rank: sample["place"] for rank, sample in overlaps.common[id_]}
        where = (
            f"sample {place[pair.first]:,} of rank {pair.first}, sample {place[pair.second]:,} of rank {pair.second}"
        )
        yield f"index {id_:,} ({where})" if loader.by_index else where
