"""What was proven about a loader, in a few words, and what was not, with the reason. Only says what is known."""

from collections.abc import Iterator

from preflight.check import Code, Finding, ranges
from preflight.checks.data.sampler import coverage, overlaps
from preflight.checks.data.sampler.coverage import Coverage
from preflight.checks.data.sampler.one_loader import Loader
from preflight.checks.data.sampler.orders import has_end, is_same, is_sequential
from preflight.checks.data.shared.readings import EPOCHS

PADDED = Code(
    "Some samples are read twice, so that all ranks have the same number.",
    fix="Nothing to do for training; an evaluation that sums over ranks counts them twice.",
)
DROPPED = Code(
    "Samples are left out of an epoch.",
    fix="Nothing, if each epoch leaves out different samples; otherwise drop_last=False keeps them.",
)
NOT_PROVEN = Code(
    "It is only partly proven that ranks read all samples, and different ones.",
    fix="Nothing is known to be wrong. docs/data.md says what can be proven for which loader.",
)
FIX_BUDGET = (
    "Give it more: --set data.sampler.seconds=SECONDS, --set data.sampler.samples=NUMBER, and --deadline to match."
)
FIX_KEY = "Name a field that identifies a sample, such as an id or a path: --set data.sampler.key=NAME."
FIX_OWN = (
    "Nothing is known to be wrong. To prove it, make one dataset of everything on all ranks, and split it with "
    "DistributedSampler(dataset), or by Subset(dataset, range(rank, len(dataset), world_size)): indices are compared."
)
STABLE = 0.9
"""Share of one epoch's samples, known by content, that must come again in the other; else content is no stable id."""


def padded_and_dropped(loader: Loader) -> Iterator[Finding]:
    known = coverage.both(loader)
    if not known or not loader.given or loader.repeats_by_design:
        return
    again, missing = (max(getattr(cover, what) for cover in known) for what in ("again", "missing"))
    length = f"{known[0].length:,} samples"
    if again and all(cover.is_padding for cover in known):
        are = "is" if again == 1 else "are"
        text = f"{again:,} of {length} {are} seen again, to even out {ranges.count(known[0].ranks, 'rank')}"
        yield PADDED.info(loader.says(text), evidence=_examples(loader, "again", again))
    if missing:
        others = "" if all(cover.is_tail for cover in known) else ", not the same ones of each"
        outside = _in_no_subset(loader)
        others += f": {outside:,} {'is' if outside == 1 else 'are'} in no rank's Subset" if outside else ""
        text = f"{missing:,} of {length} are left out of an epoch{others}"
        yield DROPPED.info(loader.says(text), evidence=_examples(loader, "missing", missing))


def _in_no_subset(loader: Loader) -> int:
    """A lower bound of the samples in no rank's Subset."""
    sizes = [reading.get("subset", 0) for reading in loader.readings.values()]
    return max(0, (loader.length or 0) - sum(sizes)) if loader.of_subsets else 0


def _examples(loader: Loader, what: str, number: int) -> dict[str, object]:
    counted = loader.together.get(0)
    listed = [] if counted is None else list(map(int, counted["again"])) if what == "again" else counted["missing"]
    return {what: number, "examples": listed[:10]}


def not_proven(loader: Loader, parts: list[Loader]) -> Iterator[Finding]:
    reasons = list(_reasons(loader, parts)) if loader.world > 1 else []
    if reasons:
        text = "; ".join(text for text, _ in reasons)
        is_unread = any(fix == FIX_BUDGET for _, fix in reasons) or len(loader.readings) < loader.world
        yield (NOT_PROVEN.not_measured if is_unread else NOT_PROVEN.info)(loader.says(text), fix=reasons[0][1])


def _reasons(loader: Loader, parts: list[Loader]) -> Iterator[tuple[str, str | None]]:
    """(reason, fix if there is a better one than the code's)."""
    if len(loader.readings) < loader.world:
        yield f"read on {len(loader.readings)} of {ranges.count(loader.world, 'rank')} only", None
    elif not loader.comparable:
        yield "samples are known by index on some ranks and by content on others, and were not compared", None
        return
    if len(parts) > 1:
        text = f"ranks have {len(parts)} different datasets, each read whole by its own ranks"
        yield f"{text}: whether they overlap, or are complete, is unknown", FIX_OWN
        return
    if loader.is_endless:
        yield "the sampler is endless: ranks have their own orders, and more is unknown", None
    elif any(not loader.is_whole(number) for number in EPOCHS):
        read = [epoch["samples"] for number in EPOCHS for epoch in loader.epoch(number).values()]
        some = "" if loader.length is None else f" of {loader.length:,}"
        yield f"a rank read up to {max(read, default=0):,} samples{some} in an epoch, not to its end", FIX_BUDGET
    repeating = [cover for cover in coverage.both(loader) if cover.again and not cover.is_padding]
    if repeating and not loader.repeats_by_design:
        most = max(repeating, key=lambda cover: cover.again)
        yield f"{most.again:,} times a sample comes again in an epoch, {most.own:,} times on the same rank", None
    if not loader.by_index and not _is_stable(loader):
        yield "samples have different content in each epoch, so ranks cannot be compared", FIX_KEY
    elif not loader.by_index and any(overlaps.of(loader, number).common for number in EPOCHS):
        yield "samples with equal content are on several ranks, but no more often than equal data would be", FIX_KEY


