"""Compares all ranks' samples of an epoch with the dataset: counts how many times each index is read.

First the ranks meet at the store, where each says which epochs it has read whole. The first member names epochs to
count only if all come; a missing rank costs the count, but hangs no other. They are counted together, by a `reduce` to
the first member for each chunk of indices.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from preflight.check import Context
from preflight.checks.data.shared.readings import Together
from preflight.checks.data.shared.user_function import bounded

if TYPE_CHECKING:
    import torch

Key = tuple[str, int]
"""(a loader's name, number of the epoch)."""
COUNTED = 2 * 10**8
"""The most indices in all epochs: two epochs of 10^8 samples, for which each rank sends 800 MB. Further epochs are left
out."""
CHUNK = 1 << 22
"""Indices to count at once: 16 MiB of int32 per collective."""
CHUNK_S = 60.0
"""For one such collective, once all ranks are there: enough for a network of 0.3 MB/s."""
SPARE = 0.2
"""Share of the check's time after the latest meeting, which is the least that a collective may take. It should fail
before the check's deadline, so that ranks that wait in it can report that."""
LISTED_IN_ALL, LISTED = 4000, 1000
"""The most ids that the first member lists as repeated, and as missing: for all epochs, and for one."""


class Whole(NamedTuple):
    """An epoch that this rank read whole, by index."""

    ids: "torch.Tensor"
    """int64[samples + dropped], in order."""
    length: int
    """Of the dataset."""
    dropped: int = 0
    order: str = ""
    """A digest of the ids in their order."""


class EpochRead(TypedDict):
    """An epoch to count, as a rank or as all ranks together read it."""

    name: str
    epoch: int
    length: int
    """Length of the dataset."""
    first: int
    """The lowest index to count, below 0 if a rank has such ids; and the one after the highest."""
    last: int
    drops: bool
    """Whether any rank's batch sampler drops samples, which are also counted."""
    order: str
    silent: list[int]
    """Ranks whose samples are not counted, since another rank has the same in the same order."""


def together(
    ctx: Context, mine: Mapping[Key, Whole], data_parallel: int | None, patience_s: float, end_s: float
) -> list[Together]:
    """All members call it. `mine`: the epochs that this rank read whole. If only `data_parallel` ranks see different
    data, one of those with equal orders counts. The first member waits `patience_s` for the others, but no rank
    beyond `end_s` (by time.monotonic()).

    Returns, on the first member, the counts of the epochs that all read whole, with one length; on others, and if a
    rank is missing, nothing.
    """
    group, asked = None, [_read(key, whole) for key, whole in mine.items()]
    if len(ctx.members) > 1:
        asked = _agreed(ctx, asked if _has_group() else [], data_parallel, patience_s, end_s)
        left_s = end_s - time.monotonic() + SPARE * ctx.deadline_s
        # its own group: if the user's code skipped a collective, those of the world group no longer match
        group = bounded(ctx, ctx.part(ctx.members), min(CHUNK_S, left_s)) if asked else None
    ranks = _Ranks(ctx, group)
    listed = min(LISTED, LISTED_IN_ALL // max(1, len(asked)))
    counted = [ranks.count(epoch, mine[epoch["name"], epoch["epoch"]], listed) for epoch in _that_fit(asked)]
    return counted if ctx.rank == ctx.members[0] else []


def _has_group() -> bool:
    """Whether there is a process group: the user's code may have destroyed it."""
    from torch import distributed

    return distributed.is_initialized()


def _read(key: Key, whole: Whole) -> EpochRead:
    lowest, highest = (int(whole.ids.min()), int(whole.ids.max())) if len(whole.ids) else (0, 0)
    return EpochRead(
        name=key[0],
        epoch=key[1],
        length=whole.length,
        first=min(0, lowest),
        last=max(whole.length, highest + 1),
        drops=whole.dropped > 0,
        order=whole.order,
        silent=[],
    )


def _agreed(
    ctx: Context, read: list[EpochRead], data_parallel: int | None, patience_s: float, end_s: float
) -> list[EpochRead]:
    """The first answer in the store is valid for all: the first member's, or "nothing" from a rank that has waited long
    enough. (The first member may come as late as any other, and then waits as long.)"""
    from torch.distributed import DistStoreError

    first, *others = ctx.members
    store, leads = ctx.store(), ctx.rank == first
    store.set(f"read/{ctx.rank}", json.dumps(read))
    keys = [f"read/{rank}" for rank in others] if leads else ["asked"]
    asked: list[EpochRead] = []
    left_s = min(patience_s * (1 if leads else 2), end_s - time.monotonic())
    with ctx.collective("waiting for all ranks to have read their loaders"), suppress(DistStoreError):
        store.wait(keys, timedelta(seconds=max(0.001, left_s)))
        if leads:
            theirs = dict(zip(others, map(json.loads, store.multi_get(keys)), strict=True))
            asked = _common({first: read, **theirs}, data_parallel)
    answer: list[EpochRead] = json.loads(store.compare_set("asked", "", json.dumps(asked)))
    return answer


def _common(read: Mapping[int, list[EpochRead]], data_parallel: int | None) -> list[EpochRead]:
    """Epochs that all ranks read, with datasets of equal length, in the first rank's order. `read`: by rank."""
    asked: list[EpochRead] = []
    for mine in next(iter(read.values())):
        of = {rank: epoch for rank, epochs in read.items() for epoch in epochs if _key(epoch) == _key(mine)}
        if len(of) < len(read):
            continue
        firsts: dict[str, int] = {}
        same = [rank for rank, epoch in of.items() if firsts.setdefault(epoch["order"], rank) != rank]
        shares = data_parallel is not None and data_parallel < len(read)
        first, last = min(epoch["first"] for epoch in of.values()), max(epoch["last"] for epoch in of.values())
        drops = any(epoch["drops"] for epoch in of.values())
        asked.append({**mine, "first": first, "last": last, "drops": drops, "silent": same if shares else []})
    return asked


def _key(epoch: EpochRead) -> tuple[str, int, int]:
    return epoch["name"], epoch["epoch"], epoch["length"]


def _that_fit(asked: list[EpochRead]) -> Iterator[EpochRead]:
    left = COUNTED
    for epoch in asked:
        if epoch["last"] - epoch["first"] <= left:
            left -= epoch["last"] - epoch["first"]
            yield epoch


@dataclass(frozen=True)
class _Ranks:
    ctx: Context
    group: "torch.distributed.ProcessGroup | None"
    """None if there is only one rank."""

    def count(self, epoch: EpochRead, whole: Whole, listed: int) -> Together:
        """All ranks' differences from the dataset; only valid on the first member."""
        counted = Together(
            name=epoch["name"], epoch=epoch["epoch"], again={}, missing=[], agains=0, misses=0, again_dropped=0
        )
        ids = whole.ids[:0] if self.ctx.rank in epoch["silent"] else whole.ids
        dropped = ids[max(0, len(ids) - whole.dropped) :]
        for start in range(epoch["first"], epoch["last"], CHUNK):
            end = min(start + CHUNK, epoch["last"])
            where = f"of indices {start:,} to {end - 1:,}"
            counts = self._summed(_counts(ids, start, end), where)
            drops = self._summed(_counts(dropped, start, end), f"{where}, dropped") if epoch["drops"] else None
            if self.ctx.rank == self.ctx.members[0]:
                _add_examples(counted, counts, drops, start, epoch["length"], listed)
        return counted

    def _summed(self, counts: "torch.Tensor", where: str) -> "torch.Tensor":
        """The sum over all ranks, on the first member."""
        import torch

        if self.group is None:
            return counts
        sent = counts.to(self.ctx.device)
        with self.ctx.collective("reduce", where):
            torch.distributed.reduce(sent, group=self.group, group_dst=0)
        return sent.cpu()


def _counts(ids: "torch.Tensor", start: int, end: int) -> "torch.Tensor":
    """int32[end - start]: how many times each index from `start` on occurs."""
    import torch

    chosen = ids[(ids >= start) & (ids < end)]
    return torch.bincount(chosen - start, minlength=end - start).to(torch.int32)


def _add_examples(
    counted: Together, counts: "torch.Tensor", drops: "torch.Tensor | None", start: int, length: int, listed: int
) -> None:
    """Adds what a chunk of counts from index `start` on shows. `listed`: the most ids to list of each kind."""
    import torch

    wanted = torch.zeros_like(counts)
    wanted[max(0, -start) : max(0, length - start)] = 1
    again = (counts - wanted).clamp_(min=0)
    places, missing = again.nonzero().flatten(), (counts < wanted).nonzero().flatten()
    counted["agains"] += int(again.sum())
    counted["misses"] += len(missing)
    if drops is not None:
        counted["again_dropped"] += int(torch.minimum(again, drops).sum())
    counted["missing"] += (missing[: listed - len(counted["missing"])] + start).tolist()
    places = places[: listed - len(counted["again"])]
    counted["again"] |= {str(place + start): int(again[place]) for place in places.tolist()}
