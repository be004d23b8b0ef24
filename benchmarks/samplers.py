"""10^8 samples on 1,024 made-up ranks, compared as data.sampler does it, over a real store: `python -m
benchmarks.samplers [SAMPLES] [RANKS]`.

The ranks take their turns in one process, each with a stride of one permutation, as torch's DistributedSampler deals
them out; the first member comes last and reads all sketches.
"""

import math
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # not in __all__

from preflight.check import Context, Job
from preflight.checks.data.sampler import aggregate, sketch
from preflight.checks.data.shared.readings import Together
from preflight.engine import store_client

FACTOR = 61_803_399


class Metered:
    """A store that counts the bytes that are set."""

    def __init__(self, store: Any) -> None:
        self.store, self.told = store, 0

    def set(self, key: str, value: str | bytes) -> None:
        self.told += len(key) + len(value)
        self.store.set(key, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class NoPage:
    def doing(self, what: str, where: Any) -> None: ...
    def enter(self, operation: str, shape: str) -> None: ...
    def leave(self) -> None: ...


def at(places: torch.Tensor, samples: int) -> torch.Tensor:
    """What stands there in a permutation of range(samples)."""
    factor = next(factor for factor in range(FACTOR, 2 * FACTOR) if math.gcd(factor, samples) == 1)
    return places % samples * factor % samples


def dealt(samples: int, ranks: int, *, drops: bool) -> Iterator[torch.Tensor]:
    """The ids of each rank, from the last to the first."""
    end = samples - samples % ranks if drops else samples + -samples % ranks
    for rank in reversed(range(ranks)):
        yield at(torch.arange(rank, end, ranks), samples)


def run(samples: int, ranks: int, *, drops: bool = False, wrong: tuple[int, int] | None = None) -> Together:
    """`wrong`: this rank sees an id of that one instead of its own, in the middle."""
    server = store_client.connect("127.0.0.1", 0, 60.0, is_master=True)
    store = Metered(PrefixStore("bench", server))
    members, client, never = tuple(range(ranks)), cast(Any, store), cast(Any, None)
    job = Job("env", ranks, "gloo", ())
    own: list[tuple[float, float]] = []
    found: list[Together] = []
    for rank, ids in zip(reversed(members), dealt(samples, ranks, drops=drops), strict=True):
        if wrong and rank == wrong[0]:
            ids[len(ids) // 2] = at(torch.tensor([wrong[1] + ranks * (len(ids) // 3)]), samples)
        ctx = Context("data.sampler", job, rank, rank, members, {}, 60.0, NoPage(), never, lambda: client)
        start = time.perf_counter()
        found = aggregate.together(ctx, {("", 0): aggregate.Whole(ids, samples)}, {("", 0): ""}, None, 60.0)
        told = time.perf_counter()
        sketch.shown(ids, ranks)
        own.append((told - start, time.perf_counter() - told))
    sketches, shows = zip(*own[:-1], strict=True)
    print(
        f"    a rank: sketch {statistics.median(sketches) * 1e3:.1f} ms, the lowest hashes "
        f"{statistics.median(shows) * 1e3:.1f} ms, {store.told / (ranks - 1) / 1e3:.1f} KB told; the first one reads "
        f"{store.told / 1e6:.1f} MB in {own[-1][0]:.2f} s (the indices themselves: {samples * 8 / 1e6:,.0f} MB)"
    )
    return found[0]


def said(name: str, found: Together, again: list[int], missing: list[int]) -> None:
    if not found["exact"]:
        print(f"    {name}: {len(again):,} too often, {len(missing):,} missing: more than these sketches hold")
        return
    right = (list(map(int, found["again"])), found["missing"]) == (again[:1000], missing[:1000])
    right = right and (found["agains"], found["misses"]) == (len(again), len(missing))
    print(f"    {name}: {found['agains']:,} too often, {found['misses']:,} missing: {'right' if right else 'WRONG'}")


def main(samples: int, ranks: int) -> None:
    torch.set_num_threads(1)  # as on a node that is full of ranks
    print(f"  {samples:,} shuffled samples, {ranks:,} ranks")
    padded = at(torch.arange(-samples % ranks), samples).sort().values.tolist()
    said("padded", run(samples, ranks), padded, [])
    dropped = at(torch.arange(samples - samples % ranks, samples), samples).sort().values.tolist()
    said("the tail dropped", run(samples, ranks, drops=True), [], dropped)
    length = (samples + -samples % ranks) // ranks
    last, first = ranks - 1, ranks // 3
    twice = int(at(torch.tensor(first + ranks * (length // 3)), samples))
    never = int(at(torch.tensor(last + ranks * (length // 2)), samples))
    found = run(samples, ranks, wrong=(last, first))
    said(f"padded, and rank {last} sees one of rank {first}'s", found, sorted([*padded, twice]), [never])


if __name__ == "__main__":
    given = [int(word.replace("_", "")) for word in sys.argv[1:]]
    main(*(given + [10**8, 1024][len(given) :]))