def _is_stable(loader: Loader) -> bool:
    """Whether content identifies samples in both epochs."""
    share = overlaps.again_next_epoch(loader)
    return share is not None and share >= STABLE


def summary(loader: Loader, parts: list[Loader]) -> str:
    """ "1,000,003 samples, 4 ranks x 250,001 (1 padded), disjoint, complete, reshuffled each epoch"."""
    if not any(loader.epoch(number) for number in EPOCHS):
        return "nothing was read"
    known = coverage.both(loader) if len(parts) == 1 else []
    return ", ".join([_samples(loader), _each(loader, known), *_shares(loader, parts, known), *_order(loader)])


def _samples(loader: Loader) -> str:
    epochs = loader.heads(0)
    read = sum(epoch["samples"] for epoch in epochs.values())
    if loader.is_endless and loader.length is not None:
        return f"{loader.length:,} samples again and again"
    if loader.by_index and loader.length is not None:
        share = "" if loader.is_whole(0) else f"{read:,} of "
        return f"{share}{loader.length:,} samples"
    how = " by content" if loader.comparable and not loader.by_index else ""
    return f"{read:,} samples{how}{'' if loader.is_whole(0) else ' read'}"


def _each(loader: Loader, known: list[Coverage]) -> str:
    """ "4 ranks x 250,001 (1 padded)"."""
    samples = [epoch["samples"] for epoch in loader.heads(0).values()]
    if loader.is_endless:
        return ranges.count(len(samples), "rank")
    each = f"{min(samples):,}" if min(samples) == max(samples) else f"{min(samples):,}-{max(samples):,}"
    shared = f" (each on {loader.sharers})" if loader.sharers > 1 else ""
    again, missing = (max((getattr(cover, what) for cover in known), default=0) for what in ("again", "missing"))
    meant = not loader.repeats_by_design and all(cover.exact and cover.is_padding for cover in known)
    changes = f" ({again:,} padded)" if meant and again else ""
    if meant and missing and not again and all(cover.is_tail for cover in known):
        changes = f" ({missing:,} {'left out' if loader.of_subsets else 'dropped'})"
    return f"{ranges.count(len(samples), 'rank')} x {each}{shared}{changes}"


def _shares(loader: Loader, parts: list[Loader], known: list[Coverage]) -> Iterator[str]:
    if loader.repeats_by_design:
        own = "in an order of each rank's own" if loader.is_endless else "drawn by each rank for itself"
        yield "each on several ranks, by design" if loader.augments else own
    elif len(parts) > 1:
        yield f"{len(parts)} datasets, not compared"
    elif known:
        if all(not cover.again or cover.is_padding for cover in known) and all(cover.exact for cover in known):
            yield from ["disjoint"] if known[0].ranks > 1 else []
        if all(not cover.missing and cover.exact for cover in known):
            yield "complete"
    elif loader.comparable and len(loader.heads(0)) > 1:
        yield from _by_shown(loader)


def _by_shown(loader: Loader) -> Iterator[str]:
    both = [overlaps.of(loader, number) for number in EPOCHS]
    if any(seen.common for seen in both) or not (loader.by_index or _is_stable(loader)):
        return
    whole = all(loader.is_whole(number) for number in EPOCHS) and all(seen.is_all for seen in both)
    yield "disjoint" if whole else f"no overlap among {sum(seen.looked for seen in both):,} compared"


def _order(loader: Loader) -> Iterator[str]:
    first, second = (loader.epoch(number) for number in EPOCHS)
    ranks = [rank for rank in first if rank in second and first[rank]["samples"] > 1 and has_end(loader, rank)]
    if not ranks or is_sequential(loader):
        return
    same = [is_same(first[rank], second[rank]) for rank in ranks]
    if all(same):
        yield "in the same order each epoch"
    elif not any(same) and (loader.by_index or _is_stable(loader)):
        yield "reshuffled each epoch"
