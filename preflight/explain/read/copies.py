"""Lines that a file repeats: ranks that try again, or fail again and again, write the same text with another time.

What is remembered of a line is the whole of it, without the parts that differ each time. It is bounded.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from preflight.failure_book.line import Line

COPIES = 4
"""This many come out, and the last one where the copies are given back: as many matches of a source are kept."""
REQUESTED = 8
"""The same of lines of tracebacks: as many tracebacks of a source are kept."""
SETTLED = 2 * REQUESTED
"""The same of a line that may be part of a traceback, or has one below it: a source's tracebacks are all kept by then,
or none ends."""
LONGEST = 1024
"""Bytes of a line that is remembered."""
ROOM = 16 << 20
"""Bytes of the lines that are remembered: twice as much with their keys."""
_DIFFERS = re.compile(
    rb":\d\d:\d\d(?:[.,]\d{1,9})?|0x[0-9a-f]+|<\d+>|SeqNum=\d+|ran for \d+|work: \d+|sequence id: \d+"
)
"""Times (without their hour: each form begins with a letter or a sign of its own, which `re` seeks four times as fast),
pointers, the ports that NCCL writes behind an address, and the numbers of collectives that timed out: of one
rank's the first few and the last one are evaluated."""


@dataclass(slots=True)
class Chain:
    """The line above, and what it shares with lines that have no prefix."""

    last: Line | None = None
    upto: int = 0
    """The number of the last line that belongs to it."""
    unread: bytes = b""
    """The line instead, if its prefix is not read yet."""
    inherits: bool = False
    """Whether its source is of a line further above."""

    def leads_to(self, number: int) -> bool:
        """Whether the line of that number, if it has no prefix, has this one's source."""
        has_source = self.inherits or self.unread or (self.last is not None and self.last.level)
        return bool(has_source) and self.upto + 1 >= number

    def extend(self, number: int) -> None:
        """By a line without a prefix."""
        if self.upto + 1 >= number:
            self.upto = number


@dataclass(slots=True)
class Copy:
    """What a line repeats."""

    chain: Chain
    """The line as it came out last, with its source."""
    words: Sequence[str]
    wanted: int
    """Lines that are requested after each."""
    enough: int
    """How many need to come out; at most SETTLED of those that are requested."""
    raw: bytes = b""
    """The last one that did not come out, and its number."""
    number: int = 0
    told: int = 1
    held: int = 0
    """How many came out, and how many did not."""


class Copies:
    """Of one file."""

    def __init__(self) -> None:
        self._known: dict[bytes, Copy] = {}
        self._room = ROOM

    def find(self, raw: bytes) -> Copy | None:
        """What it repeats."""
        return self._known.get(_DIFFERS.sub(b"", raw))

    def add(self, raw: bytes, chain: Chain, words: Sequence[str], wanted: int, enough: int) -> None:
        """A line that came out."""
        if len(raw) > LONGEST:
            return
        key = _DIFFERS.sub(b"", raw)
        if (copy := self._known.get(key)) is None:
            self._known[key] = Copy(chain, words, wanted, enough)
            self._room -= len(raw)
        else:
            copy.chain, copy.words, copy.wanted, copy.enough, copy.told = chain, words, wanted, enough, copy.told + 1

    @property
    def is_full(self) -> bool:
        return self._room < 0

    def give_back(self) -> Iterator[Copy]:
        """The last ones that did not come out, by number. Of each the next one comes out again; all are forgotten where
        there is no room for more."""
        held = sorted((copy for copy in self._known.values() if copy.held), key=lambda copy: copy.number)
        for copy in self._known.values():
            copy.told = min(copy.told, copy.enough - 1)
        if self.is_full:
            self._known, self._room = {}, ROOM
        for copy in held:
            yield copy
            copy.held = 0
