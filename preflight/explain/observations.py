"""Observations: lines that fit a row of the failure book, kept in bounded memory by row and by source."""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from preflight.failure_book.book import Match
from preflight.failure_book.line import RANKS

EACH = 4
"""Matches of one signature that are kept per source: the first ones. The last two are kept, too: they show whether a
job went on after an earlier line."""
ABOUT = ("rank", "peer_rank", "local_rank", "gpu", "node", "peer_node", "device", "interface", "variable")
SOURCES = 2048
"""Per signature; matches from further sources are only counted."""
ROOM = 64 << 20
"""Characters of kept lines; after that, only the first match of a signature is kept."""
Times = Mapping[str, float]
"""By clock, in seconds: the last times in a file up to a line."""


@dataclass
class Occurrences:
    """Of one row."""

    count: int = 0
    first: dict[str, list[tuple[Match, Times]]] = field(default_factory=dict)
    """By source: see `_source`."""
    last: dict[str, tuple[tuple[Match, Times], ...]] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)

    def matches(self) -> list[Match]:
        """All kept matches, each once."""
        return [match for match, _ in self.with_times()]

    def has_group(self, group: str) -> bool:
        """Whether its first match has this group."""
        return any(group in match.groups for match, _ in next(iter(self.first.values()), []))

    def with_times(self) -> list[tuple[Match, Times]]:
        kept = (*self.first.values(), *self.last.values())
        return [timed for of_source in kept for timed in of_source]


class RowObservations(dict[str, Occurrences]):
    """By the name of the row."""

    def __init__(self) -> None:
        super().__init__()
        self._room = ROOM

    def keep(self, match: Match, times: Times) -> None:
        line = match.line
        kept = self.setdefault(match.signature.name, Occurrences())
        kept.count += line.repeats or 1
        if line.rank is not None and 0 <= line.rank < RANKS:
            kept.ranks.add(line.rank)
        source = _source(match)
        if kept.first and (self._room < 0 or (len(kept.first) >= SOURCES and source not in kept.first)):
            return
        first = kept.first.setdefault(source, [])
        if len(first) < EACH:
            first.append((match, times))
            self._room -= len(line.raw) + len(line.text)
        else:
            kept.last[source] = (*kept.last.get(source, ())[-1:], (match, times))

    def with_times(self) -> Iterator[tuple[Match, Times]]:
        """All that are kept."""
        return (timed for kept in self.values() for timed in kept.with_times())


def _source(match: Match) -> str:
    """The writer and the subject: two ranks that one file mentions are two sources."""
    who = match.line.file if match.line.rank is None else str(match.line.rank)
    groups = match.groups
    return " ".join([who, *(groups[name] for name in _subjects(match.signature.pattern) if name in groups)])


@functools.cache
def _subjects(pattern: re.Pattern[str]) -> tuple[str, ...]:
    """The groups of ABOUT that it has."""
    return tuple(name for name in ABOUT if name in pattern.groupindex)
