"""Whether each rank sees its own samples, and all together see all."""

from collections.abc import Iterator, Mapping

from preflight.check import Code, Finding, Severity, ranges
from preflight.checks.data.sampler import coverage, datasets, orders, overlaps
from preflight.checks.data.sampler.coverage import Coverage
from preflight.checks.data.sampler.one_loader import Loader, listed
from preflight.checks.data.sampler.overlaps import LEAST_DISTINCT, Overlaps, RankPair
from preflight.checks.data.shared.readings import EPOCHS, Epoch, Reading

WORKERS_REPEAT = Code(
    "Each DataLoader worker yields every sample, so a rank sees each once per worker.",
    fix="In the dataset's __iter__ take each num_workers-th sample, from worker id on: see "
    "torch.utils.data.get_worker_info().",
)
SAME_SAMPLES = Code(
    "All ranks read the same samples: the job trains like a single rank, at a higher cost.",
    fix="Give the loader sampler=DistributedSampler(dataset, shuffle=...) and no shuffle argument. If ranks share "
    "a model, --set data.sampler.data_parallel=N. Return an evaluation on all samples in a dict, as 'val'.",
)
FIX_STREAM = (
    "In __iter__ take each WORLD_SIZE-th sample (or file), from the rank on: islice(samples, rank, None, world_size). "
    "If ranks share a model: --set data.sampler.data_parallel=N."
)
FIX_ACCELERATE = (
    "Accelerate found a single process. Start it with torchrun or accelerate launch; without GPUs it needs "
    "ACCELERATE_USE_CPU=true in the environment, or Accelerator(cpu=True)."
)
FIX_EVALUATION = "Nothing, if each rank should evaluate on all samples; else use sampler=DistributedSampler(dataset)."
FIX_DRAWN = "Seed the sampler's generator by rank: generator=torch.Generator().manual_seed(seed + rank)."
FIX_ENDLESS = (
    "Let each rank take its part of one endless order, islice(order, rank, None, world_size), or shuffle with its own "
    "seed."
)
FIX_SUBSETS = (
    "Give the ranks disjoint Subsets: indices[rank::world_size] of one list, shuffled with the same "
    "seed on all ranks; random_split with generator=torch.Generator().manual_seed(seed)."
)
OVERLAP = Code(
    "More than one rank reads the same samples in an epoch.",
    fix="Let the sampler split one order, shuffled with the same seed on all ranks, by rank: order[rank::world_size]. "
    "hash() of a text and the order of a set differ between processes. If ranks share a model: "
    "--set data.sampler.data_parallel=N.",
)
NEVER_SEEN = Code(
    "No rank reads some samples, in any epoch.",
    fix="Check how the sampler splits: the ranks' parts must add up to range(len(dataset)). To leave out a part "
    "on purpose, better remove it from the dataset: torch.utils.data.Subset.",
)
NAMED = 3
UNSURE = " (by index; whether all ranks have the same dataset is unknown)"


def workers(loader: Loader) -> Iterator[Finding]:
    """Streams in which every sample comes exactly once per worker."""
    epochs = loader.epoch(0)
    repeat = [rank for rank, epoch in epochs.items() if _workers_repeat(loader.readings[rank], epoch)]
    if not repeat:
        return
    number = loader.readings[repeat[0]]["workers"]
    distinct = max(epochs[rank]["distinct"] for rank in repeat)
    text = (
        f"on {listed(repeat, loader.world)} each of {distinct:,} samples comes {number} times, as there are {number} "
        "workers, expected once"
    )
    if len(repeat) == loader.world > 1 and overlaps.of(loader, 0).alike() == [tuple(epochs)]:
        text += "; the ranks also see the same samples as each other"
    where = loader.run.job.where(repeat[0]) if len(repeat) == 1 < loader.world else {}
    yield WORKERS_REPEAT.fail(loader.says(text), evidence={"workers": number}, **loader.place, **where)


