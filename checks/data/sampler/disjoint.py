"""Whether each rank sees its own samples, and all together see all."""

from collections.abc import Iterator, Mapping

from preflight.check import Code, Finding, Severity, ranges
from preflight.checks.data.sampler import coverage, datasets, orders, overlaps
from preflight.checks.data.sampler.coverage import Coverage
from preflight.checks.data.sampler.one_loader import Loader, listed
from preflight.checks.data.sampler.overlaps import LEAST_DISTINCT, Overlaps, RankPair
from preflight.checks.data.shared.readings import EPOCHS, Epoch, Reading

WORKERS_REPEAT = Code(
    "Each DataLoader worker yields every sample, so that a rank sees each as often as it has workers.",
    fix="In the dataset's __iter__ take each num_workers-th sample, from worker id on: see "
    "torch.utils.data.get_worker_info().",
)
ALL_SEE_ALL = Code(
    "All ranks read the same samples: the job trains as one rank would, at a higher cost.",
    fix="Give the loader sampler=DistributedSampler(dataset, shuffle=...) and no shuffle of its own. Where ranks share "
    "a model, say --set data.sampler.data_parallel=N. Return an evaluation on all samples in a dict, as 'val'.",
)
FIX_STREAM = (
    "In __iter__ take each WORLD_SIZE-th sample (or file), from the rank on: islice(samples, rank, None, world_size). "
    "Where ranks share a model, say --set data.sampler.data_parallel=N."
)
FIX_ACCELERATE = (
    "Accelerate has found a single process. Start it by torchrun or accelerate launch; without GPUs it needs "
    "ACCELERATE_USE_CPU=true in the environment, or Accelerator(cpu=True)."
)
FIX_EVALUATION = (
    "Nothing to do where each rank is to evaluate on all samples; else sampler=DistributedSampler(dataset)."
)
FIX_DRAWN = "Seed the sampler's generator by rank: generator=torch.Generator().manual_seed(seed + rank)."
FIX_ENDLESS = (
    "Let each rank take its part of the one endless order, islice(order, rank, None, world_size), or shuffle by a seed "
    "of its own."
)
FIX_SUBSETS = (
    "Let the ranks' Subsets have no index in common: indices[rank::world_size] of one list, which is shuffled with one "
    "seed on all ranks; random_split with generator=torch.Generator().manual_seed(seed)."
)
OVERLAP = Code(
    "More than one rank reads the same samples in an epoch.",
    fix="Let the sampler part one order, shuffled with one seed on all ranks, by the rank: order[rank::world_size]. "
    "hash() of a text and the order of a set differ between processes. Where ranks share a model, say "
    "--set data.sampler.data_parallel=N.",
)
NEVER_SEEN = Code(
    "No rank reads some samples, in any epoch.",
    fix="Look at where the sampler cuts: its ranks' parts must add up to range(len(dataset)). A part that is left out "
    "on purpose is better cut off the dataset: torch.utils.data.Subset.",
)
NAMED = 3
UNSURE = " (by index; whether it is the same dataset on all ranks was not seen)"


def workers(loader: Loader) -> Iterator[Finding]:
    """A stream in which every sample comes exactly as often as there are workers."""
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
    """An epoch that was not read whole ends where not all workers have got."""
    often = epoch["times"].get(str(reading["workers"]), 0)
    least = epoch["distinct"] if epoch["whole"] else MOST * epoch["distinct"]
    return reading["known_by"] == "content" and reading["workers"] > 1 < epoch["distinct"] and often >= least


MOST = 0.9


def all_see_all(loader: Loader) -> Iterator[Finding]:
    for number in EPOCHS:
        epochs = loader.heads(number)
        seen = overlaps.of(loader, number)
        if not _is_everyone(loader, number, seen) or _is_padded(loader, number):
            continue
        samples = max(epoch["distinct"] for epoch in epochs.values())
        one_order = len({epoch["order"] for epoch in epochs.values()}) == 1
        text = (
            f"{listed(list(loader.readings), loader.run.job.world_size)} see the same {samples:,} samples"
            f"{_of_all(loader, samples)}, {'in one order' if one_order else 'each in an order of its own'}"
        )
        text += "" if loader.is_for_evaluation else f", expected {len(epochs):,} different parts"
        proof = {"samples": samples, "one_order": one_order}
        yield _severe(loader, ALL_SEE_ALL, text, proof, _fix(loader))
        return


def _is_everyone(loader: Loader, number: int, seen: Overlaps) -> bool:
    """Whether all ranks see the same samples, and that is no chance."""
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
    """A dataset of fewer samples than ranks."""
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
    """An evaluation may be done by each rank for itself. In a list it has no name, but stands behind the training and
    is not shuffled. Where nothing is known of the content, each rank may have a dataset of its own, which no sampler
    has to part."""
    unsure = loader.by_index and not datasets.is_known(loader) and loader.first["num_replicas"] is None
    unnamed = loader.name.isdecimal() and int(loader.name) > 0 and orders.is_sequential(loader)
    lower = Severity.WARN if unsure or unnamed else Severity.FAIL
    severity = Severity.INFO if loader.is_for_evaluation else lower
    text += UNSURE if unsure else ""
    return code.finding(severity, loader.says(text), evidence=proof, fix=fix, **loader.place)


def overlap(loader: Loader) -> Iterator[Finding]:
    """Where the samples are drawn with replacement, only ranks that draw alike are wrong."""
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
    told = [f"{ranges.ranks(ranks)} see the same {seen.epochs[ranks[0]]['distinct']:,} samples" for ranks in alike]
    told += [_share(seen, pair) for pair in pairs if (pair.first, pair.second) not in inside]
    more = f", and {ranges.count(len(told) - NAMED, 'more pair')}" if len(told) > NAMED else ""
    such = "".join(f", such as {text}" for text in overlaps.example(loader, pairs[0], seen))
    total = ""
    if known and known.exact:
        total = f"; in all {known.again:,} times a sample comes again"
        total += f", and {known.missing:,} of {known.length:,} are read by no rank" if known.missing else ""
    text = f"{', '.join(told[:NAMED])}{more}{such}{total}; expected each sample on one rank"
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
    """ "ranks 0 and 1 share 4 of 14 samples"; "about" where not all are shown."""
    fewer = min(seen.epochs[rank]["distinct"] for rank in (pair.first, pair.second))
    shared = len(pair.shared) if seen.is_all else max(1, round(pair.share * fewer))
    about = "" if seen.is_all else "about "
    return f"ranks {pair.first} and {pair.second} share {about}{shared:,} of {fewer:,} samples"


def _culprit(pairs: list[RankPair], seen: Overlaps) -> int | None:
    """The one rank that has samples of three others or more, which have none of each other's."""
    in_all = set.intersection(*({pair.first, pair.second} for pair in pairs))
    by_two = all(len(its) == 2 for its in seen.common.values())
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
    told = loader.together.get(0)
    such = f", such as index {told['missing'][0]:,}" if told and told["missing"] else ""
    about = "" if least.exact else "at least "
    text = f"{about}{least.missing:,} of {least.length:,} samples are seen by no rank{such}, expected all to be seen"
    proof = {"missing": least.missing, "examples": told["missing"][:10] if told else []}
    yield NEVER_SEEN.finding(loader.severity, loader.says(text), evidence=proof, **loader.place)
