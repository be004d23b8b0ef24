"""Reads logs of any size in one pass: only lines that hold a word come out, with what their prefixes say."""

import codecs
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight.errors import UsageError
from preflight.explain.inputs import BOMS, GZIP, HEAD, STDIN, Input, Unread, opened, refusal
from preflight.explain.read.copies import COPIES, SETTLED, Chain, Copies
from preflight.explain.read.prefilter import Prefilter
from preflight.explain.read.prefixes import plain
from preflight.explain.read.sources import RanksByProcess, Sources
from preflight.failure_book.line import LONGEST, Line

CHUNK = 1 << 18
"""Bytes per read."""
ENDLESS = 1 << 20
"""Bytes of an endless line that are kept."""
TAIL, TAIL_LINES = 1 << 14, 60
"""Bytes and lines of a file's end."""
FORGETS = 64
"""As many attempts of a job are told apart."""
_FRAME = b"frame #"
_NCCL = re.compile(rb"(?:\d{1,6}: )?[^\s\[\]()]{1,120}:\d{1,10}:\d{1,10} \[\d{1,4}\] NCCL INFO ")
"""Of lines without a word: what is requested, a Python traceback and an exception's text, is not in these."""
_ENDS = re.compile(rb"[\r\n]")
_STAMPED = re.compile(rb"(\[?)20\d\d-\d\d-\d\d([ T])\d\d:\d\d:\d\d([.,]?)\d*([^\d\r\n]{6})")
"""The start of a record. Where others follow on its line, they begin the same way."""
_COLOURS = re.compile(rb"\x1b\[[0-9;:?]{0,40}[A-Za-z]")


