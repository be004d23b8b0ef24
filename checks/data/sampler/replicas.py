"""Whether the samplers know the number of ranks and their own rank, and shuffle the same way."""

from collections.abc import Iterator

from preflight.check import Code, Finding, ranges, vote
from preflight.checks.data.sampler import coverage, overlaps
from preflight.checks.data.sampler.one_loader import Loader, differing, listed

WRONG_REPLICAS = Code(
    "A sampler is made for the wrong number of ranks, or for the wrong rank.",
    fix="Leave num_replicas and rank out of DistributedSampler(...) once the process group is up, or pass "
    "get_world_size() and get_rank() of torch.distributed (LOCAL_RANK is only the position on the node).",
)
FIX_SHARED = (
    "Pass num_replicas=get_world_size() and rank=get_rank() of torch.distributed. If ranks share a model by tensor or "
    "pipeline parallelism: --set data.sampler.data_parallel={replicas}"
)
WRONG_DATA_PARALLEL = Code(
    "The number of data-parallel ranks differs from data.sampler.data_parallel.",
    fix="Pass the data-parallel size and rank as num_replicas and rank to the sampler, and the same seed on ranks that "
    "share a model; or correct --set data.sampler.data_parallel=N.",
)
DIFFERENT_SEEDS = Code(
    "Samplers shuffle with different seeds, so ranks take parts of different orders.",
    fix="Give DistributedSampler(seed=...) the same number on all ranks; use other seeds for what should "
    "differ by rank (augmentation).",
)
FIX_TWICE = (
    "Let only one of them do it: a loader for accelerator.prepare(), or that a Trainer makes, needs no sampler for "
    "ranks."
)
STOCK = "DistributedSampler"


def replicas(loader: Loader) -> Iterator[Finding]:
    numbers = {
        rank: reading["num_replicas"]
        for rank, reading in loader.readings.items()
        if reading["num_replicas"] is not None
    }
    expected = {loader.replicas, loader.run.job.world_size // loader.sharers}
    counted = vote(numbers)
    if set(numbers.values()) <= expected:
        yield from _places(loader)
    elif counted.decided and counted.usual in expected:
        for rank, number in counted.odd():
            text = f"the sampler has num_replicas={number}, expected {counted.usual} as on {counted.share()}"
            where = {**loader.place, **loader.run.job.where(rank)}
            yield WRONG_REPLICAS.fail(loader.says(text), evidence={"num_replicas": number}, **where)
    else:
        yield _wrong_number(loader, counted.usual, list(numbers), unanimous=counted.unanimous)


def parted_twice(loader: Loader) -> Iterator[Finding]:
    """Epochs are shorter by a factor of the ranks; nothing else shows it, since each leaves out different samples."""
    parted, known = loader.first.get("parted", []), coverage.both(loader)
    least = min(known, key=lambda cover: cover.missing, default=None)
    if len(parted) < 2 or least is None or least.missing <= coverage.LARGE_PART * least.length:
        return
    text = (
        f"{' and '.join(parted)} each split the samples between the ranks: {least.missing:,} of {least.length:,} are "
        "left out of each epoch, expected only one of them to split the samples"
    )
    yield WRONG_REPLICAS.fail(loader.says(text), evidence={"parted": parted}, fix=FIX_TWICE, **loader.place)


def _wrong_number(loader: Loader, number: int, ranks: list[int], *, unanimous: bool) -> Finding:
    right = f"{loader.replicas}, the number of {'data-parallel ' if loader.sharers > 1 else ''}ranks"
    who = f" on {listed(ranks, loader.world)}" if unanimous else f" on most of {ranges.ranks(ranks)}"
    text = f"the sampler has num_replicas={number}{who}, expected {right}"
    more = number - loader.replicas
    text += f": {more} of {number} parts of the samples are read by no rank" if more > 0 else ""
    proof = {"num_replicas": number, "expected": loader.replicas, "replicas": number}
    may_share = more < 0 < number and loader.world % number == 0
    fix = FIX_SHARED if may_share else None
    return WRONG_REPLICAS.fail(loader.says(text), evidence=proof, fix=fix, **loader.place)


def _places(loader: Loader) -> Iterator[Finding]:
    """Whether each replica has its ranks, in any order: a sampler may number them differently."""
    numbers = {rank: reading["replica"] for rank, reading in loader.readings.items() if reading["replica"] is not None}
    of_replica = {replica: ranks for replica, ranks in vote(numbers).ranks_of.items() if len(ranks) > loader.sharers}
    members = loader.run.members
    displaced = [rank for ranks in of_replica.values() for rank in ranks if numbers[rank] != members.index(rank)]
    if not of_replica:
        return
    if loader.sharers > 1 or 2 * len(displaced) > len(numbers) or len(set(numbers.values())) == 1 or not displaced:
        parts = [f"rank={replica} on {listed(ranks, loader.world)}" for replica, ranks in of_replica.items()]
        each = "a rank" if loader.sharers == 1 else f"{loader.sharers} ranks"
        text = f"the samplers have {', '.join(parts[:4])}, expected each number on {each}"
        yield WRONG_REPLICAS.fail(loader.says(text), evidence={"replicas": loader.replicas}, **loader.place)
        return
    for rank in sorted(displaced):
        twins = [twin for twin in of_replica[numbers[rank]] if twin != rank]
        text = (
            f"the sampler has rank={numbers[rank]}, expected {members.index(rank)}: {ranges.ranks(twins)} has it, too"
        )
        where = {**loader.place, **loader.run.job.where(rank)}
        yield WRONG_REPLICAS.fail(loader.says(text), evidence={"replica": numbers[rank]}, **where)


def seeds(loader: Loader) -> Iterator[Finding]:
    """Compares seeds. A user's sampler that shuffles only a rank's part may use a seed per rank."""
    shuffled = {
        rank: reading["seed"]
        for rank, reading in loader.readings.items()
        if reading["seed"] is not None and reading["shuffle"] is not False and (reading["num_replicas"] or 1) > 1
    }
    counted = vote(shuffled)
    if not counted.unanimous and (loader.first["sampler"] == STOCK or overlaps.found(loader)):
        odd, every = "the sampler shuffles with seed={}", "the samplers shuffle with seed={}"
        why = ": some samples are on several ranks and some on none"
        yield from differing(loader, counted, DIFFERENT_SEEDS.fail, "seed", odd, every, why, shown=str, **loader.place)


def data_parallel(loader: Loader, wanted: int | None) -> Iterator[Finding]:
    """Counts the different orders, if the user has said how many ranks read different samples."""
    if wanted is None:
        return
    if not 0 < wanted <= loader.world or loader.world % wanted:
        yield WRONG_DATA_PARALLEL.fail(f"data_parallel is {wanted}, expected a divisor of {loader.world} ranks")
        return
    epochs = loader.epoch(0)
    orders = vote({rank: epoch["order"] for rank, epoch in epochs.items() if epoch["samples"] > 1})
    if loader.is_whole(0) and orders.voters == loader.world and len(orders.ranks_of) != wanted:
        text = (
            f"{ranges.count(len(orders.ranks_of), 'different order')} of samples on {loader.world} ranks, expected "
            f"data_parallel={wanted}, each on {ranges.count(loader.sharers, 'rank')}"
        )
        yield WRONG_DATA_PARALLEL.fail(loader.says(text), evidence={"orders": len(orders.ranks_of)}, **loader.place)
