"""What a rank tells of millions of samples: the few with the lowest hashes.

They are the same samples on all ranks that have them, so two ranks' overlap shows among them (bottom-k sampling: Cohen
and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from preflight.checks.data.shared.readings import Shown

if TYPE_CHECKING:
    import torch

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
"""splitmix64's (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014)."""
SHOWN_IN_ALL = 1 << 18
"""By all ranks together, of one epoch."""
SHOWN_OF_RANK = 7000
"""By one rank, of one epoch of all its loaders. One is at most 60 bytes of its facts, which end at 1 MiB."""
CHUNK = 1 << 15
"""Samples at once: their hashes stay in the processor's cache, and torch does not spread so few over threads, which on
a node full of ranks wait for each other."""


def mixed(id: int) -> int:  # noqa: A002 -- the field's word
    """The hash of a sample, from 0 to 2^64 - 1. No two ids of 64 bits have the same."""
    word = (id + GOLDEN) & WORD
    for shift, factor in STEPS:
        word = ((word ^ (word >> shift)) * factor) & WORD
    return word ^ (word >> LAST_SHIFT)


def _mixed(ids: "torch.Tensor") -> "torch.Tensor":
    """The same for int64 of any shape; its bits, since torch has no unsigned arithmetic."""
    words = ids + _signed(GOLDEN)
    for shift, factor in STEPS:
        words = words.bitwise_xor_(_shifted(words, shift)).mul_(_signed(factor))
    return words.bitwise_xor_(_shifted(words, LAST_SHIFT))


def _shifted(words: "torch.Tensor", by: int) -> "torch.Tensor":
    """To the right, with zeros from the left."""
    return (words >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def share(world: int, loaders: int = 1) -> int:
    """How many samples of an epoch a rank shows, if it has so many loaders."""
    return min(max(64, min(4096, SHOWN_IN_ALL // world)), max(16, SHOWN_OF_RANK // loaders))


def shown(ids: "torch.Tensor", world: int, loaders: int = 1) -> list[Shown]:
    """Of `ids` (int64, in their order) the distinct ones with the lowest `mixed`, ascending by it: all there are, or
    `share(world, loaders)`."""
    import torch

    wanted = share(world, loaders)
    part = 4.0 * wanted / max(1, len(ids))
    while True:
        places = _places_below(ids, part)
        order = _mixed(ids[places]) ^ (-1 << 63)  # signed words sort as unsigned ones do
        distinct, which, times = torch.unique(order, return_inverse=True, return_counts=True)
        if len(distinct) >= wanted or part >= 1.0:
            break
        part *= 8  # ids that come again and again
    first = torch.full_like(distinct, len(ids)).scatter_reduce_(0, which, places, "amin")[:wanted]
    columns = ids[first].tolist(), first.tolist(), times[:wanted].tolist()
    return [Shown(id=id_, place=place, times=often) for id_, place, often in zip(*columns, strict=True)]


def _places_below(ids: "torch.Tensor", part: float) -> "torch.Tensor":
    """Where the ids stand whose hash is in this lowest part of all hashes."""
    import torch

    if part >= 1.0 or not len(ids):
        return torch.arange(len(ids))
    limit = int(part * 2.0**64) - (1 << 63)
    chunks = ((_mixed(chunk) ^ (-1 << 63)) < limit for chunk in _chunks(ids))
    return torch.cat([places.nonzero().flatten() + at * CHUNK for at, places in enumerate(chunks)])


def _chunks(ids: "torch.Tensor") -> Iterator["torch.Tensor"]:
    return (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))