class Reader:
    """One pass over all inputs, in bounded memory.

    Text divided by carriage returns (the updates of a progress bar) comes out piece by piece, under one line number.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        words: Collection[str],
        on_progress: Callable[[int, int], None] = lambda *_: None,
        rarely: Collection[str] = (),
        on_end: Callable[[Sequence[Line]], None] = lambda _: None,
    ) -> None:
        """`on_progress` gets bytes read, and bytes in total if known.

        `rarely`: some of `words`. Of lines that hold the same of these and no other, only the first and the last two
        come out, between other lines or in a block of CHUNK bytes. They show that a job makes progress.

        `on_end` gets the last lines of each file, whatever is in them.
        """
        self.files = 0
        """Files with content that was read."""
        self.lines = 0
        self.bytes = 0
        """Both of the unpacked content."""
        self.unread: list[Unread] = []
        """What could not be read completely."""
        self._inputs, self._on_progress, self._on_end = inputs, on_progress, on_end
        self._words, self._rarely = frozenset(words), frozenset(rarely)
        self._copies, self._forgotten = Copies(), 0
        self._allowed, self._requested, self._parts, self._enough, self._forgets = 0, 0, 0, COPIES, False
        self._prefilter = Prefilter({*words, *Sources.WORDS})
        self._overlap = max(len(word.encode()) for word in (*words, *Sources.WORDS))
        self._sizes = {file.path: _size(file.path) for file in inputs}
        self._all = sum(size or 0 for size in self._sizes.values())
        self._taken, self._order, self._wanted = 0, 0, 0
        self._processes = RanksByProcess()
        self._chain = Chain()

    def request_lines(self, lines: int) -> None:
        """While a line is being handled: the next `lines` lines of its file come out, too."""
        self._requested = max(self._requested, lines)
        self._wanted = max(self._wanted, lines)

    def skip_copies(self, enough: int = COPIES) -> None:
        """While a line is being handled: of lines that differ from it in times, pointers and ports only, `enough` and
        the last one say enough. The last one comes out at the end of its file, or where copies are forgotten. One that
        was requested may be a line of a traceback: SETTLED come out, unless a logger wrote it, or `enough` is more than
        COPIES."""
        self._allowed += 1
        self._enough = enough

    def forget_copies(self) -> None:
        """While a line is being handled: copies of earlier lines say something new after it (for the first FORGETS
        times in a file)."""
        self._forgets = True

    def __iter__(self) -> Iterator[Line]:
        for file in self._inputs:
            self._wanted, self._number, self._skips = 0, 1, False
            self._sources, self._chain = Sources(file.path, self._processes), Chain()
            self._copies, self._forgotten = Copies(), 0
            block, before, known, tail = b"\n", self.bytes, len(self.unread), b""
            try:
                for block in _blocks(self._text(file), self._overlap):
                    tail = (tail + block[-TAIL:])[-TAIL:]
                    yield from self._of_block(file, block)
                yield from self._held_back(file, block)
                self._on_end(self._last_lines(file, tail))
            except (OSError, EOFError, zlib.error) as error:
                why = getattr(error, "strerror", None) or str(error)
                self.unread.append(
                    Unread(file.shown, f"cannot be read beyond line {self._number:,} ({why})", broken=True)
                )
            self.files += self.bytes > before
            if self.bytes == before and len(self.unread) == known:
                self.unread.append(Unread(file.shown, "is empty"))
            self.lines += self._number - block.endswith(b"\n")

    def _last_lines(self, file: Input, tail: bytes) -> list[Line]:
        """Of a file that was read to its end."""
        last = self._number - tail.endswith(b"\n")
        texts = tail.replace(b"\r\n", b"\n").removesuffix(b"\n").split(b"\n")
        numbered = zip(range(last - len(texts) + 1, last + 1), texts, strict=True)
        pieces = ((number, piece) for number, text in numbered for piece in text.split(b"\r"))
        parts = [(number, part) for number, piece in pieces for part in _records(piece) if part.strip()]
        lines = []
        for number, part in ((number, part.decode("utf-8", "replace")) for number, part in parts[-TAIL_LINES:]):
            line = self._sources.read(part[:LONGEST], tail)
            self._order += 1
            line.file, line.number, line.order, line.front = file.shown, number, self._order, None
            line.text, line.raw = line.text[:LONGEST], plain(part)[:LONGEST]
            lines.append(line)
        return lines

    def _text(self, file: Input) -> Iterator[bytes]:
        """As UTF-8, or whatever else holds ASCII."""
        chunks = self._chunks(file)
        first = next(chunks, b"")
        while len(first) < 4 and (more := next(chunks, b"")):  # a pipe may give single bytes
            first += more
        if first.startswith(GZIP):
            chunks = _gunzipped(first, chunks)
            first = next(chunks, b"")
        if why := refusal(first[:HEAD]):  # a pipe was not checked before
            self.unread.append(Unread(file.shown, why))
            return
        coding = next((coding for bom, coding in BOMS.items() if first.startswith(bom)), "")
        decoder = codecs.getincrementaldecoder(coding)("replace") if coding else None
        chunk = first
        while chunk:
            chunk = decoder.decode(chunk).encode("utf-8", "replace") if decoder else chunk
            self.bytes += len(chunk)
            yield chunk
            chunk = next(chunks, b"")

    def _chunks(self, file: Input) -> Iterator[bytes]:
        """Up to its size at the start: a job that still writes is not followed."""
        left = self._sizes[file.path]
        number = _stdin() if file.path == STDIN else opened(file.path)
        try:
            while chunk := os.read(number, CHUNK if left is None else min(CHUNK, left)):
                left = None if left is None else left - len(chunk)
                self._taken += len(chunk)
                self._on_progress(self._taken, max(self._taken, self._all))
                yield chunk
        finally:
            if file.path != STDIN:
                os.close(number)

    def _of_block(self, file: Input, block: bytes) -> Iterator[Line]:
        """`block` has whole lines, or a piece of a very long one."""
        block = self._cleaned(block)
        for segment in self._found(block):
            self._allowed = self._requested = self._parts = 0
            yield from self._lines(file, segment, block)
            if not self._chain.inherits:
                enough = self._enough if self._allowed == self._parts else ENDLESS
                self._copies.add(segment.raw, self._chain, segment.words, self._requested, enough)
            if (self._forgets and self._forgotten < FORGETS) or self._copies.is_full:
                self._forgotten += self._forgets
                yield from self._held_back(file, block)

    def _held_back(self, file: Input, block: bytes) -> Iterator[Line]:
        """The last copies."""
        self._forgets, chain = False, self._chain
        for copy in self._copies.give_back():
            if copy.words:
                text, self._chain = copy.raw.decode("utf-8", "replace"), Chain()
                segment = _Found(copy.number, copy.raw, text, copy.words, asked=False, repeats=copy.held)
                yield from self._lines(file, segment, block)
        self._chain = chain

    def _cleaned(self, block: bytes) -> bytes:
        if self._skips:  # the rest of a long line; a piece of it came out
            end = _ENDS.search(block)
            block, self._skips = block[end.start() :] if end else b"", not end
        if b"\r" in block and b"\n" in block:
            block = block.replace(b"\r\n", b"\n")
        return _COLOURS.sub(b"", block) if b"\x1b[" in block else block

    def _found(self, block: bytes) -> Iterator["_Found"]:
        shapes = self._prefilter.shapes(block)
        with_words = self._prefilter.with_words(shapes)
        begin, self._number = self._number, self._number + block.count(b"\n")
        if not with_words and not self._wanted:
            return
        is_simple = b"\r" not in block
        segments = block.split(b"\n") if is_simple else block.replace(b"\r", b"\n").split(b"\n")
        if block.endswith((b"\n", b"\r")):
            segments.pop()
        torn = len(segments) - 1 if len(segments) == len(shapes) else -1
        numbers = range(begin, begin + len(segments)) if is_simple else _numbers(block, begin)
        for at in self._places(segments, numbers, shapes, with_words):
            for raw in _records(segments[at]):
                if found := self._of_record(raw, numbers[at], with_words.get(shapes[at], ()), block):
                    self._skips = at == torn
                    yield found

    def _of_record(self, raw: bytes, number: int, maybe: Sequence[str], block: bytes) -> "_Found | None":
        asked = self._wanted > 0
        self._wanted -= asked
        if self._is_dull(raw, number, bool(maybe)):
            return None
        text = raw.decode("utf-8", "replace")
        held = [word for word in maybe if word in text]
        wanted = [word for word in held if word in self._words]
        if wanted or asked:
            return _Found(number, raw, text, wanted, asked)
        if held:
            self._sources.read(text, block)
        return None

    def _is_copy(self, raw: bytes, number: int) -> bool:
        """Whether it says nothing new; if so, it is remembered as the last one."""
        copy = self._copies.find(raw)
        if copy is None or copy.told < copy.enough:
            return False
        if self._wanted:
            line = copy.chain.last
            if not line or (line.bare and self._chain.leads_to(number)):
                return False
            if copy.told < SETTLED and copy.enough == COPIES and not line.level:
                return False
            self._wanted -= 1
        copy.held += 1
        copy.raw, copy.number = raw, number
        self._chain = copy.chain
        self._chain.upto = number
        if copy.wanted > self._wanted:
            self._wanted = copy.wanted
        return True

    def _is_dull(self, raw: bytes, number: int, has_word: bool) -> bool:
        """Whether it is nothing of what is sought, even if it is requested."""
        if not raw or raw.startswith(_FRAME):
            self._chain.extend(number)
            return True
        if not has_word and _NCCL.match(raw):
            self._chain = Chain(None, number, raw)
            return True
        return False

    def _places(
        self,
        segments: Sequence[bytes],
        numbers: Sequence[int],
        shapes: Sequence[bytes],
        with_words: Mapping[bytes, tuple[str, ...]],
    ) -> Iterator[int]:
        """Of the segments to be searched."""
        rare: dict[tuple[str, ...], list[int]] = {}
        for at, raw in enumerate(segments):
            words = with_words.get(shapes[at])
            if words and not self._wanted and self._rarely.issuperset(words):
                kept = rare.setdefault(words, [at, at, at])
                kept[1], kept[2] = kept[2], at
            elif (words or self._wanted) and not self._is_copy(raw, numbers[at]):
                if rare:
                    yield from _each(rare)
                    rare.clear()
                yield at
        yield from _each(rare)

    def _lines(self, file: Input, segment: "_Found", block: bytes) -> Iterator[Line]:
        """Two, where two writers' text is on one line, and both hold words or are requested."""
        line = self._sources.read(segment.text, block)
        parts = [
            part
            for part in (line.front, line)
            if part and (any(word in part.text for word in segment.words) or (segment.asked and part is line))
        ]
        for part in parts or [line]:
            self._parts += 1
            yield self._completed(part, file, segment, block)

    def _completed(self, line: Line, file: Input, segment: "_Found", block: bytes) -> Line:
        """With its place; and with the source of the line above, where it belongs to that one."""
        chain = self._chain
        inherits = segment.asked and line.bare and chain.leads_to(segment.number)
        if inherits:  # a logger's message of several lines: only the first has a prefix
            last = chain.last or self._sources.read(chain.unread.decode("utf-8", "replace"), block)
            line.rank = last.rank if line.rank is None else line.rank
            line.local_rank = last.local_rank if line.local_rank is None else line.local_rank
            line.node, line.pid = line.node or last.node, last.pid if line.pid is None else line.pid
        self._order += 1
        line.file, line.number, line.order, line.front = file.shown, segment.number, self._order, None
        line.text, line.raw = _window(line.text, segment.words), _window(plain(segment.text), segment.words)
        line.repeats = segment.repeats
        self._chain = Chain(line, segment.number, inherits=inherits)
        return line


