"""The global batch, and how it is cut.

A batch is a tensor, or a tuple, list or dict of tensors, with its rows in dimension 0. The loss over some rows is
their mean; a part's share is its weight in the mean over the global batch. So the shares of all ranks add up to 1
for any world size: if it does not divide the rows, ranks have unequal shares.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PARTS = 8
"""The most parts into which training alone cuts the batch: each costs a forward and a backward per step."""


@dataclass(frozen=True)
class Part:
    """Some rows of the global batch."""

    data: Any
    share: float
    """The part's weight in the mean over the global batch."""


@dataclass(frozen=True)
class Cut:
    """The global batch as one rank sees it."""

    rank: int
    """The rank's number in the group."""
    ranks: int
    whole: tuple[Part, ...]
    """All rows at once; in two parts if some rows belong to more ranks than others."""
    parts: tuple[Part, ...]
    """All rows split as on the ranks (neighbors are merged if there are many); this rank's own come last."""
    own: Part
    """The rows that this rank trains on when it trains with the others."""
    pieces: tuple[Part, ...]
    """Its own rows in two pieces, for accumulation; in one piece if it has a single row."""
    early: tuple[Part, ...]
    """Like `parts`, but only for the ranks that have one more batch than the others."""
    is_early: bool
    """Whether this rank is one of these."""


def leaves(data: Any, path: str = "batch") -> Iterator[tuple[str, Any]]:
    """Yields what is in a batch, in its order, each with its path: "batch['ids']". What is no tensor is no batch."""
    if isinstance(data, dict):
        for key, item in data.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(data, tuple | list):
        for place, item in enumerate(data):
            yield from leaves(item, f"{path}[{place}]")
    else:
        yield path, data


def tensors(data: Any) -> list[Tensor]:
    """All tensors of a batch. Raises TypeError for something that is not a batch."""
    found = [leaf for _, leaf in leaves(data)]
    for leaf in found:
        if not isinstance(leaf, Tensor):
            raise TypeError(f"a batch is a tensor, or a tuple, list or dict of tensors, not a {type(leaf).__name__}")
    return found


def each(change: Callable[[Tensor], Tensor], data: Any) -> Any:
    """The same batch with every tensor changed by `change`; anything else stays."""
    if isinstance(data, Tensor):
        return change(data)
    if isinstance(data, dict):
        return {name: each(change, item) for name, item in data.items()}
    if not isinstance(data, tuple | list):
        return data
    made = [each(change, item) for item in data]
    return type(data)(*made) if hasattr(data, "_fields") else type(data)(made)


def rows_in(data: Any, rows: Sequence[int]) -> Any:
    """The batch of these rows only."""
    index = torch.tensor(list(rows))
    return each(lambda tensor: tensor[index.to(tensor.device)], data)


def rows_of(rank: int, ranks: int, rows: int) -> range:
    """A rank's rows: equally many each, and one more for the first ranks if they do not divide. May be empty."""
    each_, more = divmod(rows, ranks)
    start = rank * each_ + min(rank, more)
    return range(start, start + each_ + (rank < more))


def _half(rows: int) -> int:
    """How many rows the first of two pieces has: where there are many, such that 2 or 3 micro-batches divide either."""
    half = (rows + 1) // 2
    return half + 1 if half > 3 and half % 2 and half % 3 else half


def cut(data: Any, rows: Sequence[Sequence[int]], rank: int) -> Cut:
    """Cuts the batch for `rank`. `rows`: each rank's rows, by its number in the group; ranks may share rows. A rank
    without rows trains on row 0 with weight 0."""
    own, total = rows[rank], sum(map(len, rows))

    def part(chosen: Sequence[int], times: int) -> Part:
        return Part(rows_in(data, chosen or [0]), times * len(chosen) / total)

    def parts(of: Sequence[Sequence[int]], most: int, last: Sequence[int]) -> tuple[Part, ...]:
        """At most `most` parts for each weight, and then `last`."""
        times = Counter(row for row_numbers in of for row in row_numbers)
        made = []
        for weight in sorted(set(times.values())):
            alike = [row for row, count in times.items() if count == weight and row not in last]
            size = max(1, len(own), -(-len(alike) // most))
            made += [part(alike[at : at + size], weight) for at in range(0, len(alike), size)]
        return (*made, part(last, times[last[0]] if last else 0)) if last is own else tuple(made)

    early = rows[: (len(rows) + 1) // 2]
    half = _half(len(own))
    return Cut(
        rank=rank,
        ranks=len(rows),
        whole=parts(rows, 1, ()),
        parts=parts(rows, PARTS - 1, own),
        own=part(own, 1),
        pieces=tuple(part(piece, 1) for piece in (own[:half], own[half:]) if piece) or (part(own, 1),),
        early=parts(early, PARTS - 1, own if rank < len(early) else ()),
        is_early=rank < len(early),
    )
