"""All ranks' samples of an epoch against the dataset: the first member reads every rank's sketch.

A rank's sketch is that of its samples less its own block of range(length): summed over the ranks it is all samples less
each index once. A rank tells two kinds of words over the store: `read/<rank>`, the epochs that it has read, and
`sketch/<rank>/<number>`, one for each of them.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from preflight.check import Context
from preflight.checks.data.sampler.sketch import Sketch, from_bytes, to_bytes
from preflight.checks.data.shared.readings import Together

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

Key = tuple[str, int]
"""A loader's name, and which epoch."""
ENDS = 64
"""Samples at each end of a rank's epoch that it tells by id. What evens the ranks out is taken from the beginning once
more and put at the end: so most repeats are known before decoding, also where there are more than a sketch holds."""
LISTED_IN_ALL = 4000
"""Ids that are told by the first member, of all epochs: of each too often, and missing."""
LISTED = 1000
LONGEST_BLOCK = 10**8
"""Indices that a rank subtracts: some seconds. A dataset that claims more of them for each rank is left out."""
AT_ONCE = 64
"""Sketches in one reading of the store: less than 5 MB."""
DROPPED_IN_ALL = 1 << 20
"""Samples that batch samplers drop from all ranks' epoch are told by id, 8 bytes each. They are fewer than a global
batch; an epoch with more is left out."""


class Whole(NamedTuple):
    """An epoch that this rank has read whole by index."""

    ids: "torch.Tensor"
    """int64[samples + dropped], in their order."""
    length: int
    """Of the dataset."""
    dropped: int = 0


class Said(TypedDict):
    """By a rank, of one epoch."""

    name: str
    epoch: int
    length: int
    ends: list[int]


@dataclass
class Told:
    """What one rank tells of an epoch."""

    said: Said
    sketch: Sketch
    dropped: "torch.Tensor"


def together(
    ctx: Context, mine: Mapping[Key, Whole], orders: Mapping[Key, str], data_parallel: int | None, patience_s: float
) -> list[Together]:
    """All members call it. `mine`: the epochs that this rank has read whole; `orders`: the digests of their ids. Where
    only `data_parallel` ranks see unlike data, of those with equal orders one counts.

    On the first member the epochs that all have read whole, with one length; on others, and where a rank has told
    nothing within `patience_s`, none.
    """
    first, *others = ctx.members
    store = ctx.store() if others else None
    ctx.doing("sketching the samples")
    told: dict[Key, Told] = {}
    for key, epoch in mine.items():
        if epoch.length <= LONGEST_BLOCK * len(ctx.members) and epoch.dropped * len(ctx.members) <= DROPPED_IN_ALL:
            counts = not store or data_parallel is None or _is_first(store, key, orders[key], data_parallel, ctx)
            told[key] = _told(key, epoch if counts else Whole(epoch.ids[:0], epoch.length), ctx)
    if store and ctx.rank != first:
        _tell(store, ctx.rank, list(told.values()))
        return []
    ctx.doing("reading all ranks' sketches")
    return list(_all(store, others, told, time.monotonic() + patience_s))


def _is_first(store: "Store", key: Key, order: str, data_parallel: int, ctx: Context) -> bool:
    """Whether no other rank has claimed this order of the epoch before."""
    if data_parallel >= len(ctx.members):
        return True
    return store.add(f"claimed/{key[1]}/{order}/{key[0]}", 1) == 1


