"""A job of several attempts: what each ended with, and which one says why the job failed."""

import bisect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from preflight.explain.candidates import NONE, Candidate
from preflight.explain.diagnosis import explain
from preflight.explain.logs.ends import Ends, local_time
from preflight.explain.timeline import Timeline
from preflight.failure_book.book import Match
from preflight.failure_book.line import Line

SLUG = "attempt"
"""Of the code of an attempt's line."""
FIX = "Only if it should not happen again: preflight explain on the lines of this attempt alone."
MOST = 64
"""Attempts that are told apart; the last one takes the lines of all further ones."""
SHOWN = 6
"""Lines about attempts that a report has: the first ones and the last."""
REPLAYED, REPLAYED_CHARACTERS = 50_000, 16 << 20
"""Lines that are kept to be looked at again, and their characters; further ones are read again."""
_FOLDER = re.compile(r"(?:\A|/)attempt_(\d{1,4})/")


@dataclass(frozen=True)
class Ended:
    """How an attempt ended."""

    number: int
    """From 1."""
    first: Candidate | None
    """Its most probable cause; None without a failure."""
    progressed: bool
    """Whether it shows two steps, or the end of the training."""


class Replay:
    """All lines in one timeline, and by themselves as long as they are few: attempts are told apart at the end."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.lines: list[tuple[Line, Sequence[Match]]] = []
        """[] if they were too many."""
        self._is_full, self._room = False, REPLAYED_CHARACTERS

    def add(self, line: Line, matches: Sequence[Match]) -> int:
        """As Timeline.add."""
        if not self._is_full:
            self._room -= len(line.raw) + len(line.text)
            self.lines.append((line, matches))
            self._is_full = self._room < 0 or len(self.lines) > REPLAYED
            if self._is_full:
                self.lines = []
        return self.timeline.add(line, matches)

    def has_enough(self, line: Line, matches: Sequence[Match]) -> bool:
        return self.timeline.has_enough(line, matches)


class Attempts:
    """The attempts that a job's logs show, by torchrun's folders or the ends in a log."""

    def __init__(self, ends: Ends, files: Iterable[str]) -> None:
        cuts = ends.cuts()
        folders = [int(found[1]) for file in files if (found := _FOLDER.search(file))]
        self._cuts = cuts
        self._started_again = ends.started_again() if folders else {}
        elsewhere = ends.went_on_elsewhere()[:1]
        self._times = sorted(time for file in elsewhere for time in ends.times(file, cuts[file]))
        """When attempts ended, where another file than theirs shows that the job went on."""
        self._now: dict[str, float] = {}
        self.count = min(MOST, max([0, *folders, *map(len, cuts.values())]) + 1)
        self._timelines = [Timeline() for _ in range(self.count)]
        self._folders: dict[str, int | None] = {}

    def add(self, line: Line, matches: Sequence[Match]) -> int:
        """As Timeline.add, of the line's attempt; of each attempt, if its file does not tell. What an agent beside
        torchrun's folders saw fail before it started all again is not of the last one."""
        return max(timeline.add(line, matches) for timeline in self._timelines_for(line))

    def has_enough(self, line: Line, matches: Sequence[Match]) -> bool:
        return all(timeline.has_enough(line, matches) for timeline in self._timelines_for(line))

    def _timelines_for(self, line: Line) -> Sequence[Timeline]:
        if line.file not in self._folders:
            found = _FOLDER.search(line.file)
            self._folders[line.file] = int(found[1]) if found else None
        if (folder := self._folders[line.file]) is not None:
            at = folder
        elif line.file in self._cuts:
            at = bisect.bisect_left(self._cuts[line.file], line.number)
        elif line.file in self._started_again:
            is_early = line.number <= self._started_again[line.file]
            return self._timelines[:-1] if is_early else self._timelines[-1:]
        elif self._times:
            self._now[line.file] = local_time(line) or self._now.get(line.file, 0.0)
            at = bisect.bisect_left(self._times, self._now[line.file])
        else:
            return self._timelines
        return [self._timelines[min(at, self.count - 1)]]

    def explain(self, whole: Sequence[Candidate], artifacts: Sequence[Candidate]) -> list[Candidate]:
        """As diagnosis.explain, for all attempts: `whole` is its answer for all lines together. A job whose last
        attempt goes on without a failure has none; each attempt gets a line."""
        ended = [self._ended(at) for at in range(self.count)]
        if not any(attempt.first for attempt in ended):
            return list(whole)
        if ended[-1].first is None and ended[-1].progressed:
            last = explain(self._timelines[-1], artifacts)
            is_well = not any(cause.severity == "fail" for cause in last)
            return [*last, *_notes(ended)] if is_well else [*whole, *_notes(ended)]
        decisive = _decisive(ended)
        if decisive is None or (whole and whole[0].slug == decisive.slug):
            return [*whole, *_notes(ended)]
        at = next(attempt.number for attempt in ended if attempt.first is decisive) - 1
        fitting = [artifact for artifact in artifacts if artifact.code or artifact.slug == decisive.slug]
        return [*explain(self._timelines[at], fitting), *_notes(ended)]

    def _ended(self, at: int) -> Ended:
        found = explain(self._timelines[at], ())
        first = next((cause for cause in found[:1] if cause.severity == "fail"), None)
        return Ended(at + 1, first, self._timelines[at].progressed())


def _decisive(ended: Sequence[Ended]) -> Candidate | None:
    """The cause of the last attempt that made progress, since later ones may fail because of it; else of the first one.
    A signal from outside is the reason of a restart, and of the job's end only in the last one."""
    last = ended[-1]
    causes = [attempt for attempt in ended if attempt.first and attempt.first.confidence != NONE]
    own = [a for a in causes if a.first and (a.first.slug != "external_signal" or (a is last and a.progressed))]
    chosen = ([a for a in own if a.progressed][-1:] or own or causes)[:1]
    return chosen[0].first if chosen else None


def _notes(ended: Sequence[Ended]) -> Iterator[Candidate]:
    """A line per attempt; attempts that ended alike share one."""
    groups: list[list[Ended]] = []
    for attempt in ended:
        if groups and _kind(groups[-1][0]) == _kind(attempt):
            groups[-1].append(attempt)
        else:
            groups.append([attempt])
    for group in groups if len(groups) <= SHOWN else [*groups[: SHOWN - 1], groups[-1]]:
        yield _note(group, len(ended))


def _kind(attempt: Ended) -> str:
    return re.sub(r"\d+", "#", f"{attempt.first.slug}: {attempt.first.message}") if attempt.first else ""


def _note(group: Sequence[Ended], count: int) -> Candidate:
    numbers = f"{group[0].number} to {group[-1].number}" if len(group) > 1 else f"{group[0].number}"
    who, first = f"attempt{'s' if len(group) > 1 else ''} {numbers} of {count}", group[0].first
    if first is None:
        show = "show" if len(group) > 1 else "shows"
        how = f"{show} no failure, and progress" if group[0].progressed else f"{show} neither a failure nor progress"
        return Candidate(SLUG, "clue", 0, f"{who} {how}", (0.0, 0, ""), severity="info", confidence="medium", fix=FIX)
    why = first.message.removeprefix("these logs do not show why the job failed; ")
    text = f"{who} failed ({first.slug}): {why}"
    return replace(first, slug=SLUG, message=text, where={}, ranks=frozenset(), severity="info", fix=FIX, code="")
