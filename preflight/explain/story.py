"""What the lines of all inputs say, kept in bounded memory: by signature and by who said it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from preflight.explain.line import RANKS, Line
from preflight.explain.signatures import Match
from preflight.explain.tracebacks import Tracebacks

EACH = 4
"""Matches of one signature that are kept of one source: the first ones. And the last."""
ABOUT = ("rank", "peer_rank", "local_rank", "gpu", "node", "peer_node", "device", "interface", "variable")
SOURCES = 2048
"""Of which one signature keeps its matches; beyond them it counts."""
ROOM = 64 << 20
"""Characters of lines that are kept; then only what is the first of its signature."""
TELLS_OF = ("cause", "failure", "fallout")
ALIVE = ("progress.", "epoch.end")
"""Rows, by how their names begin, of work that goes on."""

BEGUN = ("rdzv.complete", "nccl.init_complete", "members.all", "store_barrier.done")
"""Rows of what comes when all ranks have come."""

Moment = tuple[float, int, str]
"""When a line was said, as far as it can be compared with another: time, number in its file, file."""


Times = Mapping[str, float]
"""By clock, in seconds: the last ones that a file has told up to a line."""


@dataclass
class Kept:
    """The matches of one signature."""

    count: int = 0
    first: dict[str, list[tuple[Match, Times]]] = field(default_factory=dict)
    """By source: see `_source`."""
    last: dict[str, tuple[Match, Times]] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)

    def matches(self) -> list[Match]:
        """All that are kept, each once."""
        return [match for match, _ in self.timed()]

    def tells(self, group: str) -> bool:
        """Whether its first line holds this group."""
        return any(group in match.groups for match, _ in next(iter(self.first.values()), []))

    def timed(self) -> list[tuple[Match, Times]]:
        """The same, with the times."""
        return [*(one for of_source in self.first.values() for one in of_source), *self.last.values()]


class Story:
    """Filled line by line; then `roots.explain` reads it."""

    def __init__(self) -> None:
        self.seen: dict[str, Kept] = {}
        """By the name of the signature."""
        self.tracebacks = Tracebacks()
        self.ranks: set[int] = set()
        """Of all lines of interest."""
        self.nodes: set[str] = set()
        self._clocks: Counter[str] = Counter()
        self._began: dict[str, Times] = {}
        self._times: dict[str, Times] = {}
        self._at: dict[tuple[str, int], Times] | None = None
        self._room = ROOM

    def add(self, line: Line, matches: Sequence[Match]) -> int:
        """Takes a line; returns how many of the lines after it, in its file, it wants to be given as well."""
        self._clock(line)
        self._at = None
        if line.rank is not None and 0 <= line.rank < RANKS:
            self.ranks.add(line.rank)
        if line.node and len(self.nodes) < RANKS:
            self.nodes.add(line.node)
        alive = next((one for one in matches if one.signature.name.startswith(ALIVE)), None)
        progress = f"{alive.signature.name} {sorted(alive.groups.items())}" if alive else ""
        slugs = {one.signature.slug for one in matches if one.signature.role in TELLS_OF}
        self.tracebacks.add(line, self._times[line.file], slugs, progress)
        for one in matches:
            self._keep(one)
        return max((one.signature.lines for one in matches), default=0)

    def matches(self, *names: str) -> list[Match]:
        """Those kept of these signatures, the first one first."""
        found = [match for name in names if name in self.seen for match in self.seen[name].matches()]
        return sorted(found, key=lambda one: self.moment(one.line))

    def began_between(self, line: Line, later: Line) -> bool:
        """Whether a job began there, in one file: its ranks had all come."""
        began = [match.line for match in self.matches(*BEGUN) if match.line.file == line.file == later.file]
        return any(line.number < one.number < later.number for one in began)

    def failed_after(self, line: Line) -> bool:
        """Whether its file tells of a failure behind it, as far as its lines are kept."""
        rows = [kept.matches() for kept in self.seen.values()]
        told = [one.line for those in rows for one in those if one.signature.role in ("cause", "failure")]
        told += [one.line for one in self.tracebacks.all()]
        return any(one.file == line.file and one.number > line.number for one in told)

    def moment(self, line: Line) -> Moment:
        """To sort lines by. Within one file its own order counts; between files the clock that most lines have, which
        a line without takes from the last one before it in its file. (The order in which files are read says nothing.)
        """
        if len(self._times) < 2:
            return (0.0, line.number, line.file)
        clock = max(self._clocks, key=lambda name: (self._clocks[name], name), default="")
        if self._at is None:
            self._at = self._index()
        for times in (self._at.get((line.file, line.number), {}), self._began.get(line.file, {})):
            if clock in times:
                return (times[clock], line.number, line.file)
        return (float("inf"), line.number, line.file)

    def _index(self) -> dict[tuple[str, int], Times]:
        told = [(match.line, times) for kept in self.seen.values() for match, times in kept.timed()]
        told += [(one.line, one.times) for one in self.tracebacks]
        return {(line.file, line.number): times for line, times in told}

    def _clock(self, line: Line) -> None:
        times = self._times.setdefault(line.file, {})
        if line.time is None:
            return
        self._clocks[line.clock] += 1
        self._times[line.file] = {**times, line.clock: line.time}
        began = self._began.setdefault(line.file, {})
        if line.clock not in began:
            self._began[line.file] = {**began, line.clock: line.time}

    def _keep(self, match: Match) -> None:
        line = match.line
        kept = self.seen.setdefault(match.signature.name, Kept())
        kept.count += 1
        if line.rank is not None and 0 <= line.rank < RANKS:
            kept.ranks.add(line.rank)
        if line.node and len(kept.nodes) < RANKS:
            kept.nodes.add(line.node)
        source = _source(match)
        if kept.first and (self._room < 0 or (len(kept.first) >= SOURCES and source not in kept.first)):
            return
        first = kept.first.setdefault(source, [])
        told = (match, self._times[line.file])
        if len(first) < EACH:
            first.append(told)
            self._room -= len(line.raw) + len(line.text)
        else:
            kept.last[source] = told


def _source(match: Match) -> str:
    """Who says it, and of whom: two ranks that one file tells of are two sources."""
    who = match.line.file if match.line.rank is None else str(match.line.rank)
    return " ".join([who, *(match.groups[name] for name in ABOUT if name in match.groups)])
