"""Where a job ended, and whether it was started again after it: launchers write it between the lines of the ranks."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date

from preflight.failure_book.book import Match
from preflight.failure_book.line import Line

EXIT = "elastic.exit"
"""torchrun's agents write it once per attempt."""
GAVE_UP = frozenset((
    "elastic.box", "elastic.root_cause", "elastic.root_cause_exitcode", "elastic.root_cause_signal",
))  # fmt: skip
"""It writes them after the last one."""
ENDS = GAVE_UP | frozenset((
    EXIT, "elastic.restart", "slurm.preempted", "slurm.node_failure", "slurm.requeued", "slurm.job_cancelled",
    "slurm.step_cancelled", "slurm.time_limit", "srun.exited", "srun.killed", "srun.oom", "srun.segfault",
    "srun.aborted", "srun.bus_error", "srun.terminated",
))  # fmt: skip
"""Rows that a launcher writes when processes have ended."""
STARTED = ("rdzv.complete", "nccl.init_complete", "members.all", "store_barrier.done")
"""Rows that appear when all ranks have joined."""
ALIVE = ("progress.", "epoch.end")
"""Prefixes of the names of rows that show progress."""
MOST = 4096
"""Ends that are kept."""
LOCAL = frozenset(("glog", "local", "nccl", "day"))
"""Clocks of a machine's local time."""
_EPOCH, _LEAP = date(1970, 1, 1).toordinal(), 2000

Agent = tuple[int | None, str, int | None]
"""Who wrote an end: process, node, task."""


@dataclass
class End:
    """Of some or all processes."""

    line: Line
    is_exit: bool
    gave_up: bool
    before: dict[str, float]
    """By row, the last number of progress before it."""
    after: set[str] = field(default_factory=set)
    """Progress after it: two distinct kinds at most."""
    starts_over: bool = False
    """Whether progress after it began at a number that had been reached before, or all ranks joined again. (What a
    survivor had not yet printed goes on.)"""
    joined: bool = False

    @property
    def agent(self) -> Agent:
        return self.line.pid, self.line.node, self.line.task

    @property
    def restarted(self) -> bool:
        return self.joined or (self.starts_over and len(self.after) > 1)


class Ends:
    """Filled line by line."""

    def __init__(self) -> None:
        self._by_file: dict[str, list[End]] = {}
        self._done: dict[str, dict[str, float]] = {}
        self._steps: dict[str, list[tuple[float, str]]] = {}
        """By file, the last two distinct steps of which the time of day is known."""
        self._kept = 0

    def add(self, line: Line, matches: Collection[Match]) -> None:
        names = {match.signature.name for match in matches}
        ends = self._by_file.setdefault(line.file, []) if names & ENDS else self._by_file.get(line.file, [])
        if names & ENDS and self._kept < MOST:
            ends.append(End(line, EXIT in names, bool(names & GAVE_UP), dict(self._done.get(line.file, {}))))
            self._kept += 1
        elif ends and not names.isdisjoint(STARTED):
            ends[-1].joined = True
        for match in matches:
            if match.signature.name.startswith(ALIVE):
                self._advance(line.file, match, ends[-1] if ends else None)
                self._note_step(line, f"{match.signature.name} {sorted(match.groups.items())}")

    def _advance(self, file: str, match: Match, end: End | None) -> None:
        name, done = match.signature.name, _number(match.groups.get("done", ""))
        if end is not None and len(end.after) < 2:
            end.starts_over |= done <= end.before.get(name, done)
            end.after.add(f"{name} {sorted(match.groups.items())}")
        self._done.setdefault(file, {})[name] = done

    def _note_step(self, line: Line, step: str) -> None:
        steps = self._steps.setdefault(line.file, [])
        if (at := local_time(line)) is not None and step not in (kept for _, kept in steps):
            self._steps[line.file] = [*steps[-1:], (at, step)]

    def cuts(self) -> dict[str, list[int]]:
        """By file, the numbers of the last lines of all attempts but the last one; files with one attempt are left
        out."""
        listed = {file: list(_cuts(ends)) for file, ends in self._by_file.items()}
        for file in self.went_on_elsewhere():
            listed[file] = sorted({*listed[file], self.started_again()[file]})
        return {file: cuts for file, cuts in listed.items() if cuts}

    def went_on_elsewhere(self) -> list[str]:
        """Files of an agent that has not given up, where another file shows two steps after the last end: stdout and
        stderr of a job may be two files."""
        found = []
        for file, number in self.started_again().items():
            at = next(local_time(end.line) for end in self._by_file[file] if end.line.number == number)
            others = [steps for name, steps in self._steps.items() if name != file and len(steps) > 1]
            if at is not None and any(min(time for time, _ in steps) > at for steps in others):
                found.append(file)
        return found

    def times(self, file: str, numbers: Collection[int]) -> list[float]:
        """Of these lines, where each is known."""
        times = [local_time(end.line) for end in self._by_file[file] if end.line.number in numbers]
        return [time for time in times if time is not None]

    def started_again(self) -> dict[str, int]:
        """By file of an agent that has seen processes fail and has not given up: the number of the last such line."""
        return {
            file: exits[-1]
            for file, ends in self._by_file.items()
            if (exits := [end.line.number for end in ends if end.is_exit]) and not any(end.gave_up for end in ends)
        }


def ends_some(matches: Collection[Match]) -> bool:
    """Whether the line reports an end: the next attempt may begin after it."""
    return any(match.signature.name in ENDS for match in matches)


def shows_progress(matches: Collection[Match]) -> bool:
    return any(match.signature.name.startswith(ALIVE) for match in matches)


def local_time(line: Line) -> float | None:
    """In seconds since the year began, by the machine's own clock, which torchrun and Python's logging write: two forms
    of stamps are compared by it. None for a stamp with a zone, or without a date."""
    return None if line.time is None else wall_times({line.clock: line.time}).get("local")


def wall_times(times: Mapping[str, float]) -> dict[str, float]:
    """Of times by clock, those that other files' can be compared with: "iso", since the epoch; "local", see above."""
    walls = {"iso": times["iso"]} if "iso" in times else {}
    for clock in LOCAL & times.keys():
        day = date.fromordinal(_EPOCH + int(times[clock] // 86400))
        walls["local"] = (day.replace(year=_LEAP) - date(_LEAP, 1, 1)).days * 86400 + times[clock] % 86400
    return walls


def _cuts(ends: Iterable[End]) -> Iterable[int]:
    agents: set[Agent] = set()
    before: End | None = None
    for end in ends:
        if before and (before.restarted or (end.is_exit and end.agent in agents)):
            yield before.line.number
            agents = set()
        agents |= {end.agent} if end.is_exit else set()
        before = end
    if before and before.restarted:
        yield before.line.number


def _number(text: str) -> float:
    """0.0 for what is none: "3/10" is 3."""
    try:
        return float(text.partition("/")[0])
    except ValueError:
        return 0.0
