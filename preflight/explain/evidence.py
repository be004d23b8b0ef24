"""The matching lines of all inputs, kept in bounded memory: by signature and by source."""

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from preflight.core import node_names
from preflight.core.job import Job, Node
from preflight.explain.logs.ends import ALIVE, STARTED, Ends
from preflight.explain.logs.tracebacks import Tracebacks
from preflight.failure_book.book import Match
from preflight.failure_book.line import RANKS, Line

EACH = 4
"""Matches of one signature that are kept per source: the first ones. The last two are kept, too: they show whether a
job went on after an earlier line."""
ABOUT = ("rank", "peer_rank", "local_rank", "gpu", "node", "peer_node", "device", "interface", "variable")
SOURCES = 2048
"""Per signature; matches from further sources are only counted."""
ROOM = 64 << 20
"""Characters of kept lines; after that, only the first match of a signature is kept."""
REPORTED_ROLES = ("cause", "failure", "fallout")
WARNING_LEVELS = ("W", "I", "WARN", "INFO")
"""Of a line that does not say that its process failed."""
BACKENDS = {"nccl": "nccl", "net": "nccl", "gloo": "gloo"}
"""By the first part of a row's name."""
Moment = tuple[float, int, str]
"""When a line was written, as far as that is known: time, number in its file, file."""


Times = Mapping[str, float]
"""By clock, in seconds: the last times in a file up to a line."""


@dataclass
class Occurrences:
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