def _workers_repeat(reading: Reading, epoch: Epoch) -> bool:
    """Whether all workers yield the same; an epoch not read whole may end before some workers have got there."""
    often = epoch["times"].get(str(reading["workers"]), 0)
    least = epoch["distinct"] if epoch["whole"] else MOST * epoch["distinct"]
    return reading["known_by"] == "content" and reading["workers"] > 1 < epoch["distinct"] and often >= least


MOST = 0.9


def same_samples(loader: Loader) -> Iterator[Finding]:
    for number in EPOCHS:
        epochs = loader.heads(number)
        seen = overlaps.of(loader, number)
        if not _is_everyone(loader, number, seen) or _is_padded(loader, number):
            continue
        samples = max(epoch["distinct"] for epoch in epochs.values())
        one_order = len({epoch["order"] for epoch in epochs.values()}) == 1
        text = (
            f"{listed(list(loader.readings), loader.run.job.world_size)} see the same {samples:,} samples"
            f"{_of_all(loader, samples)}, {'in one order' if one_order else 'each in its own order'}"
        )
        text += "" if loader.is_for_evaluation else f", expected {len(epochs):,} different parts"
        proof = {"samples": samples, "one_order": one_order}
        yield _severe(loader, SAME_SAMPLES, text, proof, _fix(loader))
        return


def _is_everyone(loader: Loader, number: int, seen: Overlaps) -> bool:
    """Whether all ranks see the same samples, and not by chance."""
    epochs = loader.heads(number)
    if len(epochs) < 2 or loader.augments or seen.alike() != [tuple(epochs)]:
        return False
    one_order = len({epoch["order"] for epoch in epochs.values()}) == 1
    if loader.repeats_by_design:
        return one_order
    fewest = min(epoch["distinct"] for epoch in epochs.values())
    if loader.by_index:
        return one_order or bool(seen.beyond_chance(by_index=True))
    return fewest >= LEAST_DISTINCT and bool(seen.beyond_chance(by_index=False))


def _is_padded(loader: Loader, number: int) -> bool:
    """Whether the dataset has fewer samples than there are ranks."""
    known = coverage.coverage(loader, number)
    return known is not None and known.is_padding


def _of_all(loader: Loader, samples: int) -> str:
    return f" of {loader.length:,}" if loader.by_index and loader.length and loader.length != samples else ""


def _fix(loader: Loader) -> str | None:
    if loader.is_for_evaluation:
        return FIX_EVALUATION
    if loader.first["loader"] == "DataLoaderShard" and not loader.first.get("parted"):
        return FIX_ACCELERATE if loader.by_index else FIX_STREAM
    return _fix_of_order(loader)


def _fix_of_order(loader: Loader) -> str | None:
    if loader.is_endless or loader.of_subsets:
        return FIX_ENDLESS if loader.is_endless else FIX_SUBSETS
    return FIX_DRAWN if loader.repeats_by_design else None if loader.by_index else FIX_STREAM


def _severe(loader: Loader, code: Code, text: str, proof: Mapping[str, object], fix: str | None) -> Finding:
    """Milder for an evaluation, which each rank may do by itself: in a list it has no name, but follows the training
    and is not shuffled. And if the content is unknown: each rank may have its own dataset, which needs no sampler."""
    unsure = loader.by_index and not datasets.is_known(loader) and loader.first["num_replicas"] is None
    unnamed = loader.name.isdecimal() and int(loader.name) > 0 and orders.is_sequential(loader)
    lower = Severity.WARN if unsure or unnamed else Severity.FAIL
    severity = Severity.INFO if loader.is_for_evaluation else lower
    text += UNSURE if unsure else ""
    return code.finding(severity, loader.says(text), evidence=proof, fix=fix, **loader.place)


def overlap(loader: Loader) -> Iterator[Finding]:
    """Ranks that share samples; if samples are drawn with replacement, only ranks that draw the same are wrong."""
    for number in EPOCHS:
        known, seen = coverage.coverage(loader, number), overlaps.of(loader, number)
        if loader.repeats_by_design:
            pairs = [] if loader.augments else _drawn_alike(seen)
        elif known and (known.is_padding or known.is_uneven_only or (known.exact and known.again <= known.own)):
            pairs = []
        else:
            pairs = seen.beyond_chance(by_index=loader.by_index)
        if pairs:
            yield _overlap(loader, known, seen, pairs)
            return


