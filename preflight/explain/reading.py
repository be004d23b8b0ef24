"""Reads logs of any size in one pass: only lines that hold a word come out, with what their prefixes say."""

import codecs
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight.explain.inputs import BOMS, GZIP, HEAD, STDIN, Input, Unread, find, opened, refusal
from preflight.explain.line import LONGEST, Line
from preflight.explain.prefixes import Said, plain
from preflight.explain.sieve import Sieve
from preflight.explain.sources import Processes, Sources
from preflight.registry import UsageError

__all__ = ["Input", "Reader", "Unread", "find"]

CHUNK = 1 << 18
"""Bytes that are read at once."""
ENDLESS = 1 << 20
"""Bytes of a line without an end that are kept."""
_ENDS = re.compile(rb"[\r\n]")
_COLOURS = re.compile(rb"\x1b\[[0-9;:?]{0,40}[A-Za-z]")


class Reader:
    """One pass over all inputs, in bounded memory.

    What carriage returns divide (the updates of a progress bar) is told one by one, with the number of its one line.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        words: Collection[str],
        told: Callable[[int, int], None] = lambda *_: None,
        rarely: Collection[str] = (),
    ) -> None:
        """`told`: bytes read, and bytes in all, where that is known.

        `rarely`: some of `words`. Of lines that hold the same of these and no other, one is told: the last before any
        other line that is told, or the last of a block of CHUNK bytes. It shows that a progress bar moves.
        """
        self.files = 0
        """Of which something was read."""
        self.lines = 0
        self.bytes = 0
        """Both of what was read, unpacked."""
        self.unread: list[Unread] = []
        """What could not be read to its end."""
        self._inputs, self._told = inputs, told
        self._words, self._rarely = frozenset(words), frozenset(rarely)
        self._sieve = Sieve({*words, *Sources.WORDS})
        self._overlap = max(len(word.encode()) for word in (*words, *Sources.WORDS))
        self._sizes = {one.path: _size(one.path) for one in inputs}
        self._all = sum(size or 0 for size in self._sizes.values())
        self._taken, self._order, self._wanted = 0, 0, 0
        self._processes = Processes()
        self._last: Line | None = None
        self._in_block = False

    def more(self, lines: int) -> None:
        """Called with a line in hand: the next so many of its file are told, too."""
        self._wanted = max(self._wanted, lines)

    def __iter__(self) -> Iterator[Line]:
        for one in self._inputs:
            self._wanted, self._number, self._skips = 0, 1, False
            self._sources, self._last = Sources(one.path, self._processes), None
            block, before, known = b"\n", self.bytes, len(self.unread)
            try:
                for block in _blocks(self._text(one), self._overlap):
                    yield from self._of_block(one, block)
            except (OSError, EOFError, zlib.error) as error:
                why = getattr(error, "strerror", None) or str(error)
                self.unread.append(
                    Unread(one.shown, f"cannot be read beyond line {self._number:,} ({why})", broken=True)
                )
            self.files += self.bytes > before
            if self.bytes == before and len(self.unread) == known:
                self.unread.append(Unread(one.shown, "is empty"))
            self.lines += self._number - block.endswith(b"\n")

    def _text(self, one: Input) -> Iterator[bytes]:
        """As UTF-8, or whatever else holds ASCII."""
        chunks = self._chunks(one)
        first = next(chunks, b"")
        while len(first) < 4 and (more := next(chunks, b"")):  # a pipe may give single bytes
            first += more
        if first.startswith(GZIP):
            chunks = _gunzipped(first, chunks)
            first = next(chunks, b"")
        if why := refusal(first[:HEAD]):  # of a pipe nobody has looked at it
            self.unread.append(Unread(one.shown, why))
            return
        coding = next((coding for bom, coding in BOMS.items() if first.startswith(bom)), "")
        decoder = codecs.getincrementaldecoder(coding)("replace") if coding else None
        chunk = first
        while chunk:
            chunk = decoder.decode(chunk).encode("utf-8", "replace") if decoder else chunk
            self.bytes += len(chunk)
            yield chunk
            chunk = next(chunks, b"")

    def _chunks(self, one: Input) -> Iterator[bytes]:
        """To the size that it had at the start: a job that still writes is not followed."""
        left = self._sizes[one.path]
        number = _stdin() if one.path == STDIN else opened(one.path)
        try:
            while chunk := os.read(number, CHUNK if left is None else min(CHUNK, left)):
                left = None if left is None else left - len(chunk)
                self._taken += len(chunk)
                self._told(self._taken, max(self._taken, self._all))
                yield chunk
        finally:
            if one.path != STDIN:
                os.close(number)

    def _of_block(self, one: Input, block: bytes) -> Iterator[Line]:
        """`block` has whole lines, or a piece of a very long one."""
        block = self._cleaned(block)
        for found in self._found(block):
            yield from self._lines(one, found, block)

    def _cleaned(self, block: bytes) -> bytes:
        if self._skips:  # the rest of a long line of which a piece was told
            end = _ENDS.search(block)
            block, self._skips = block[end.start() :] if end else b"", not end
        if b"\r" in block and b"\n" in block:
            block = block.replace(b"\r\n", b"\n")
        return _COLOURS.sub(b"", block) if b"\x1b[" in block else block

    def _found(self, block: bytes) -> Iterator["_Found"]:
        shapes = self._sieve.shapes(block)
        bright = self._sieve.bright(shapes)
        begin, self._number = self._number, self._number + block.count(b"\n")
        if not bright and not self._wanted:
            return
        segments = block.replace(b"\r", b"\n").split(b"\n")
        if block.endswith((b"\n", b"\r")):
            segments.pop()
        torn = len(segments) - 1 if len(segments) == len(shapes) else -1
        before, start, number = 0, 0, begin
        for at in self._places(shapes[: len(segments)], bright):
            offset = start + sum(map(len, segments[before:at])) + at - before
            before, start, number = at, offset, number + block.count(b"\n", start, offset)
            text, asked = segments[at].decode("utf-8", "replace"), self._wanted > 0
            self._wanted = max(0, self._wanted - 1)
            held = [word for word in bright.get(shapes[at], ()) if word in text]
            told = [word for word in held if word in self._words]
            if told or asked:
                self._skips = at == torn
                yield _Found(number, text, told, asked)
            elif held:
                self._sources.said(text, block)

    def _places(self, shapes: Sequence[bytes], bright: Mapping[bytes, tuple[str, ...]]) -> Iterator[int]:
        """Of the segments that are looked at."""
        rare: dict[tuple[str, ...], int] = {}
        for at, shape in enumerate(shapes):
            words = bright.get(shape)
            if words and not self._wanted and self._rarely.issuperset(words):
                rare[words] = at
            elif words or self._wanted:
                yield from sorted(rare.values())
                rare.clear()
                yield at
        yield from sorted(rare.values())

    def _lines(self, one: Input, found: "_Found", block: bytes) -> Iterator[Line]:
        """Two, where two writers' text stands on one line, and both hold words."""
        said = self._sources.said(found.text, block)
        parts = [part for part in (said.front, said) if part and any(word in part.text for word in found.words)]
        for part in parts or [said]:
            yield self._line(one, found, part)

    def _line(self, one: Input, found: "_Found", said: Said) -> Line:
        last = self._last if found.asked and said.bare else None
        follows = last is not None and last.number + 1 >= found.number
        self._in_block = follows and (self._in_block or bool(last and last.level))
        if last and self._in_block:  # a logger's message of several lines: only the first has a prefix
            said.rank = last.rank if said.rank is None else said.rank
            said.local_rank = last.local_rank if said.local_rank is None else said.local_rank
            said.node, said.pid = said.node or last.node, last.pid if said.pid is None else said.pid
        self._order += 1
        self._last = Line(
            text=_window(said.text, found.words), raw=_window(plain(found.text), found.words),
            file=one.shown, number=found.number, order=self._order, level=said.level, place=said.place, rank=said.rank,
            local_rank=said.local_rank, node=said.node, gpu=said.gpu, pid=said.pid, time=said.time, clock=said.clock,
        )  # fmt: skip
        return self._last


