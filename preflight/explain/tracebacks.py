"""Python tracebacks, put together from the lines of many ranks that mix in one file."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from preflight.explain.line import Line

Source = tuple[str, int | None, int | None, int | None, str]
"""Who speaks: file, rank, local rank (torchrun's label tells no other), process, node."""
WITHIN = 80
"""Lines of its source, at most, from a traceback's head to its exception."""
AFTER = 40
"""Lines of its source in which a second traceback still belongs to the first."""
OPEN = 2048
"""Sources whose lines are put together at the same time; the oldest is dropped."""
EACH = 8
"""Tracebacks that are kept of a source: the first ones."""
KEPT = 4096
"""And in all."""
AFTERMATH = frozenset(("app_crash", "external_signal", "host_oom_kill"))
"""What a launcher says behind an exception, of the end that it has caused: that is no text of the exception's."""
LONGEST = 300
"""Characters of an exception's text that a message quotes."""

_HEAD = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(r'^(?P<indent>[\s|]*)File "(?P<file>[^"]+)", line (?P<line>\d+)')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:\([\w.]+\))?(?:: ?(?P<text>.*))?$")
_NAMED_LIKE_ONE = re.compile(r"(?:Error|Exception|Exit|Interrupt|Iteration|Timeout|OutOfMemory\w*|Abort\w*)$")
_RAISED_FROM = "The above exception was the direct cause of the following exception"
_WHILE_HANDLED = "During handling of the above exception, another exception occurred"
_LIBRARY = re.compile(
    r"(?:site|dist)-packages|[/\\]lib(?:64)?[/\\]python3|(?:^|[/\\])torch[/\\]|^<|[/\\]bin[/\\]|"
    r"(?:^|[/\\])(?:runpy|threading|subprocess|concurrent|multiprocessing|asyncio|importlib|unittest)\b"
)
"""Files that are not the user's own."""
_LOGGERS_WORDS = re.compile(r"^(?:[\w.]+ )?(?:ERROR|WARNING|INFO|CRITICAL|DEBUG)\b[^\]]{0,80}\] ?")
"""vLLM and others put a logger's words before each line of a traceback."""


@dataclass
class Traceback:
    """One that has ended with its exception."""

    line: Line
    """Of the exception."""
    times: Mapping[str, float]
    """By clock: what its file had told of the time by then."""
    type: str
    """Without its module: "ValueError"."""
    text: str
    """What the exception says."""
    file: str
    """The user's innermost line; of a library, where no frame is the user's."""
    number: int
    known: bool
    """Whether a signature fits one of its lines: then it is not for its own sake that it is looked at."""
    raised_from: bool = False
    """Whether another was raised from it: this one is the deeper."""
    while_handled: bool = False
    """Whether another was raised while it was handled: a library's frames lie in the other's stack."""
    replaced: bool = False
    """Whether another, before or after it in the same output, says more of the same."""
    later: set[str] = field(default_factory=set)
    """Steps forward that its source reported afterwards (a few)."""

    @property
    def survived(self) -> bool:
        """Its process went on: two steps forward at least, since a progress bar is drawn once more at its end."""
        return len(self.later) > 1


@dataclass
class _Open:
    head: Line
    known: bool
    original: bool
    """Whether it stands within the text of another's exception ("Original Traceback ...")."""
    lines: int = 0
    indented: bool = False
    frame: tuple[str, int] | None = None
    own: tuple[str, int] | None = None