def _drawn_alike(seen: Overlaps) -> list[RankPair]:
    orders = {rank: epoch["order"] for rank, epoch in seen.epochs.items()}
    return [pair for pair in seen.pairs if orders[pair.first] == orders[pair.second] and pair.of >= LEAST_DISTINCT]


def _overlap(loader: Loader, known: Coverage | None, seen: Overlaps, pairs: list[RankPair]) -> Finding:
    paired = {(pair.first, pair.second) for pair in pairs}
    alike = [ranks for ranks in seen.alike() if (ranks[0], ranks[1]) in paired]
    inside = {(ranks[0], other) for ranks in alike for other in ranks[1:]}
    parts = [f"{ranges.ranks(ranks)} see the same {seen.epochs[ranks[0]]['distinct']:,} samples" for ranks in alike]
    parts += [_share(seen, pair) for pair in pairs if (pair.first, pair.second) not in inside]
    more = f", and {ranges.count(len(parts) - NAMED, 'more pair')}" if len(parts) > NAMED else ""
    such = "".join(f", such as {text}" for text in overlaps.example(loader, pairs[0], seen))
    total = ""
    if known and known.exact:
        total = f"; in total {known.again:,} times a sample comes again"
        total += f", and {known.missing:,} of {known.length:,} are read by no rank" if known.missing else ""
    text = f"{', '.join(parts[:NAMED])}{more}{such}{total}; expected each sample on one rank"
    proof = {
        "pairs": [[pair.first, pair.second, round(pair.share, 4)] for pair in pairs[:20]],
        "again": known and known.again,
    }
    culprit = _culprit(pairs, seen)
    where = loader.run.job.where(culprit) if culprit is not None else {}
    unsure = loader.of_subsets and not datasets.is_known(loader)
    return OVERLAP.finding(
        Severity.WARN if unsure else Severity.FAIL,
        loader.says(text + UNSURE if unsure else text),
        noticed_by=tuple({rank for pair in pairs for rank in (pair.first, pair.second)} - {culprit}),
        evidence=proof,
        fix=_fix_of_order(loader),
        **loader.place,
        **where,
    )


def _share(seen: Overlaps, pair: RankPair) -> str:
    """ "ranks 0 and 1 share 4 of 14 samples"; "about" if not all are shown."""
    fewer = min(seen.epochs[rank]["distinct"] for rank in (pair.first, pair.second))
    shared = len(pair.shared) if seen.is_all else max(1, round(pair.share * fewer))
    about = "" if seen.is_all else "about "
    return f"ranks {pair.first} and {pair.second} share {about}{shared:,} of {fewer:,} samples"


def _culprit(pairs: list[RankPair], seen: Overlaps) -> int | None:
    """The only rank that shares samples with three or more others, which share none with each other."""
    in_all = set.intersection(*({pair.first, pair.second} for pair in pairs))
    by_two = all(len(samples) == 2 for samples in seen.common.values())
    return in_all.pop() if len(pairs) > 2 and by_two and len(in_all) == 1 else None


def never_seen(loader: Loader) -> Iterator[Finding]:
    both = coverage.both(loader)
    if (
        not both
        or loader.of_subsets
        or loader.repeats_by_design
        or any(reading["by_design"] for reading in loader.readings.values())
    ):
        return
    least = min(both, key=lambda cover: cover.missing)
    if not least.samples:  # no batch at all
        return
    if not least.missing or least.is_tail or least.is_uneven_only or least.own or not coverage.misses_the_same(loader):
        return
    counted = loader.together.get(0)
    such = f", such as index {counted['missing'][0]:,}" if counted and counted["missing"] else ""
    about = "" if least.exact else "at least "
    text = f"{about}{least.missing:,} of {least.length:,} samples are read by no rank{such}, expected all to be read"
    proof = {"missing": least.missing, "examples": counted["missing"][:10] if counted else []}
    yield NEVER_SEEN.finding(loader.severity, loader.says(text), evidence=proof, **loader.place)
