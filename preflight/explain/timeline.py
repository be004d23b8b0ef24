"""What the logs of a job show, in order: work, observations, silence, ends. Every rule about before and after is here.

Within a file the order of lines counts; between files, the clock that most lines have.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from preflight.core import node_names
from preflight.core.job import Job, Node
from preflight.explain.logs.ends import ALIVE, STARTED, Ends, wall_times
from preflight.explain.logs.tracebacks import Tracebacks
from preflight.explain.observations import RowObservations, Times
from preflight.failure_book.book import Match, Signature
from preflight.failure_book.line import RANKS, Line
from preflight.results.report import RankSpan

REPORTED_ROLES = ("cause", "failure", "fallout")
FAILED = ("cause", "failure")
"""Roles of lines that a survivor does not write."""
BACKENDS = {"nccl": "nccl", "net": "nccl", "gloo": "gloo"}
"""By the first part of a row's name."""
Moment = tuple[float, int, str]
"""When a line was written, as far as that is known: time, number in its file, file."""

WARNING_LEVELS = ("W", "I", "WARN", "INFO")
"""Of a line that does not say that its process failed."""
_WARNS = re.compile(r"\b(?:WARN|WARNING|Warning)\b[\]:| -]|-- skipping remaining: ")
WENT_ON = (*STARTED, "progress.bar")
"""Rows that show that the job went on."""
RETRIED = ("socket.", "store.", "rdzv.", "store_barrier.", "service.", "storage.", "pmix.")
"""Rows of what is tried again: connections, services, files."""
TRIED = ("shell.", "service.", "storage.", "pmix.")
"""Rows of what a script or a loader does without, or tries again, whatever its line's level."""
OVERCOME = ("gpu_oom", "host_oom_kill")
"""Causes that a job may get over: a smaller batch, or another job's process."""
XIDS = "kernel.xid_"
SINGLE_NODE = "nccl.single_node"
"""Row of a job on one node."""


@dataclass
class Course:
    """What a file shows, by the numbers of its lines."""

    joined: list[int] = field(default_factory=list)
    """All ranks have joined."""
    steps: list[tuple[int, str, Mapping[str, float]]] = field(default_factory=list)
    """Progress: which, and its wall_times()."""
    failures: list[tuple[int, str]] = field(default_factory=list)
    """Each with the slug of its cause; "" of a traceback."""

    def steps_after(self, number: int) -> int:
        """How many distinct ones."""
        return len({step for at, step, _ in self.steps if at > number})