class Tracebacks:
    """Filled line by line; what it keeps is bounded."""

    def __init__(self) -> None:
        self._open: dict[Source, _Open] = {}
        self._ended: dict[Source, list[Traceback]] = {}
        self._since: dict[Source, int] = {}
        self._kept = 0

    def __iter__(self) -> Iterator[Traceback]:
        """Those that are not told better by another of the same source."""
        return (one for one in self.all() if not one.replaced)

    def all(self) -> Iterator[Traceback]:
        """Those, too."""
        return (one for of_source in self._ended.values() for one in of_source)

    def cut_off(self) -> list[Line]:
        """Heads of tracebacks that wait for their exception."""
        return [one.head for one in self._open.values() if one.frame]

    def add(self, line: Line, times: Mapping[str, float], slugs: Collection[str], progress: str = "") -> None:
        """`slugs`: causes of the signatures that fit the line. `progress`: how far its source says it is."""
        source = (line.file, line.rank, line.local_rank, line.pid, line.node)
        ended = self._ended.get(source)
        if progress and ended:
            _went_on(ended, progress)
        text = _LOGGERS_WORDS.sub("", line.text)
        if _HEAD.search(text):
            self._begin(source, line, bool(slugs), text)
        elif source in self._open:
            self._within(source, line, times, text, bool(slugs))
        elif ended:
            self._after(source, ended, text, not AFTERMATH.issuperset(slugs))

    def _begin(self, source: Source, line: Line, known: bool, text: str) -> None:
        self._open.pop(source, None)
        if len(self._open) >= OPEN:
            del self._open[next(iter(self._open))]
        self._open[source] = _Open(line, known, original="Original Traceback" in text)

    def _within(self, source: Source, line: Line, times: Mapping[str, float], text: str, known: bool) -> None:
        one = self._open[source]
        one.lines += 1
        one.known = one.known or known
        if frame := _FRAME.match(text):
            one.frame = (frame["file"], int(frame["line"][:9]))
            one.indented = one.indented or bool(frame["indent"])
            if not _LIBRARY.search(frame["file"]):
                one.own = one.frame
        elif one.frame and (raised := exception(text, one.indented)):
            del self._open[source]
            self._end(source, one, line, times, raised)
        elif one.lines > WITHIN:
            del self._open[source]

    def _end(self, source: Source, one: _Open, line: Line, times: Mapping[str, float], raised: tuple[str, str]) -> None:
        ended = self._ended.setdefault(source, [])
        if len(ended) >= EACH or self._kept >= KEPT:
            return
        assert one.frame, "a traceback ends after a frame"
        file, number = one.own or one.frame
        made = Traceback(line, times, raised[0], raised[1], file, number, one.known)
        _same_story(ended, made, one.original, self._since.get(source, AFTER + 1))
        ended.append(made)
        self._kept += 1
        self._since[source] = 0

    def _after(self, source: Source, ended: list[Traceback], text: str, known: bool) -> None:
        """The lines behind an exception may hold the rest of its text, and say what is raised from it."""
        self._since[source] = since = self._since[source] + 1
        if since <= AFTER:
            ended[-1].known = ended[-1].known or (known and since <= 5)
            ended[-1].raised_from = ended[-1].raised_from or _RAISED_FROM in text
            ended[-1].while_handled = ended[-1].while_handled or _WHILE_HANDLED in text


def exception(text: str, indented: bool) -> tuple[str, str] | None:
    """Type, without its module, and text of the exception that this line tells. Where frames are `indented`, the first
    line that is not is one; else its name must be one of an error."""
    found = _EXCEPTION.match(text.rstrip() if indented else text.strip())
    if not found or found["type"].isupper():
        return None
    name = found["type"].rpartition(".")[2]
    if _NAMED_LIKE_ONE.search(name) or (indented and name[:1].isupper()):
        return name, (found["text"] or "")[:LONGEST]
    return None


def _same_story(ended: list[Traceback], made: Traceback, original: bool, since: int) -> None:
    """Of two that belong together one is kept: the inner one of a worker of a loader, and the cause of another."""
    if not ended or since > AFTER:
        return
    before = ended[-1]
    if original:
        before.replaced = True
    elif before.while_handled and _LIBRARY.search(before.file) and not _LIBRARY.search(made.file):
        before.file, before.number, made.replaced = made.file, made.number, True
        before.known = before.known or made.known
    elif before.raised_from:
        made.replaced = True
        before.known = before.known or made.known


def _went_on(ended: list[Traceback], progress: str) -> None:
    for one in ended:
        if len(one.later) < 3:
            one.later.add(progress)