def _records(raw: bytes) -> Sequence[bytes]:
    """The records of one physical line: a writer without newlines, or a terminal's copy, puts several on it."""
    start = _STAMPED.match(raw)
    if start is None or raw.find(start[1] + b"20", start.end()) < 0:
        return (raw,)
    mark, between, comma, after = (re.escape(part) for part in start.groups())
    again = rb"%b20\d\d-\d\d-\d\d%b\d\d:\d\d:\d\d%b\d*%b" % (mark, between, comma, after)
    starts = [found.start() for found in re.finditer(again, raw)]
    return [raw[at:end].rstrip() for at, end in zip(starts, [*starts[1:], len(raw)], strict=True)]


def _numbers(block: bytes, begin: int) -> list[int]:
    """The line of each segment of a block with carriage returns."""
    return [number for number, line in enumerate(block.split(b"\n"), begin) for _ in range(line.count(b"\r") + 1)]


def _each(rare: Mapping[tuple[str, ...], Sequence[int]]) -> list[int]:
    return sorted({at for kept in rare.values() for at in kept})


@dataclass(frozen=True, slots=True)
class _Found:
    number: int
    raw: bytes
    text: str
    words: Sequence[str]
    asked: bool
    repeats: int = 0


def _window(text: str, words: Sequence[str]) -> str:
    """The start of a long line, or the part around the first word."""
    if len(text) <= LONGEST:
        return text
    at = min((at for word in words if (at := text.find(word)) >= 0), default=0)
    start = 0 if at + len(max(words, key=len, default="")) <= LONGEST else at - LONGEST // 2
    start = text.find(" ", start, at) + 1 or start  # a word that is cut may be a secret without its name
    return text[start : start + LONGEST]


def _blocks(chunks: Iterator[bytes], overlap: int) -> Iterator[bytes]:
    """Whole lines; an endless line in pieces, each beginning with the last `overlap` bytes of the one before."""
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
    """None: unknown."""
    try:
        status = os.stat(path) if path != STDIN else None
    except OSError:
        return 0
    return status.st_size if status and stat.S_ISREG(status.st_mode) else None


def _stdin() -> int:
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("-: there is no standard input")
    return sys.stdin.fileno()
