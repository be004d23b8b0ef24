"""Python tracebacks, assembled from the interleaved lines of many ranks."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from preflight.core.own_code import is_own
from preflight.failure_book.line import Line

Source = tuple[str, int | None, int | None, int | None, str]
"""The writer: file, rank, local rank (torchrun's label has no other), process, node."""
WITHIN = 80
"""Lines of its source, at most, from a traceback's head to its exception."""
AFTER = 40
"""Within this many lines of its source a second traceback still belongs to the first."""
OPEN = 2048
"""Sources with an unfinished traceback; beyond that, the oldest is dropped."""
EACH = 8
"""Tracebacks kept per source: the first ones."""
KEPT = 4096
"""And in all."""
DEBUG_SERVER = "_frontend.py:"
"""torch's debug server logs what it cannot show, such as the flight recorder of gloo (2.13). The job goes on."""
AFTERMATH = frozenset(("app_crash", "external_signal", "host_oom_kill"))
"""What a launcher reports after an exception, as its consequence: not part of the exception's text."""
LONGEST = 300
"""Characters of an exception's text that a message quotes."""
REST = 6
"""Lines after an exception's first that may belong to its text: of several lines, or wrapped by rich."""
FRAMES = 12
"""Innermost frames whose files are kept."""

IGNORED, NEAR = "Exception ignored in", 4
"""What Python writes above the traceback of a finalizer, and within how many lines."""
_HEAD = re.compile(r"(?:Original |\+ Exception Group )?Traceback \(most recent call last\)")
_FRAME = re.compile(r'^(?P<indent>[\s|]*)File "(?P<file>[^"]+)", line (?P<line>\d+)')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:\([\w.]+\))?(?:: ?(?P<text>.*))?$")
_NAMED_LIKE_ONE = re.compile(r"(?:Error|Exception|Exit|Interrupt|Iteration|Timeout|OutOfMemory\w*|Abort\w*|^gaierror)$")
_VALUE = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?\b")
"""What a measured error is: "Error: 0.031"."""
_RAISED_FROM = "The above exception was the direct cause of the following exception"
_WHILE_HANDLED = "During handling of the above exception, another exception occurred"
LONGEST_FRONT = 200
"""Characters before a head that may be a prefix of each of its lines."""
_AFTER_FRONT = re.compile(
    r"^(?P<front>[^A-Za-z]+\b|.{1,120}?(?:[\]:|>)-]|\b(?:ERROR|CRITICAL|FATAL))\s+)(?=[A-Za-z_][\w.]*(?:Error|Exception)(?::|$))"
)
_NO_PROSE = re.compile(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>|[\w./-]+:\d+")
_ENDS_TEXT = re.compile(
    r"(?:\[?[IWEF]\d{4}|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\b|Traceback|During handling|The above|Exception |"
    r"srun|slurm|wandb|CUDA kernel|Compile with|For debugging|frame #|\[|\d{1,3}%|--+|==+|\*\*+|[│╭╰|]|File \"|/)"
)
"""A line that cannot be the rest of an exception's text."""
WRAPPED = range(55, 110)
"""Lengths of a line that rich may have wrapped."""
_GOES_ON = re.compile(r"[a-z0-9(\[{'\"`*=!<>+-]")
_SEVERE = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b")
_MILD = re.compile(r"(?i)\b(?:warn(?:ing)?|info|debug)\b")
_WORD = re.compile(r"[^\W\d]{2,}")
MOST_WORDS, MOST_WORDS_WITH_LEVEL = 1, 3
"""Words outside brackets in a logger's prefix, without and beside its level; prose has more."""


@dataclass
class Traceback:
    """A complete traceback, with its exception."""

    line: Line
    """Of the exception."""
    times: Mapping[str, float]
    """By clock: the last times in its file up to then."""
    type: str
    """Without its module: "ValueError"."""
    text: str
    """The exception's message."""
    file: str
    """The innermost frame in the user's code; a library's if there is none."""
    number: int
    known: bool
    """Whether a signature fits one of its lines: then that is reported instead."""
    raised_from: bool = False
    """Whether another exception was raised from it: this one is the original."""
    while_handled: bool = False
    """Whether another was raised while it was handled: the other's stack may hold the user's frames."""
    replaced: bool = False
    """Whether another one in the same output says more about the same failure."""
    later: set[str] = field(default_factory=set)
    """Progress that its source reported afterwards (a few distinct steps)."""
    begin: int = 0
    """Number of its first line in its file."""
    frames: tuple[str, ...] = ()
    """Files of its innermost frames, the innermost last."""

    @property
    def raised(self) -> str:
        return f"{self.type}: {self.text}" if self.text else self.type

    @property
    def survived(self) -> bool:
        """Its process went on: at least two steps, since a progress bar is redrawn once at its end."""
        return len(self.later) > 1


@dataclass
class _Open:
    head: Line
    known: bool
    original: bool
    """Whether it is part of another exception's text ("Original Traceback ...")."""
    front: re.Pattern[str] | None
    """Of an unknown prefix that each of its lines has."""
    indent: int
    lines: int = 0
    indented: bool = False
    frame: tuple[str, int] | None = None
    own: tuple[str, int] | None = None
    frames: list[str] = field(default_factory=list)
    later: set[str] = field(default_factory=set)
    """As of a Traceback."""


@dataclass
class _Rest:
    """The further lines of an exception's text."""

    first: str
    indent: int
    upto: int
    """The number of its last line. A line without a prefix that does not follow at once is none."""
    lines: list[str] = field(default_factory=list)


class Tracebacks:
    """Filled line by line; what it keeps is bounded."""

    def __init__(self) -> None:
        self._open: dict[Source, _Open] = {}
        self._dropped: dict[Source, _Open] = {}
        """The last one of each source without an exception."""
        self._ended: dict[Source, list[Traceback]] = {}
        self._since: dict[Source, int] = {}
        self._kept = 0
        self._rest: dict[tuple[str, int], _Rest] = {}
        """By file and number of an exception's line."""
        self._goes_on: dict[Source, _Rest] = {}
        self._ignored: dict[Source, int] = {}
        """By source, the number of its last line that announces an exception of a finalizer: the process goes on."""

    def __iter__(self) -> Iterator[Traceback]:
        """Those that no other one of the same source replaces."""
        return (traceback for traceback in self.all() if not traceback.replaced)

    def all(self) -> Iterator[Traceback]:
        """All, including replaced ones."""
        return (traceback for of_source in self._ended.values() for traceback in of_source)

    def around(self, line: Line) -> Traceback | None:
        """The one whose lines, from its head to its exception, this is one of."""
        source = (line.file, line.rank, line.local_rank, line.pid, line.node)
        ended = self._ended.get(source, ())
        return next((each for each in ended if each.begin <= line.number <= each.line.number), None)

    def rest(self, line: Line) -> str:
        """The further lines of the exception in this line."""
        rest = self._rest.get((line.file, line.number))
        return " ".join(rest.lines) if rest else ""

    def cut_off(self) -> list[tuple[Line, str, int]]:
        """Tracebacks without their exception, unless their process went on: the head, and the innermost frame's file
        and line, in the user's code if there is one."""
        ends = (*self._open.values(), *self._dropped.values())
        return [(end.head, *(end.own or end.frame)) for end in ends if end.frame and len(end.later) < 2]

    def is_full(self, line: Line) -> bool:
        """Whether no further traceback of the line's source is kept."""
        source = (line.file, line.rank, line.local_rank, line.pid, line.node)
        return self._kept >= KEPT or len(self._ended.get(source, ())) >= EACH

    def add(self, line: Line, times: Mapping[str, float], slugs: Collection[str], progress: str = "") -> None:
        """`slugs`: causes of the signatures that fit the line. `progress`: the progress that the line reports."""
        source = (line.file, line.rank, line.local_rank, line.pid, line.node)
        ended = self._ended.get(source)
        if progress:
            for traceback in (*(ended or ()), *(of[source] for of in (self._open, self._dropped) if source in of)):
                if len(traceback.later) < 3:
                    traceback.later.add(progress)
        self._read_on(source, line)
        if IGNORED in line.text and len(self._ignored) < OPEN:
            self._ignored[source] = line.number
        if head := _HEAD.search(line.text):
            if not self.is_full(line):
                is_ignored = line.number - self._ignored.pop(source, -NEAR) < NEAR
                known = bool(slugs) or is_ignored or line.place.startswith(DEBUG_SERVER)
                self._begin(source, line, known, head)
        elif source in self._open:
            self._within(source, line, times, bool(slugs))
        elif ended:
            self._after(source, ended, line.text, not AFTERMATH.issuperset(slugs))

    def _read_on(self, source: Source, line: Line) -> None:
        """Keeps what follows an exception and is part of its text: indented, wrapped, or announced by a colon."""
        rest = self._goes_on.pop(source, None)
        if rest is not None and (not line.bare or line.number <= rest.upto + 1) and _goes_on(rest, line):
            rest.lines.append(line.text.strip()[:LONGEST])
            rest.upto = line.number
            self._goes_on[source] = rest
        elif source not in self._open and exception(line.text, indented=False):
            self._start_rest(source, line)

    def _start_rest(self, source: Source, line: Line) -> None:
        if len(self._goes_on) < OPEN and len(self._rest) < KEPT:
            self._goes_on[source] = self._rest[line.file, line.number] = _Rest(
                line.text.rstrip(), _indent(line), line.number
            )

    def _begin(self, source: Source, line: Line, known: bool, head: re.Match[str]) -> None:
        self._drop(source)
        if len(self._open) >= OPEN:
            del self._open[next(iter(self._open))]
        self._open[source] = _Open(
            line, known, head[0].startswith("Original"), _front(line.text[: head.start()]), _indent(line)
        )

    def _drop(self, source: Source) -> None:
        opened = self._open.pop(source, None)
        if opened and opened.frame and not opened.known and (len(self._dropped) < OPEN or source in self._dropped):
            self._dropped[source] = opened

    def _within(self, source: Source, line: Line, times: Mapping[str, float], known: bool) -> None:
        opened = self._open[source]
        front = opened.front.match(line.text) if opened.front else None
        text = line.text[front.end() :] if front else line.text
        text = " " * (_indent(line) - opened.indent) + text
        opened.lines += 1
        opened.known = opened.known or known
        if frame := _FRAME.match(text):
            opened.frame = (frame["file"], int(frame["line"][:9]))
            opened.frames = [*opened.frames[1 - FRAMES :], frame["file"]]
            opened.indented = opened.indented or bool(frame["indent"])
            if is_own(frame["file"]):
                opened.own = opened.frame
        elif opened.frame and (raised := exception(text, opened.indented and bool(front or not opened.front))):
            del self._open[source]
            self._end(source, opened, line, times, raised)
        elif opened.lines > WITHIN:
            self._drop(source)

    def _end(
        self, source: Source, opened: _Open, line: Line, times: Mapping[str, float], raised: tuple[str, str]
    ) -> None:
        ended = self._ended.setdefault(source, [])
        if len(ended) >= EACH or self._kept >= KEPT:
            return
        assert opened.frame, "a traceback ends after a frame"
        file, number = opened.own or opened.frame
        begin, frames = opened.head.number, tuple(opened.frames)
        traceback = Traceback(line, times, *raised, file, number, opened.known, begin=begin, frames=frames)
        self._start_rest(source, line)
        _merge_related(ended, traceback, opened.original, self._since.get(source, AFTER + 1))
        ended.append(traceback)
        self._kept += 1
        self._since[source] = 0

    def _after(self, source: Source, ended: list[Traceback], text: str, known: bool) -> None:
        """The lines after an exception may hold the rest of its text, and announce what is raised from it."""
        self._since[source] = since = self._since[source] + 1
        if since <= AFTER:
            ended[-1].known = ended[-1].known or (known and since <= 5)
            ended[-1].raised_from = ended[-1].raised_from or _RAISED_FROM in text
            ended[-1].while_handled = ended[-1].while_handled or _WHILE_HANDLED in text


def _indent(line: Line) -> int:
    """Spaces between its prefixes and its text."""
    raw = line.raw.rstrip()
    before = raw.removesuffix(line.text)
    return len(before) - len(before.rstrip()) if before != raw else 0


def _goes_on(rest: _Rest, line: Line) -> bool:
    text, before = line.text.strip(), rest.lines[-1] if rest.lines else rest.first
    if not text or line.level or len(rest.lines) >= REST or _ENDS_TEXT.match(text) or exception(text, indented=False):
        return False
    wrapped = len(before) in WRAPPED and len(rest.first) in WRAPPED and bool(_GOES_ON.match(text))
    return wrapped or _indent(line) > rest.indent or (before.endswith(":") and not rest.lines)


def _front(text: str) -> re.Pattern[str] | None:
    """The prefix before a head, with any numbers in the place of its own: time stamps and lines of code differ."""
    if not text.strip() or len(text) > LONGEST_FRONT:
        return None
    return re.compile(re.sub(r"\d+", r"\\d+", re.escape(text)))


def prefixed_exception(text: str) -> tuple[str, str] | None:
    """As `exception`, of a line that begins with an unknown prefix: "trainer - ERROR - ValueError: odd". Prose is none
    ("retrying after ConnectionError: ...")."""
    match = _AFTER_FRONT.match(text)
    if not match:
        return None
    front = _NO_PROSE.sub("", match["front"])
    rest = _MILD.sub("", _SEVERE.sub("", front))
    if len(_WORD.findall(rest)) > (MOST_WORDS if rest == front else MOST_WORDS_WITH_LEVEL):
        return None
    return exception(text[match.end() :], indented=False)


def exception(text: str, indented: bool) -> tuple[str, str] | None:
    """Type, without its module, and message of the exception in this line. If frames are `indented`, the first line
    that is not indented is one; otherwise its name must look like an error's."""
    match = _EXCEPTION.match(text.rstrip() if indented else text.strip())
    if not match or match["type"].isupper() or (match["type"] == "Error" and _VALUE.match(match["text"] or "")):
        return None
    name = match["type"].rpartition(".")[2]
    if _NAMED_LIKE_ONE.search(name) or (indented and name[:1].isupper()):
        return name, (match["text"] or "")[:LONGEST]
    return None


def _merge_related(ended: list[Traceback], traceback: Traceback, original: bool, since: int) -> None:
    """Keeps one of two related tracebacks: a DataLoader worker's own, and the cause of another."""
    if not ended or since > AFTER:
        return
    before = ended[-1]
    if original:
        before.replaced = True
    elif before.while_handled and is_own(traceback.file) and not is_own(before.file):
        before.file, before.number, traceback.replaced = traceback.file, traceback.number, True
        before.known = before.known or traceback.known
    elif before.raised_from:
        traceback.replaced = True
        before.known = before.known or traceback.known
