"""Ranks as people write them: "0-7,9"."""

import itertools
import re
from collections.abc import Iterable

MOST = 1_000_001
"""Numbers that a text may stand for: a short one could stand for billions."""


def to_text(numbers: Iterable[int]) -> str:
    """`{0, 1, 2, 5}` becomes "0-2,5"; nothing becomes ""."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def from_text(text: str) -> tuple[int, ...]:
    """The reverse of `to_text`. Raises ValueError for anything else, and for more than MOST numbers."""
    return tuple(itertools.chain.from_iterable(blocks(text)))


def blocks(text: str) -> list[range]:
    """As `from_text`, without counting each number."""
    found: list[range] = []
    for part in text.split(",") if text else []:
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        found.append(range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0))
        if not found[-1]:
            raise ValueError(f"{text[:100]!r} is not a list of ranks")
    if sum(map(len, found)) > MOST:
        raise ValueError(f"{text[:100]!r} is not a list of ranks, of at most {MOST:,}")
    return found


def count(number: int, noun: str) -> str:
    """ "1 node" or "1,024 nodes"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def ranks(numbers: Iterable[int]) -> str:
    """ "rank 3" or "ranks 0-2,5", for a sentence."""
    listed = set(numbers)
    return f"rank{'' if len(listed) == 1 else 's'} {to_text(listed)}"