class Timeline:
    """Of a job, or of one of its attempts: filled line by line, then the causes ask it."""

    def __init__(self) -> None:
        self.seen = RowObservations()
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
        self._courses: dict[str, Course] | None = None

    def add(self, line: Line, matches: Sequence[Match]) -> int:
        """Takes a line; returns how many of the lines after it in its file are needed, too."""
        self._at = self._courses = None
        if line.repeats:  # it stands among earlier lines
            self._hear(line)
            for match in matches:
                self.seen.keep(match, self._times[line.file])
            return 0
        self._clock(line)
        self.ends.add(line, matches)
        if line.rank is not None and 0 <= line.rank < RANKS:
            self.ranks[line.rank] = line.node or self.ranks.get(line.rank, "")
            self._hear(line)
        if line.node and len(self.nodes) < RANKS:
            self.nodes.setdefault(line.node)
        if not matches:
            self.tracebacks.add(line, self._times[line.file], (), "")
            return 0
        progress = next((_step(match) for match in matches if match.signature.name.startswith(ALIVE)), "")
        rows = [match.signature for match in matches if match.signature.role in REPORTED_ROLES]
        slugs = {row.slug for row in rows if self.seen.keys() >= {*row.needs}}
        self.tracebacks.add(line, self._times[line.file], slugs, progress)
        for match in matches:
            self.seen.keep(match, self._times[line.file])
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

    def _clock(self, line: Line) -> None:
        times = self._times.setdefault(line.file, {})
        if line.time is not None:
            self._clocks[line.clock] += 1
            self._times[line.file] = {**times, line.clock: line.time}
            self._began[line.file] = {line.clock: line.time, **self._began.get(line.file, {})}

    @property
    def _usual_clock(self) -> str:
        return max(self._clocks, key=lambda name: (self._clocks[name], name), default="")

    def job(self) -> Job:
        """The report's "job", as far as the logs tell; its size is at least 1."""
        ranks_of = {name: tuple(sorted(rank for rank in self.ranks if self.ranks[rank] == name)) for name in self.nodes}
        nodes = tuple(Node(node_names.safe(name), place, ranks_of[name]) for place, name in enumerate(self.nodes))
        size = max([self._world, 1, *(rank + 1 for rank in self.ranks)])
        return Job("unknown", size, self._backend or "unknown", nodes)

    def times_of_ranks(self) -> list[RankSpan]:
        """When each rank was heard of first and last, in seconds, on the clock that most lines have."""
        usual = self._usual_clock
        return [
            RankSpan(rank, first, last) for (rank, clock), (first, last) in sorted(self.heard.items()) if clock == usual
        ]

    def matches(self, *names: str) -> list[Match]:
        """Kept matches of these rows, in order of time."""
        kept = (match for name in names if name in self.seen for match in self.seen[name].matches())
        return sorted(kept, key=lambda match: self.moment(match.line))

    def on_one_host(self) -> bool:
        """Whether all ranks of the largest communicator are known to be on one host. (Many are called localhost.)"""
        name = next(iter(self.nodes), "")
        alone = len(self.nodes) == 1 and not name.startswith("localhost")
        return alone and self._world > 0 and all(self.ranks.get(rank) == name for rank in range(self._world))

    def moment(self, line: Line) -> Moment:
        """A sort key. A line without the usual clock takes the time of the last line before it. (The order in which
        files are read says nothing.)"""
        if len(self._times) < 2:
            return (0.0, line.number, line.file)
        if self._at is None:
            timed = [(match.line, times) for match, times in self.seen.with_times()]
            timed += [(traceback.line, traceback.times) for traceback in self.tracebacks]
            self._at = {(line.file, line.number): times for line, times in timed}
        clock = self._usual_clock
        for times in (self._at.get((line.file, line.number), {}), self._began.get(line.file, {})):
            if clock in times:
                return (times[clock], line.number, line.file)
        return (float("inf"), line.number, line.file)

    def course(self, file: str) -> Course:
        if self._courses is None:
            self._courses = self._read_courses()
        return self._courses.get(file) or Course()

    def _read_courses(self) -> dict[str, Course]:
        courses = {file: Course() for file in self._times}
        for match, times in self.seen.with_times():
            row, course, number = match.signature, courses[match.line.file], match.line.number
            if row.name in STARTED:
                course.joined.append(number)
            if row.name.startswith(ALIVE):
                course.steps.append((number, _step(match), wall_times(times)))
            if row.role in FAILED:
                course.failures.append((number, row.slug))
        for traceback in self.tracebacks.all():
            courses[traceback.line.file].failures.append((traceback.line.number, ""))
        return courses

    def all_steps(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Of all files, with their wall_times()."""
        return ((step, times) for file in self._times for _, step, times in self.course(file).steps)

    def progressed(self) -> bool:
        """Whether it shows at least two distinct steps, or the end of a training."""
        steps = {step for step, _ in self.all_steps()}
        return len(steps) > 1 or any(step.startswith("epoch.end") for step in steps)

    def went_on_after(self, line: Line) -> bool:
        """Whether its file shows progress after it."""
        return self.course(line.file).steps_after(line.number) > 0

    def progressed_after(self, line: Line) -> bool:
        """Whether its file shows after it that all ranks have joined, or at least two distinct steps."""
        course = self.course(line.file)
        return any(number > line.number for number in course.joined) or course.steps_after(line.number) > 1

    def failed_after(self, line: Line, but: str = "none") -> bool:
        """Whether the kept lines of its file show a failure after it, beside those of the slug `but`."""
        return any(number > line.number and slug != but for number, slug in self.course(line.file).failures)

    def stands_apart(self, line: Line, ended: Line) -> bool:
        """Whether what `ended` reports did not cause what `line` shows: the line is before it in the same file, or a
        job started between them, which all ranks joined."""
        if line.file != ended.file or line.number < ended.number:
            return line.file == ended.file
        return any(ended.number < number < line.number for number in self.course(line.file).joined)

    def standing_rows(self) -> list[Signature]:
        """The rows that were seen, meet their conditions, and were not overcome."""
        names = self.seen.keys() | ({SINGLE_NODE} if self.on_one_host() else set())
        rows = [(kept.matches()[0].signature, kept.count) for kept in self.seen.values()]
        met = [row for row, count in rows if {*row.needs} <= names and count >= row.least]
        met = [row for row in met if not any(self._rules_out(name, row) for name in names & {*row.unless})]
        return [row for row in met if not self._is_overcome(row)]

    def _is_overcome(self, row: Signature) -> bool:
        """Whether all its lines are warnings, of what is tried again, or of caught exceptions, and the job went on
        after each. What NCCL warns of, and other warnings than of connections, may matter to a failure that follows."""
        if row.role not in REPORTED_ROLES:
            return False
        lines = [match.line for match in self.matches(row.name)]
        is_overcome = row.slug in OVERCOME
        is_mild = is_overcome or row.name.startswith(TRIED)
        went_on = all((is_mild or self._is_mild(line)) and self.progressed_after(line) for line in lines)
        but = row.slug if is_overcome else "none"
        return went_on and (row.name.startswith(RETRIED) or not any(self.failed_after(line, but) for line in lines))

    def _is_mild(self, line: Line) -> bool:
        """Whether it is a warning, or of an exception that was caught."""
        traceback = self.tracebacks.around(line)
        is_warning = line.level in WARNING_LEVELS or (not line.level and bool(_WARNS.search(line.raw)))
        return is_warning or (traceback is not None and traceback.survived)

    def _rules_out(self, name: str, row: Signature) -> bool:
        """Whether a row that it names in `unless` excludes it. One of WENT_ON excludes nothing that came after it and
        before a failure: that is another attempt, or another job's end. An Xid excludes nothing on other GPUs."""
        if name.startswith(XIDS):
            ours, others = (_devices(self.seen[of].matches()) for of in (row.name, name))
            return ours <= others
        if name not in WENT_ON:
            return True
        last = max((match.line for match in self.seen[row.name].matches()), key=lambda line: line.order)
        over = all(
            match.line.file == last.file and match.line.number < last.number for match in self.seen[name].matches()
        )
        return not (over and self.failed_after(last))


def _devices(matches: Iterable[Match]) -> set[str | None]:
    return {match.groups.get("device") for match in matches}


def _step(match: Match) -> str:
    return f"{match.signature.name} {sorted(match.groups.items())}"
