"""Made-up facts of data.sampler: each rank's ids of two epochs, and all that follows from them."""

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from preflight import testing
from preflight.check import Job, Node, Run
from preflight.checks.data import sampler
from preflight.checks.data.sampler.epoch import mixed, share
from preflight.checks.data.shared.readings import Epoch, Facts, Reading, Together

Ids = Sequence[int]
MACHINE = "x86_64 AVX2"


def epoch(ids: Ids, size: int = 2, *, world: int = 4, whole: bool = True, sizes: Ids | None = None) -> Epoch:
    """`sizes`: of the batches, where they are not all `size`."""
    cut = list(sizes or [len(ids[start : start + size]) for start in range(0, len(ids), size)])
    times, places = Counter(ids), {id_: place for place, id_ in reversed(list(enumerate(ids)))}
    shown = sorted(times, key=mixed)[: share(world)]
    return Epoch(
        whole=whole,
        batches=len(cut),
        samples=len(ids),
        dropped=0,
        distinct=len(times),
        sizes={str(size): often for size, often in Counter(cut[:-1]).items()},
        last=cut[-1] if cut else 0,
        order=hashlib.sha256(repr(list(ids)).encode()).hexdigest()[:16],
        ascending=all(here < there for here, there in itertools.pairwise(ids)),
        times={str(often): number for often, number in Counter(times.values()).items()},
        shown=[{"id": id_, "place": places[id_], "times": times[id_]} for id_ in shown],
    )


def reading(*epochs: Epoch, length: int | None = 24, **more: Any) -> Reading:
    """By index, and no sampler of torch's."""
    plain: dict[str, Any] = {
        "name": "", "known_by": "index", "loader": "DataLoader", "sampler": "Own", "by_design": "", "file": None,
        "line": None, "dataset": "Numbers", "length": length, "batches": epochs[0]["batches"] if epochs else None,
        "drop_last": False, "workers": 0, "num_replicas": None, "replica": None, "seed": None, "shuffle": None,
        "set_epoch": [], "epochs": list(epochs), "loaded": [], "seconds": 0.1, "content": {"0": "a", "5": "b"},
        "machine": MACHINE, "mistake": None,
    }  # fmt: skip
    made: Reading = {**plain, **more}  # type: ignore[typeddict-item]
    return made


def together(ranks: Sequence[Ids], length: int, number: int, name: str = "") -> Together:
    counts = Counter(id_ for ids in ranks for id_ in ids)
    again = {str(id_): times - 1 for id_, times in sorted(counts.items()) if times > 1}
    missing = [id_ for id_ in range(length) if id_ not in counts]
    return Together(
        name=name, epoch=number, again=again, missing=missing, agains=sum(again.values()), again_dropped=0,
        misses=len(missing),
    )  # fmt: skip


def facts(readings: Mapping[int, Sequence[Reading]], told: Sequence[Together] = (), **more: Any) -> dict[int, Facts]:
    first = min(readings)
    made: dict[int, Any] = {
        rank: {
            "given": True, "function": "my:loader", "mistake": None, "readings": list(its),
            "together": list(told) if rank == first else [], "printed": [], "lines": 0, "written": [], **more,
        }
        for rank, its in readings.items()
    }  # fmt: skip
    return made


def read(
    *epochs: Sequence[Ids], length: int | None = 24, size: int = 2, exact: bool = True,
    of: Mapping[int, Any] | None = None, **more: Any,
) -> dict[int, Facts]:  # fmt: skip
    """Facts of one loader: of each epoch the ids of each rank. `of`: what single ranks have otherwise."""
    world = len(epochs[0])
    by_rank = {
        rank: [reading(*(epoch(ids[rank], size, world=world) for ids in epochs), length=length, **more)]
        for rank in range(world)
    }
    for rank, differing in (of or {}).items():
        by_rank[rank][0].update(differing)
    name = more.get("name", "")
    known = length is not None and exact and more.get("known_by", "index") == "index"
    return facts(by_rank, [together(ids, length or 0, number, name) for number, ids in enumerate(epochs) if known])


def merged(*several: dict[int, Facts]) -> dict[int, Facts]:
    """Several loaders."""
    first, *others = several
    for more in others:
        for rank, its in more.items():
            first[rank]["readings"] += its["readings"]
            first[rank]["together"] += its["together"]
    return first


# Loaders


STOCK: dict[str, Any] = {"sampler": "DistributedSampler", "shuffle": True, "seed": 0, "set_epoch": ["loader.sampler"]}


def shuffled(length: int, seed: int) -> list[int]:
    order = list(range(length))
    random.Random(seed).shuffle(order)
    return order


def dealt(order: Ids, world: int) -> list[Ids]:
    """As DistributedSampler: padded to a multiple of the ranks."""
    more = -len(order) % world
    padded = [*order, *(list(order) * -(-more // max(1, len(order))))[:more]]
    return [padded[rank::world] for rank in range(world)]


def stock(length: int = 24, world: int = 4, size: int = 2, **more: Any) -> dict[int, Facts]:
    """DistributedSampler(shuffle=True)."""
    epochs = [dealt(shuffled(length, seed), world) for seed in (0, 1)]
    made = read(*epochs, length=length, size=size, **{**STOCK, **more})
    for rank, of_rank in made.items():
        of_rank["readings"][0].update({"num_replicas": world, "replica": rank})
    return made


def own(parts: Any, *, length: int = 24, size: int = 2, **more: Any) -> dict[int, Facts]:
    """A sampler of the user's: `parts(order)` are the ranks' ids."""
    return read(*(parts(shuffled(length, seed)) for seed in (0, 1)), length=length, size=size, **more)


def content(parts: Any, *, length: int = 24, seeds: Sequence[int] = (0, 1), **more: Any) -> dict[int, Facts]:
    """A stream: ids are digests."""
    ids = [[[hash_of(pair) for pair in rank] for rank in parts(shuffled(length, seed))] for seed in seeds]
    more = {"content": {}, "known_by": "content", "sampler": "", "dataset": "Stream", **more}
    return read(*ids, **{"length": None, **more})


def hash_of(number: int) -> int:
    return number * 0x1E3779B97F4A7C15 % (1 << 63)


# Judging


def found(made: dict[int, Facts], **settings: object) -> list[dict[str, Any]]:
    return testing.judge(sampler, made, settings=settings)


def slugs(made: dict[int, Facts], **settings: object) -> list[str]:
    return [finding["code"].rpartition(".")[2] for finding in found(made, **settings)]


def above_info(made: dict[int, Facts], **settings: object) -> list[str]:
    told = [finding for finding in found(made, **settings) if finding["severity"] != "info"]
    return [f"{finding['severity']} {finding['code'].rpartition('.')[2]}" for finding in told]


def only(made: dict[int, Facts], **settings: object) -> dict[str, Any]:
    (finding,) = found(made, **settings)
    return {**finding, "slug": finding["code"].rpartition(".")[2]}


def summary(made: dict[int, Facts], **options: Any) -> str:
    job = Job("env", len(made), "gloo", (Node("node-0", 0, tuple(made)),))
    values = {getattr(sampler, name.upper()): value for name, value in options.items()}
    return sampler.summarize(made, Run(job, tuple(made), {}, values))
