"""What one rank knows of a loader after two epochs: the facts of data.sampler, as types.

A sample's id is an integer of at most 63 bits: its index in the dataset if a sampler or batch sampler gives it, else a
digest of its content.
"""

from typing import Literal, NotRequired, TypedDict

EPOCHS = (0, 1)
"""The epochs to read of each loader."""


class LoaderMistake(TypedDict):
    """What is wrong with the user's code on this rank."""

    kind: Literal["user_error", "wrong_return", "stuck", "waits"]
    """ "waits": stuck in a collective that waits for other ranks, or ended by one that timed out."""
    text: str
    """One sentence, which starts with file and line if known."""
    file: str | None
    line: int | None
    stack: NotRequired[str]
    """The stack of the exception."""


class Shown(TypedDict):
    """A sample of an epoch that a rank shows to the others."""

    id: int
    place: int
    """Its first position in this rank's order, from 0."""
    times: int
    """How often this rank reads it in the epoch."""


class Epoch(TypedDict):
    """What was read of one epoch, on one rank."""

    whole: bool
    """Whether it was read to the end; else the budget of time or samples was spent."""
    batches: int
    """Batches read. (`Reading.batches` has the length of an epoch that was not read whole.)"""
    samples: int
    dropped: int
    """Further samples, of an incomplete last batch that torch's batch sampler leaves out."""
    distinct: int
    """Number of distinct samples."""
    sizes: dict[str, int]
    """How many batches but the last have each size: {"32": 124}; at most the 20 most frequent."""
    last: int
    """Samples in the last batch."""
    order: str
    """A digest of all ids in order; for an endless epoch of the first ones, as many as the dataset has."""
    ascending: bool
    """Whether each id is above the previous one: nothing is shuffled."""
    times: dict[str, int]
    """How many ids are read how often: {"1": 998, "2": 2}; at most the 20 most frequent."""
    shown: list[Shown]
    """Samples with the lowest `epoch.mixed(id)`, ascending by it, so that all ranks show the same ids: all there are,
    or `epoch.share(world, loaders)` of them."""


class Reading(TypedDict):
    """One loader on one rank."""

    name: str
    """"" for the only one; "0", "1" in a list; the key in a dict."""
    known_by: Literal["index", "content"]
    loader: str
    """The loader's type, such as DataLoader."""
    sampler: str
    """The type of what chooses the samples (of the innermost sampler), or ""."""
    by_design: Literal["", "subset", "repeats", "augments", "endless"]
    """"endless" if an epoch continues after the rank has read twice the dataset's length, "subset" if the sampler
    leaves samples out by design (torch's SubsetRandomSampler, RandomSampler with num_samples), "repeats" if it draws
    with replacement (WeightedRandomSampler), "augments" if it gives each sample to several ranks (repeated
    augmentation)."""
    file: str | None
    """The file of the sampler's class, or the iterable dataset's __iter__, if that is the user's own code."""
    line: int | None
    dataset: str
    """The dataset's type."""
    length: int | None
    """len(dataset)."""
    subset: NotRequired[int]
    """len(Subset) for a part taken by hand (torch's Subset): then dataset, length and ids are those of the whole
    dataset."""
    batches: int | None
    """len(loader)."""
    drop_last: bool | None
    workers: int
    num_replicas: int | None
    """The sampler's value, as for the next three."""
    replica: int | None
    """The sampler's `rank`."""
    parted: NotRequired[list[str]]
    """Types of the samplers and loaders that each split what the inner one yields between ranks; outermost first.
    (Absent in reports of older versions.)"""
    seed: int | None
    shuffle: bool | None
    set_epoch: list[str]
    """Where it was found and called: ["loader.sampler"]."""
    epochs: list[Epoch]
    """Two, or fewer if something is wrong."""
    loaded: list[int]
    """If samples are known by index: sizes of the few batches that were then loaded."""
    seconds: float
    content: dict[str, str]
    """Digests of the dataset's content at a few indices, the same on all ranks with datasets of one length: {"17":
    "9c1e..."}; "" if the content is random."""
    machine: str
    """The kind of CPU: digests of computed content are only compared between equal kinds."""
    mistake: LoaderMistake | None


class Together(TypedDict):
    """All ranks' samples of an epoch of one loader, including those that batch samplers drop, compared with
    range(length); on the first member only."""

    name: str
    epoch: int
    again: dict[str, int]
    """Ids that are read more than once: how many repeats; at most 1,000."""
    missing: list[int]
    """Ids that no rank reads; at most 1,000."""
    agains: int
    """The total of repeats; and of missing ids."""
    misses: int
    again_dropped: int
    """How many of `agains` batch samplers drop; the rest comes again in training."""


class Facts(TypedDict):
    """The facts of data.sampler."""

    given: bool
    """Whether the user's own loader was read; else torch's DistributedSampler."""
    function: str
    """The function as the user gave it, or ""."""
    mistake: LoaderMistake | None
    """In the function itself."""
    readings: list[Reading]
    together: list[Together]
    """On the first member, for epochs that all ranks read whole by index."""
    printed: list[str]
    """The first 3 lines that this rank printed in the user's function; and the total."""
    lines: int
    written: list[str]
    """Files that it opened for writing, created or removed there, at most 20, relative to the current folder."""
