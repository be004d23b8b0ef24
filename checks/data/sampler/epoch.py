"""One epoch's ids as they come, and what is told of them."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from preflight.checks.data.sampler.lowest_hashes import shown
from preflight.checks.data.shared.readings import Epoch

if TYPE_CHECKING:
    import torch

COMMONEST = 20


class Ids:
    """Of one epoch, in their order."""

    def __init__(self) -> None:
        self.values = array("q")
        self.dropped = array("q")
        """Of an incomplete last batch, which the loader does not yield."""
        self.batches = 0
        self.whole = False
        self.indices = True
        """Whether all of them are indices, and none a digest."""
        self._sizes: Counter[int] = Counter()
        self._last = 0
        self._sized = True

    def __len__(self) -> int:
        return len(self.values)

    def add_batch(self, ids: Sequence[int], *, sized: bool = True) -> None:
        """`sized`: whether as many ids are as many samples. Raises TypeError or OverflowError where they are no whole
        numbers of 64 bits; then nothing is added."""
        batch = array("q", ids)
        self.values.extend(batch)
        if self.batches:
            self._sizes[self._last] += 1
        self.batches += 1
        self._last = len(batch)
        self._sized = self._sized and sized

    def drop_below(self, size: int) -> None:
        """Leaves out the last batch of an epoch that was read whole, where it has fewer samples."""
        if self.whole and 0 < self._last < size:
            self.values, self.dropped = self.values[: -self._last], self.values[-self._last :]
            self.batches, self._last = self.batches - 1, size if self.batches > 1 else 0
            self._sizes -= Counter({size: 1})

    def from_the_end(self, length: int) -> None:
        """Indices below 0 become those that they stand for in a dataset of this length."""
        for ids in (_tensor(self.values), _tensor(self.dropped)):
            if self.indices:
                ids[(ids < 0) & (ids >= -length)] += length

    def chosen(self) -> "torch.Tensor":
        """int64[samples], in their order; at the end those that are dropped."""
        return _tensor(self.values + self.dropped)

    def epoch(self, world: int, loaders: int = 1) -> Epoch:
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
            order=hashlib.blake2b(self.values, digest_size=8).hexdigest(),
            ascending=bool((ids[1:] > ids[:-1]).all()),
            times=_commonest(Counter(dict(zip(many.tolist(), times.tolist(), strict=True)))),
            shown=shown(ids, world, loaders),
        )


def _tensor(values: "array[int]") -> "torch.Tensor":
    """int64, of the same memory."""
    import torch

    return torch.frombuffer(values, dtype=torch.int64) if values else torch.empty(0, dtype=torch.int64)


def _commonest(counted: "Counter[int]") -> dict[str, int]:
    return {str(value): count for value, count in counted.most_common(COMMONEST)}