def _told(key: Key, epoch: Whole, ctx: Context) -> Told:
    (ids, length, dropped), world, place = epoch, len(ctx.members), ctx.group_rank
    sketch = Sketch.of(ids, world).minus_range(length * place // world, length * (place + 1) // world)
    ends = [*ids[:ENDS].tolist(), *ids[max(ENDS, len(ids) - ENDS) :].tolist()]
    return Told(Said(name=key[0], epoch=key[1], length=length, ends=ends), sketch, ids[len(ids) - dropped :])


def _tell(store: "Store", rank: int, told: Sequence[Told]) -> None:
    for number, of_epoch in enumerate(told):
        raw = of_epoch.sketch.to_bytes() + to_bytes(of_epoch.dropped)
        store.set(f"sketch/{rank}/{number}", raw)  # type: ignore[arg-type]  # any bytes
    store.set(
        f"read/{rank}", json.dumps([of_epoch.said for of_epoch in told])
    )  # last: then its sketches are there, too


def _all(store: "Store | None", others: Sequence[int], own: Mapping[Key, Told], end_s: float) -> Iterator[Together]:
    said = _said(store, others, end_s) if store else {}
    if len(said) < len(others):
        return
    for key, mine in own.items():
        theirs = {rank: of[key] for rank, of in said.items() if key in of}
        if len(theirs) < len(others) or any(
            of_epoch["length"] != mine.said["length"] for _, of_epoch in theirs.values()
        ):
            continue
        keys = [f"sketch/{rank}/{number}" for rank, (number, _) in theirs.items()]
        total = _total(store, keys, mine, end_s)
        if total is None:
            return
        listed = min(LISTED, LISTED_IN_ALL // len(own))
        yield _together(total, [mine.said["ends"], *(of_epoch["ends"] for _, of_epoch in theirs.values())], listed)


def _said(store: "Store", others: Sequence[int], end_s: float) -> dict[int, dict[Key, tuple[int, Said]]]:
    """By rank and epoch, with the numbers of the sketches; nothing where a rank has told nothing in time."""
    from torch.distributed import DistStoreError

    keys = [f"read/{rank}" for rank in others]
    try:
        store.wait(keys, timedelta(seconds=max(0.001, end_s - time.monotonic())))
    except DistStoreError:
        return {}
    lists: list[list[Said]] = [json.loads(text) for text in store.multi_get(keys)]
    return {
        rank: {(of_epoch["name"], of_epoch["epoch"]): (number, of_epoch) for number, of_epoch in enumerate(said)}
        for rank, said in zip(others, lists, strict=True)
    }


def _total(store: "Store | None", keys: list[str], own: Told, end_s: float) -> Told | None:
    """With what other ranks tell, which is then removed from the store: it may be the launcher's, that lives as long as
    the job. None where time is up."""
    import torch

    sketch, dropped, size = own.sketch, [own.dropped], len(own.sketch.to_bytes())
    for some in (keys[start : start + AT_ONCE] for start in range(0, len(keys), AT_ONCE)):
        assert store is not None, "it is there where other ranks are"
        if time.monotonic() > end_s:
            return None
        for key, raw in zip(some, store.multi_get(some), strict=True):
            sketch = sketch + Sketch.from_bytes(raw[:size], len(keys) + 1)
            dropped.append(from_bytes(raw[size:]))
            store.delete_key(key)
    return Told(own.said, sketch, torch.cat(dropped))


def _together(total: Told, ends: Sequence[Sequence[int]], listed: int) -> Together:
    """`ends`: of all ranks: an id that is there n times is seen at least n - 1 times too often. `listed`: how many ids
    are told."""
    import torch

    times = Counter(id_ for of in ends for id_ in of)
    known = Counter({id_: often - 1 for id_, often in times.items() if often > 1})
    rest = (total.sketch - Sketch.of(torch.tensor(list(known.elements()), dtype=torch.int64), len(ends))).decode()
    again = known + Counter(rest.again) if rest.exact else Counter[int]()
    dropped = Counter(total.dropped[torch.isin(total.dropped, torch.tensor(list(again), dtype=torch.int64))].tolist())
    return Together(
        name=total.said["name"],
        epoch=total.said["epoch"],
        exact=rest.exact,
        again={str(id_): again[id_] for id_ in sorted(again)[:listed]},
        missing=rest.missing[:listed],
        agains=again.total(),
        misses=len(rest.missing),
        again_dropped=(again & dropped).total(),
    )