class Evidence:
    """Filled line by line; then diagnosis.explain reads it."""

    def __init__(self) -> None:
        self.seen: dict[str, Occurrences] = {}
        """By the name of the signature."""
        self.tracebacks = Tracebacks()
        self.ends = Ends()
        self.ranks: dict[int, str] = {}
        """Of all lines of interest, with the node of each; "" where it is unknown."""
        self.heard: dict[tuple[int, str], tuple[float, float]] = {}
        """By rank and clock, the times of its first and its last line of interest."""
        self.nodes: dict[str, None] = {}
        """In the order in which they appear."""
        self._backend, self._world = "", 0
        self._clocks: Counter[str] = Counter()
        self._began: dict[str, Times] = {}
        self._times: dict[str, Times] = {}
        self._at: dict[tuple[str, int], Times] | None = None
        self._room = ROOM

    def add(self, line: Line, matches: Sequence[Match]) -> int:
        """Takes a line; returns how many of the lines after it in its file are needed, too."""
        if line.repeats:  # it stands among earlier lines
            self._hear(line)
            for match in matches:
                self._keep(match)
            return 0
        self._clock(line)
        self._at = None
        self.ends.add(line, matches)
        if line.rank is not None and 0 <= line.rank < RANKS:
            self.ranks[line.rank] = line.node or self.ranks.get(line.rank, "")
            self._hear(line)
        if line.node and len(self.nodes) < RANKS:
            self.nodes.setdefault(line.node)
        if not matches:
            self.tracebacks.add(line, self._times[line.file], (), "")
            return 0
        alive = next((match for match in matches if match.signature.name.startswith(ALIVE)), None)
        progress = f"{alive.signature.name} {sorted(alive.groups.items())}" if alive else ""
        rows = [match.signature for match in matches if match.signature.role in REPORTED_ROLES]
        slugs = {row.slug for row in rows if self.seen.keys() >= {*row.needs}}
        self.tracebacks.add(line, self._times[line.file], slugs, progress)
        for match in matches:
            self._keep(match)
            self._note_world(match)
        return max(match.signature.lines for match in matches)

    def has_enough(self, line: Line, matches: Sequence[Match]) -> bool:
        """Whether further copies of the line, which was added, need not be: its source's tracebacks are enough."""
        return self.tracebacks.is_full(line) and not any(match.signature.name.startswith(ALIVE) for match in matches)

    def _note_world(self, match: Match) -> None:
        self._backend = self._backend or BACKENDS.get(match.signature.name.partition(".")[0], "")
        world = match.groups.get("nranks", "")
        self._world = max(self._world, int(world) if world.isdecimal() and int(world) <= RANKS else 0)

    def _hear(self, line: Line) -> None:
        if line.rank in self.ranks and line.time is not None:
            first, last = self.heard.get((line.rank, line.clock), (line.time, line.time))
            self.heard[line.rank, line.clock] = (min(first, line.time), max(last, line.time))

    def job(self) -> Job:
        """The report's "job", as far as the logs tell; its size is at least 1."""
        ranks_of = {name: tuple(sorted(rank for rank in self.ranks if self.ranks[rank] == name)) for name in self.nodes}
        nodes = tuple(Node(node_names.safe(name), place, ranks_of[name]) for place, name in enumerate(self.nodes))
        size = max([self._world, 1, *(rank + 1 for rank in self.ranks)])
        return Job("unknown", size, self._backend or "unknown", nodes)

    def times_of_ranks(self) -> list[dict[str, Any]]:
        """When each rank was heard of first and last, in seconds, on the clock that most lines have."""
        clock = max(self._clocks, key=lambda name: (self._clocks[name], name), default="")
        return [
            {"rank": rank, "first": first, "last": last}
            for (rank, its), (first, last) in sorted(self.heard.items())
            if its == clock
        ]

    def matches(self, *names: str) -> list[Match]:
        """Kept matches of these signatures, in order of time."""
        kept = (match for name in names if name in self.seen for match in self.seen[name].matches())
        return sorted(kept, key=lambda match: self.moment(match.line))

    def began_between(self, line: Line, later: Line) -> bool:
        """Whether a job started between these lines of one file: all ranks joined."""
        began = [match.line for match in self.matches(*STARTED) if match.line.file == line.file == later.file]
        return any(line.number < other.number < later.number for other in began)

    def on_one_host(self) -> bool:
        """Whether all ranks of the largest communicator are known to be on one host. (Many are called localhost.)"""
        name = next(iter(self.nodes), "")
        alone = len(self.nodes) == 1 and not name.startswith("localhost")
        return alone and self._world > 0 and all(self.ranks.get(rank) == name for rank in range(self._world))

    def progressed(self) -> bool:
        """Whether it shows at least two distinct steps, or the end of a training."""
        alive = [match for name, kept in self.seen.items() if name.startswith(ALIVE) for match in kept.matches()]
        ended = any(match.signature.name.startswith("epoch.end") for match in alive)
        return ended or len({f"{match.signature.name} {sorted(match.groups.items())}" for match in alive}) > 1

    def went_on_after(self, line: Line) -> bool:
        """Whether its file shows progress after it."""
        alive = (kept.matches() for name, kept in self.seen.items() if name.startswith(ALIVE))
        return any(
            match.line.file == line.file and match.line.number > line.number for those in alive for match in those
        )

    def progressed_after(self, line: Line) -> bool:
        """Whether its file shows after it that all ranks have joined, or at least two distinct steps."""
        joined = self.matches(*STARTED)
        if any(match.line.file == line.file and match.line.number > line.number for match in joined):
            return True
        alive = [match for name, kept in self.seen.items() if name.startswith(ALIVE) for match in kept.matches()]
        later = (match for match in alive if match.line.file == line.file and match.line.number > line.number)
        return len({f"{match.signature.name} {sorted(match.groups.items())}" for match in later}) > 1

    def failed_after(self, line: Line, but: str = "") -> bool:
        """Whether the kept lines of its file show a failure after it, beside those of the slug `but`."""
        rows = [kept.matches() for kept in self.seen.values()]
        matches = [match for those in rows for match in those if match.signature.slug != but]
        failures = [match.line for match in matches if match.signature.role in ("cause", "failure")]
        failures += [traceback.line for traceback in self.tracebacks.all()]
        return any(other.file == line.file and other.number > line.number for other in failures)

    def moment(self, line: Line) -> Moment:
        """A sort key. Within a file the order of lines counts; between files, the clock that most lines have. A line
        without it takes the time of the last line before it. (The order in which files are read says nothing.)
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
        timed = [(match.line, times) for kept in self.seen.values() for match, times in kept.with_times()]
        timed += [(traceback.line, traceback.times) for traceback in self.tracebacks]
        return {(line.file, line.number): times for line, times in timed}

    def _clock(self, line: Line) -> None:
        times = self._times.setdefault(line.file, {})
        if line.time is not None:
            self._clocks[line.clock] += 1
            self._times[line.file] = {**times, line.clock: line.time}
            self._began[line.file] = {line.clock: line.time, **self._began.get(line.file, {})}

    def _keep(self, match: Match) -> None:
        line = match.line
        kept = self.seen.setdefault(match.signature.name, Occurrences())
        kept.count += line.repeats or 1
        if line.rank is not None and 0 <= line.rank < RANKS:
            kept.ranks.add(line.rank)
        source = _source(match)
        if kept.first and (self._room < 0 or (len(kept.first) >= SOURCES and source not in kept.first)):
            return
        first = kept.first.setdefault(source, [])
        timed = (match, self._times[line.file])
        if len(first) < EACH:
            first.append(timed)
            self._room -= len(line.raw) + len(line.text)
        else:
            kept.last[source] = (*kept.last.get(source, ())[-1:], timed)


def _source(match: Match) -> str:
    """The writer and the subject: two ranks that one file mentions are two sources."""
    who = match.line.file if match.line.rank is None else str(match.line.rank)
    groups = match.groups
    return " ".join([who, *(groups[name] for name in _subjects(match.signature.pattern) if name in groups)])


@functools.cache
def _subjects(pattern: re.Pattern[str]) -> tuple[str, ...]:
    """The groups of ABOUT that it has."""
    return tuple(name for name in ABOUT if name in pattern.groupindex)
