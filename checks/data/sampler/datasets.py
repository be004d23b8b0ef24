"""Whether all ranks have the same dataset, or each has its own on purpose.

Content is compared at a few indices, between ranks with the same kind of CPU: computed values may differ between kinds.
"""

from collections.abc import Iterator, Mapping

from preflight.check import Code, Finding, vote
from preflight.checks.data.sampler.one_loader import Loader, differing, listed
from preflight.checks.data.shared.readings import Reading

LENGTH = Code(
    "The dataset's length differs between ranks.",
    fix="Build the dataset from the same files on all ranks: look for a missing file on a node, a filter that "
    "depends on the rank, an unfinished download. If each rank has its own part, use no "
    "DistributedSampler: that takes a part of the part.",
)
CONTENT = Code(
    "The dataset's samples differ between ranks, at the same index.",
    fix="Sort the output of os.listdir, glob or a set; seed what shuffles or draws while the dataset is built. If each "
    "rank has its own part, use no DistributedSampler: that takes a part of the part.",
)


def lengths(loader: Loader) -> Iterator[Finding]:
    parted = [reading["num_replicas"] is not None or loader.by_index for reading in loader.readings.values()]
    known = {
        rank: reading["length"]
        for rank, reading in loader.readings.items()
        if reading["length"] is not None and all(parted)
    }
    yield from differing(loader, vote(known), LENGTH.fail, "length", "len(dataset) is {}", "len(dataset) is {}")


def contents(loader: Loader) -> Iterator[Finding]:
    for ranks in _by_machine(loader.readings).values():
        if loader.by_index and len(ranks) > 1:
            yield from _contents(loader, {rank: loader.readings[rank] for rank in ranks})


def _contents(loader: Loader, readings: Mapping[int, Reading]) -> Iterator[Finding]:
    indices = _comparable(readings)
    counted = vote({rank: tuple(reading["content"][at] for at in indices) for rank, reading in readings.items()})
    if counted.unanimous:
        return
    if counted.decided:
        for rank, digests in counted.odd():
            differing = [
                at for at, digest, expected in zip(indices, digests, counted.usual, strict=True) if digest != expected
            ]
            text = (
                f"dataset[{differing[0]}] is a different sample than on {counted.share()}; {len(differing)} of "
                f"{len(indices)} compared differ, expected none"
            )
            yield CONTENT.fail(loader.says(text), evidence={"indices": differing}, **loader.run.job.where(rank))
        return
    sides = ", ".join(listed(ranks, loader.world) for ranks in list(counted.ranks_of.values())[:4])
    more = f" and {len(counted.ranks_of) - 4} more groups" if len(counted.ranks_of) > 4 else ""
    differing = [at for at, *digests in zip(indices, *counted.ranks_of, strict=True) if len(set(digests)) > 1]
    text = f"dataset[{differing[0]}] is a different sample on each of {sides}{more}, expected the same on all ranks"
    yield CONTENT.fail(loader.says(text), evidence={"indices": differing})


def _by_machine(readings: Mapping[int, Reading]) -> dict[str, tuple[int, ...]]:
    return dict(vote({rank: reading["machine"] for rank, reading in readings.items()}).ranks_of)


def _comparable(readings: Mapping[int, Reading]) -> list[str]:
    """Indices whose content every rank knows, and does not draw again each time."""
    first, *others = readings.values()
    known = (at for at, digest in first["content"].items() if digest)
    return sorted((at for at in known if all(other["content"].get(at) for other in others)), key=int)


def is_known(loader: Loader) -> bool:
    machines = {reading["machine"] for reading in loader.readings.values()}
    return bool(_comparable(loader.readings)) and (len(machines) == 1 or len(_alike(loader)) == 1)


def parts(loader: Loader) -> list[Loader]:
    """A loader for the ranks of each dataset. Several only if samplers are made for as many ranks as have this dataset,
    or if no sampler splits it."""
    if not loader.by_index or not is_known(loader):
        return [loader]
    groups = _alike(loader)
    unparted = all(map(_reads_all, loader.readings.values()))
    fits = all(
        (loader.readings[rank]["num_replicas"] or 1) * loader.sharers == len(group) > 1
        for group in groups
        for rank in group
    )
    return [loader.part(group) for group in groups] if len(groups) > 1 and (fits or unparted) else [loader]


def _alike(loader: Loader) -> list[tuple[int, ...]]:
    """Groups of ranks with the same dataset, as far as compared."""
    indices = _comparable(loader.readings)
    seen = {
        rank: (reading["length"], *(reading["content"][at] for at in indices))
        for rank, reading in loader.readings.items()
    }
    return list(vote(seen).ranks_of.values())


def _reads_all(reading: Reading) -> bool:
    if (reading["num_replicas"] or 1) > 1 or not reading["epochs"]:
        return False
    epoch = reading["epochs"][0]
    biggest = max([epoch["last"], *map(int, epoch["sizes"])])
    if epoch["whole"]:
        read = epoch["distinct"] + (biggest - 1 if reading["drop_last"] else 0)
    else:
        read = (reading["batches"] or 0) * biggest
    return bool(reading["by_design"]) or read >= (reading.get("subset", reading["length"]) or 0)
