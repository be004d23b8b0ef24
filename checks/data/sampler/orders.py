"""Whether the order of the samples changes between epochs, if it should."""

import itertools
from collections.abc import Iterator

from preflight.check import Code, Finding
from preflight.checks.data.sampler.one_loader import Loader, listed
from preflight.checks.data.shared.readings import EPOCHS, Epoch

SAME_ORDER = Code(
    "The samples are shuffled, but come in the same order in each epoch.",
    fix="Call sampler.set_epoch(epoch) before each epoch (a wrapper passes it on), or draw the order in __iter__.",
)
SET_EPOCH_IGNORED = Code(
    "set_epoch() changes nothing: the samples come in the same order in each epoch.",
    fix="Let the order depend on the epoch: seed the generator that shuffles with seed + epoch. Persistent workers "
    "have their own copy of the dataset, which set_epoch() does not reach: persistent_workers=False.",
)
FEWEST = 8
"""The fewest samples that do not come in the same order twice by chance."""


def orders(loader: Loader) -> Iterator[Finding]:
    first, second = (loader.epoch(number) for number in EPOCHS)
    shuffled = {
        rank: is_same(first[rank], second[rank])
        for rank in first
        if rank in second
        and _is_meant(loader, rank)
        and has_end(loader, rank)
        and min(first[rank]["samples"], second[rank]["samples"]) > 1
    }
    samples = sum(first[rank]["samples"] for rank in shuffled)
    same = [
        rank
        for rank, is_shuffled in shuffled.items()
        if is_shuffled and (first[rank]["samples"] >= FEWEST or all(shuffled.values()))
    ]
    if not same or samples < FEWEST or loader.is_for_evaluation or is_sequential(loader):
        return
    called = loader.readings[same[0]]["set_epoch"]
    how = f", also after {called[0]}.set_epoch(1)" if called else ", and nothing was found that has set_epoch()"
    see = "sees" if len(same) == 1 else "see"
    text = f"{listed(same, loader.world)} {see} the samples in the same order in both epochs"
    where = loader.run.job.where(same[0]) if len(same) == 1 < loader.world else {}
    code = SET_EPOCH_IGNORED if called else SAME_ORDER
    yield code.warn(loader.says(f"{text}{how}, expected a different order"), **loader.place, **where)


def _is_meant(loader: Loader, rank: int) -> bool:
    """Whether this rank's samples should be shuffled, according to the sampler. If it does not say, indices may be, but
    a stream comes in the order of its files."""
    reading = loader.readings[rank]
    return reading["known_by"] == "index" if reading["shuffle"] is None else reading["shuffle"]


def has_end(loader: Loader, rank: int) -> bool:
    """Whether an epoch ends. An endless one is started once per job, in one order."""
    reading = loader.readings[rank]
    length = reading["batches"]
    return all(epoch["whole"] or (length is not None and epoch["batches"] <= length) for epoch in reading["epochs"])


def is_sequential(loader: Loader) -> bool:
    """Whether indices come in the dataset's order on all ranks."""
    return loader.by_index and all(is_ascending(epoch) for number in EPOCHS for epoch in loader.epoch(number).values())


def is_ascending(epoch: Epoch) -> bool:
    """Whether ids ascend; they may start over once from the first indices, to even out the ranks."""
    if epoch["ascending"]:
        return True
    ids = [sample["id"] for sample in sorted(epoch["shown"], key=lambda sample: sample["place"])]
    return sum(later < former for former, later in itertools.pairwise(ids)) <= 1


def is_same(first: Epoch, second: Epoch) -> bool:
    """Whether two epochs have the same order; if not read equally far, by the positions of samples that both show."""
    if first["samples"] == second["samples"]:
        return first["order"] == second["order"]
    places = {sample["id"]: sample["place"] for sample in first["shown"]}
    both = [(places[sample["id"]], sample["place"]) for sample in second["shown"] if sample["id"] in places]
    return len(both) >= FEWEST and not first["whole"] and all(order == other for order, other in both)
