"""What one rank knows of a loader after two epochs: the facts of data.sampler, as types.

A sample is known by an id, a whole number of at most 63 bits: its index in the dataset where a sampler or a batch
sampler says it, else a digest of its content.
"""

from typing import Literal, NotRequired, TypedDict

EPOCHS = (0, 1)
"""That are read of each loader."""


class LoaderMistake(TypedDict):
    """What is wrong with the user's code on this rank."""

    kind: Literal["user_error", "wrong_return", "stuck", "waits"]
    """ "waits": stuck in a collective, in which it waits for other ranks, or ended by one that has run out of time."""
    text: str
    """One sentence; it begins with file and line where they are known."""
    file: str | None
    line: int | None
    stack: NotRequired[str]
    """Of what was raised."""


class Shown(TypedDict):
    """A sample of an epoch that is told to the other ranks."""

    id: int
    place: int
    """Its first one in this rank's order, from 0."""
    times: int
    """How often this rank sees it in the epoch."""


class Epoch(TypedDict):
    """What was read of one epoch, on one rank."""

    whole: bool
    """Whether it was read to its end; else the budget of time or of samples was spent."""
    batches: int
    """Those read. (For the length of an epoch that was not read whole see `Reading.batches`.)"""
    samples: int
    dropped: int
    """Further ones, of an incomplete last batch that torch's batch sampler leaves out."""
    distinct: int
    """Of the samples."""
    sizes: dict[str, int]
    """How many batches have so many samples, of all but the last: {"32": 124}; at most 20 sizes, the commonest."""
    last: int
    """Samples in the last batch."""
    order: str
    """A digest of all ids in their order; of an endless epoch of the first ones, as many as the dataset has."""
    ascending: bool
    """Whether each id is above the one before it: nothing is shuffled."""
    times: dict[str, int]
    """How many ids are seen so many times: {"1": 998, "2": 2}; at most 20, the commonest."""
    shown: list[Shown]
    """Those with the lowest `epoch.mixed(id)`, ascending by it: all ranks that have them tell the same ids. All
    there are, or as many as `epoch.share(world, loaders)`."""


class Reading(TypedDict):
    """One loader on one rank."""

    name: str
    """"" of the only one; "0", "1" in a list; its key in a dict."""
    known_by: Literal["index", "content"]
    loader: str
    """Its type, such as DataLoader."""
    sampler: str
    """The type of what chooses the samples (of the innermost sampler), "" where there is none."""
    by_design: Literal["", "subset", "repeats", "augments", "endless"]
    """"endless" where an epoch goes on when the rank has read as much as the dataset twice, "subset" where the sampler
    leaves samples out by design (torch's SubsetRandomSampler, RandomSampler with num_samples), "repeats" where it draws
    with replacement (WeightedRandomSampler), "augments" where it gives each sample to several ranks (repeated
    augmentation)."""
    file: str | None
    """Where the sampler's class, or the iterable dataset's __iter__, begins, if that is the user's own code."""
    line: int | None
    dataset: str
    """Its type."""
    length: int | None
    """len(dataset)."""
    subset: NotRequired[int]
    """Of a part that was taken by hand (torch's Subset), len(Subset): then dataset, length and ids are those of the
    dataset that it is a part of."""
    batches: int | None
    """len(loader)."""
    drop_last: bool | None
    workers: int
    num_replicas: int | None
    """As the sampler has it; and the next three."""
    replica: int | None
    """Its `rank`."""
    parted: NotRequired[list[str]]
    """Types of the samplers and loaders that each give a rank a part of what the one within has; the outermost first.
    (Reports of older versions have none.)"""
    seed: int | None
    shuffle: bool | None
    set_epoch: list[str]
    """Where it was found and called: ["loader.sampler"]."""
    epochs: list[Epoch]
    """Two, or fewer where something is wrong."""
    loaded: list[int]
    """Where samples are known by index: the sizes of the few batches that the loader itself then yielded."""
    seconds: float
    content: dict[str, str]
    """Digests of the dataset's content at a few indices, the same on all ranks with datasets of one length: {"17":
    "9c1e..."}; "" where the content is drawn anew each time."""
    machine: str
    """The kind of CPU: digests of computed content are compared between equal kinds only."""
    mistake: LoaderMistake | None


class Together(TypedDict):
    """All ranks' samples of an epoch of one loader, with those that batch samplers drop, against range(length); first
    member only."""

    name: str
    epoch: int
    again: dict[str, int]
    """Ids that are seen more than once: how many times too often; at most 1,000."""
    missing: list[int]
    """Ids that nobody sees; at most 1,000."""
    agains: int
    """How many times too often in all; and how many are missing."""
    misses: int
    again_dropped: int
    """How many of `agains` batch samplers drop: the rest comes again in what ranks train on."""


class Facts(TypedDict):
    """Of data.sampler."""

    given: bool
    """Whether the user's own loader was read; else torch's DistributedSampler."""
    function: str
    """As he gave it; "" where none was."""
    mistake: LoaderMistake | None
    """In the function itself."""
    readings: list[Reading]
    together: list[Together]
    """On the first member, of the epochs that all ranks have read whole by index."""
    printed: list[str]
    """The first 3 lines that this rank printed in the user's function; and how many in all."""
    lines: int
    written: list[str]
    """Files that it opened for writing, made or removed there, at most 20, relative to the current folder."""
