"""All ranks have as many batches, of the same size."""

from collections.abc import Iterator, Mapping, Sequence

from preflight.check import Code, Finding, ranges, vote
from preflight.checks.data.sampler.one_loader import Loader, differing, listed
from preflight.checks.data.shared.readings import EPOCHS
from preflight.sdk import effective_batch

UNEQUAL_BATCHES = Code(
    "Ranks have unequal numbers of batches: the epoch's end hangs, since ranks with more wait for ranks with fewer.",
    fix="Let the sampler pad or cut (DistributedSampler's drop_last), end the epoch after the same number of steps on "
    "all ranks, or train under torch.distributed.algorithms.Join.",
)
NO_BATCHES = Code(
    "A rank gets no batch.",
    fix="Check how samples or files are distributed: there are fewer than ranks (times workers), or drop_last leaves "
    "no whole batch. A loader must start over at each __iter__.",
)
BATCH_SIZES = Code(
    "Ranks have batches of different sizes: gradients are averaged by rank, so their samples have different weights.",
    fix="Give all ranks the same batch_size, or weight each rank's loss by its samples.",
)
WRONG_GLOBAL_BATCH = Code(
    "Ranks x batch size x accumulation is not the given global batch.",
    fix="Change batch_size, the number of ranks, data.sampler.accumulate or data.sampler.global_batch: the learning "
    "rate was tuned for one global batch.",
)
FEWEST = 4
"""The fewest batches of a rank whose common size is taken as the batch size."""


def numbers(loader: Loader) -> Iterator[Finding]:
    for number in EPOCHS:
        batches = _of_epoch(loader, number)
        if not batches or (min(batches.values()) == max(batches.values()) > 0):
            continue
        yield from _none(loader, number, batches) if min(batches.values()) == 0 else _unequal(loader, number, batches)
        return


def _of_epoch(loader: Loader, number: int) -> dict[int, int]:
    """Batches by rank. If not all read their epoch whole, by len(loader); or those read, if a rank that reached the end
    has fewer than others already."""
    epochs = loader.epoch(number)
    read = {rank: epoch["batches"] for rank, epoch in epochs.items()}
    ended = [epoch["batches"] for epoch in epochs.values() if epoch["whole"]]
    if not epochs or len(ended) == len(epochs) or (ended and min(ended) < max(read.values())):
        return read
    lengths = {rank: reading["batches"] for rank, reading in loader.readings.items() if reading["batches"] is not None}
    return lengths if len(lengths) == len(loader.readings) and loader.by_index else {}


def _none(loader: Loader, number: int, batches: Mapping[int, int]) -> Iterator[Finding]:
    idle = [rank for rank, count in batches.items() if not count]
    most, when = max(batches.values()), "in the second epoch " if number else ""
    expected = f"expected {most:,} as on others" if most else "expected some"
    proof = {"batches": most, "epoch": number}
    odd = len(idle) < len(batches) / 2 or len(idle) == 1 < len(batches)
    for ranks in [[rank] for rank in idle] if odd else [idle]:
        who = "the rank gets" if odd else f"{listed(ranks, loader.world)} get{'s' if len(ranks) == 1 else ''}"
        text = f"{when}{who} no batch, {expected}"
        where = loader.run.job.where(ranks[0]) if odd else {}
        yield NO_BATCHES.finding(loader.severity, loader.says(text), evidence=proof, **loader.place, **where)


def _unequal(loader: Loader, number: int, batches: Mapping[int, int]) -> Iterator[Finding]:
    """Blames no rank: the fault is in how samples are distributed."""
    sides = sorted(vote(batches).ranks_of.items(), reverse=True)
    parts = [f"{listed(ranks, loader.world)} {_have(ranks)} {_batches(count)}" for count, ranks in sides]
    if len(parts) > 3:
        parts = [parts[0], f"{len(parts) - 2} groups between", parts[-1]]
    (most, first), (fewest, _) = sides[0], sides[-1]
    sizes = vote(constants(loader)) if constants(loader) else None
    why = f" (the batch size is {sizes.sides()})" if sizes and not sizes.unanimous else ""
    when = "in the second epoch " if number else ""
    text = (
        f"{when}{', '.join(parts)}{why}, expected the same on all: after step {fewest:,} {listed(first, loader.world)} "
        f"wait{'s' if len(first) == 1 else ''} in the first collective for ranks that have left the epoch"
    )
    proof = {"most": most, "fewest": fewest, "epoch": number}
    more = tuple(rank for rank, count in batches.items() if count > fewest)
    yield UNEQUAL_BATCHES.finding(loader.severity, loader.says(text), noticed_by=more, evidence=proof, **loader.place)


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _batches(number: int) -> str:
    return f"{number:,} batch{'' if number == 1 else 'es'}"


def constants(loader: Loader) -> dict[int, int]:
    """The batch size by rank, if there are enough batches, and all but an epoch's last have it."""
    return {rank: size for rank in loader.readings if (size := _constant(loader, rank))}


def _constant(loader: Loader, rank: int) -> int:
    epochs = loader.readings[rank]["epochs"]
    sizes = {int(size) for epoch in epochs for size in epoch["sizes"]}
    batches = sum(often for epoch in epochs for often in epoch["sizes"].values())
    size = max(sizes, default=0)
    return size if len(sizes) == 1 and batches >= FEWEST and all(epoch["last"] <= size for epoch in epochs) else 0


def sizes(loader: Loader) -> Iterator[Finding]:
    counted, odd, every = vote(constants(loader)), "batches have {} samples", "the batch size is {}"
    yield from differing(loader, counted, BATCH_SIZES.warn, "batch_size", odd, every, **loader.place)


def wrong_global_batch(loaders: Sequence[Loader], wanted: int | None, accumulate: int) -> Iterator[Finding]:
    """One of the training loaders must have the global batch."""
    trained = [candidate for candidate in loaders if not candidate.is_for_evaluation and _known_sizes(candidate)]
    global_batches = [sum(_known_sizes(candidate).values()) // candidate.sharers * accumulate for candidate in trained]
    if wanted is None or not global_batches or wanted in global_batches:
        return
    loader, number = trained[0], global_batches[0]
    sizes = _known_sizes(loader)
    each = " or ".join(f"{size:,}" for size in sorted(set(sizes.values()))[:3])
    steps = f" x {accumulate} steps" if accumulate > 1 else ""
    text = (
        f"a step trains on {number:,} samples ({each} x {ranges.count(len(sizes) // loader.sharers, 'rank')}{steps}), "
        f"expected the global batch of {wanted:,}"
    )
    yield WRONG_GLOBAL_BATCH.fail(loader.says(text), evidence={"global_batch": number, "expected": wanted})


def effective(loader: Loader, accumulate: int, base: int | None, rate: float | None) -> str:
    """The effective batch in words, over ranks that see different samples; "" for loaders that are not trained on."""
    sizes = [] if loader.is_for_evaluation else [*_known_sizes(loader).values()][:: loader.sharers]
    return effective_batch.in_words(sizes, len(sizes), accumulate, base, rate) if sizes else ""


def _known_sizes(loader: Loader) -> dict[int, int]:
    """Batch sizes by rank; empty if not all are known. For a rank with a single batch, that one's size."""
    known = {rank: _size(loader, rank) for rank in loader.readings}
    return known if all(known.values()) and len(known) == loader.world else {}


def _size(loader: Loader, rank: int) -> int:
    epochs = loader.readings[rank]["epochs"]
    found = {size for epoch in epochs for size in ([int(full) for full in epoch["sizes"]] or [epoch["last"]])}
    return found.pop() if len(found) == 1 else 0