@dataclass(frozen=True, slots=True)
class _Found:
    number: int
    text: str
    words: list[str]
    asked: bool


def _window(text: str, words: Sequence[str]) -> str:
    """Of a line that is too long, the start, or what is round the first word."""
    if len(text) <= LONGEST:
        return text
    at = min((at for word in words if (at := text.find(word)) >= 0), default=0)
    start = 0 if at + len(max(words, key=len, default="")) <= LONGEST else at - LONGEST // 2
    return text[start : start + LONGEST]


def _blocks(chunks: Iterator[bytes], overlap: int) -> Iterator[bytes]:
    """Whole lines; of a line that does not end pieces, of which each begins with the last `overlap` bytes before it."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        if end := max(rest.rfind(b"\n"), rest.rfind(b"\r", 0, -1)) + 1:  # a return at the end may have its newline yet
            yield rest[:end]
            rest = rest[end:]
        elif len(rest) > ENDLESS:
            yield rest
            rest = rest[-overlap:]
    if rest:
        yield rest


def _gunzipped(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    """One member after another. Raises EOFError in the middle of one, zlib.error where it is damaged."""
    member, packed = zlib.decompressobj(31), first
    while packed:
        if chunk := member.decompress(packed, CHUNK):
            yield chunk
        packed = member.unused_data.lstrip(b"\0") if member.eof else member.unconsumed_tail
        packed = packed or next(rest, b"")
        if member.eof and packed:
            member = zlib.decompressobj(31)
    if not member.eof:
        raise EOFError("the gzip file ends in the middle")


def _size(path: str) -> int | None:
    """None: nobody knows."""
    try:
        status = os.stat(path) if path != STDIN else None
    except OSError:
        return 0
    return status.st_size if status and stat.S_ISREG(status.st_mode) else None


def _stdin() -> int:
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("-: there is no standard input")
    return sys.stdin.fileno()
