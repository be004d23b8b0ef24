"""10^8 samples on some ranks, counted as data.sampler does it, over gloo: `python -m benchmarks.samplers [SAMPLES]
[RANKS]`.

The ranks are processes of this machine, each with a stride of one permutation, as torch's DistributedSampler deals them
out.
"""

import math
import os
import sys
import time
from typing import Any

import torch
from torch import distributed

from preflight.check import Context, Job
from preflight.checks.data.sampler import aggregate, lowest_hashes
from preflight.checks.data.shared.readings import Together
from preflight.engine import store_client

FACTOR = 61_803_399
ENOUGH_S = 600.0


class NoPage:
    def doing(self, what: str, where: Any) -> None: ...
    def enter(self, operation: str, shape: str) -> None: ...
    def leave(self) -> None: ...


def at(places: torch.Tensor, samples: int) -> torch.Tensor:
    """What stands there in a permutation of range(samples)."""
    factor = next(factor for factor in range(FACTOR, 2 * FACTOR) if math.gcd(factor, samples) == 1)
    return places % samples * factor % samples


def dealt(samples: int, ranks: int, rank: int, *, drops: bool) -> torch.Tensor:
    """The ids of a rank."""
    end = samples - samples % ranks if drops else samples + -samples % ranks
    return at(torch.arange(rank, end, ranks), samples)


def count(ctx: Context, ids: torch.Tensor, samples: int) -> list[Together]:
    start = time.perf_counter()
    whole = {("", 0): aggregate.Whole(ids, samples)}
    found = aggregate.together(ctx, whole, None, ENOUGH_S, time.monotonic() + ENOUGH_S)
    counted = time.perf_counter()
    lowest_hashes.shown(ids, len(ctx.members))
    if ctx.group_rank == 0:
        shown_ms = (time.perf_counter() - counted) * 1e3
        print(f"    counted in {counted - start:.2f} s; the lowest hashes of a rank {shown_ms:.1f} ms")
    return found


def said(name: str, found: list[Together], again: list[int], missing: list[int]) -> None:
    for told in found:
        right = (list(map(int, told["again"])), told["missing"]) == (again[:1000], missing[:1000])
        right = right and (told["agains"], told["misses"]) == (len(again), len(missing))
        print(f"    {name}: {told['agains']:,} too often, {told['misses']:,} missing: {'right' if right else 'WRONG'}")


def measure(rank: int, samples: int, ranks: int, port: int) -> None:
    torch.set_num_threads(1)  # as on a node that is full of ranks
    client: Any = store_client.connect("127.0.0.1", port, 60.0)
    distributed.init_process_group("gloo", store=client, rank=rank, world_size=ranks)
    members, group = tuple(range(ranks)), distributed.group.WORLD
    steps = iter(range(10))

    def context() -> Context:
        store: Any = distributed.PrefixStore(f"step {next(steps)}", client)  # type: ignore[attr-defined]
        job = Job("env", ranks, "gloo", ())
        return Context(
            "data.sampler", job, rank, rank, members, {}, ENOUGH_S, NoPage(), lambda: group, lambda: store  # type: ignore[arg-type, return-value]
        )  # fmt: skip

    padded = at(torch.arange(-samples % ranks), samples).sort().values.tolist()
    said("padded", count(context(), dealt(samples, ranks, rank, drops=False), samples), padded, [])
    dropped = at(torch.arange(samples - samples % ranks, samples), samples).sort().values.tolist()
    said("the tail dropped", count(context(), dealt(samples, ranks, rank, drops=True), samples), [], dropped)
    ids = dealt(samples, ranks, rank, drops=False)
    never, twice = (int(at(torch.tensor(place * ranks + of), samples)) for place, of in ((7, ranks - 1), (9, 0)))
    if rank == ranks - 1:
        ids[7] = twice
    found = count(context(), ids, samples)
    said(f"padded, and rank {ranks - 1} sees a sample of rank 0's", found, sorted([*padded, twice]), [never])


def main(samples: int, ranks: int) -> None:
    print(f"  {samples:,} shuffled samples, {ranks:,} ranks", flush=True)
    server: Any = store_client.connect("127.0.0.1", 0, 60.0, is_master=True)
    pids = []
    for rank in range(ranks):
        pids.append(os.fork())
        if not pids[-1]:
            measure(rank, samples, ranks, server.port)
            sys.stdout.flush()
            os._exit(0)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    given = [int(word.replace("_", "")) for word in sys.argv[1:]]
    main(*(given + [10**8, 4][len(given) :]))
