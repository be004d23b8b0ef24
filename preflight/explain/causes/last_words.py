"""The net under the signatures: a log that ends with an error that nobody knows is of a job that failed."""

from collections.abc import Sequence
from dataclasses import dataclass

from preflight.explain.candidates import MOST_LINES, NONE, Candidate
from preflight.explain.culprits import describe_sources, find_source
from preflight.explain.logs.ends import ALIVE, STARTED
from preflight.failure_book import last_words
from preflight.failure_book.book import Book
from preflight.failure_book.line import Line

SLUG = "unknown"
VERDICT, LEVEL = "error.preflight", "error.logged"
"""Forms of preflight's own verdict, and of a logger's level."""
LONGEST = 300
"""Characters of the line that the message quotes."""
HABIT = 5
"""If at least so many lines all have the level of an error, it is the habit of who writes the log, and says nothing."""
FILES = 64
"""Files that end with an error and are kept."""


@dataclass
class _Tail:
    """What the last lines of a file say."""

    errors: list[tuple[Line, int]]
    """Each with how many lines may follow it, and still may."""
    steps: set[str]
    """Progress since the last error: a bar is drawn once more when a process ends."""
    is_habit: bool
    """Whether each line has the level of an error."""
    ended_well: bool = False
    """Whether the job ended as it should, and what follows is clean-up."""

    def go_on(self, lines: int, *, for_all: bool = False) -> None:
        """So many lines follow the errors; `for_all`: none of them ended the job."""
        self.errors = [(error, left - lines) for error, left in self.errors if left >= lines and not for_all]


class LastWords:
    """Filled file by file; what it keeps is bounded."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._errors: list[list[Line]] = []
        self._ended_well = False

    def add(self, lines: Sequence[Line]) -> None:
        """The last lines of a file."""
        level = next(form for form in last_words.forms() if form.name == LEVEL)
        is_habit = len(lines) >= HABIT and all(level.pattern.search(line.raw) for line in lines)
        tail = _Tail([], set(), is_habit)
        for line in lines:
            self._read(tail, line)
        self._ended_well |= tail.ended_well and not tail.errors
        if tail.errors and len(self._errors) < FILES:
            self._errors.append([line for line, _ in tail.errors])

    def _read(self, tail: _Tail, line: Line) -> None:
        form = last_words.form_of(line.raw)
        kind = self._kind(line, None if tail.is_habit and form and form.name == LEVEL else form)
        if kind == "well":
            tail.errors, tail.ended_well = [], True
        elif kind == "joined":
            tail.errors = []
        elif kind == "error" and form:
            tail.steps = set()
            if not tail.ended_well or form.after > last_words.WEAK:
                tail.errors.append((line, form.after))
        elif kind == "step":
            tail.steps.add(line.text)
            tail.ended_well = False
            tail.go_on(1, for_all=len(tail.steps) > 1)
        elif kind != "quiet":
            tail.go_on(last_words.CALM if kind == "calm" else 1)

    def _kind(self, line: Line, form: last_words.LastWord | None) -> str:
        """A kind of last_words.KINDS, "step" (progress), "joined" (all ranks) or "other"."""
        rows = [match.signature for match in self._book.matches(line)]
        if any(row.name.startswith("epoch.end") for row in rows):
            return "well"
        if any(row.name.startswith(ALIVE) for row in rows):
            return "step"
        if any(row.name in STARTED for row in rows):
            return "joined"
        if any(row.role == "harmless" for row in rows) and not (form and form.name == VERDICT):
            return "quiet"
        if form is None or (form.kind == "error" and any(row.slug and not row.needs for row in rows)):
            return "other"
        return form.kind

    def find_candidates(self) -> list[Candidate]:
        """One that names nobody. None where a file shows that the job ended well."""
        if self._ended_well or not self._errors:
            return []
        lines = min(self._errors, key=lambda errors: errors[0].order)
        first, more = lines[0], len(self._errors) - 1
        who = describe_sources([first]) or "the log"
        others = f"; {more} more {'log ends' if more == 1 else 'logs end'} with an error" if more else ""
        text = (
            f"these logs do not show why the job failed; seen: {who} ends with an error that no signature knows: "
            f"{first.raw.strip()[:LONGEST]}{others}"
        )
        quoted = [*lines[: MOST_LINES - 1], *lines[MOST_LINES - 1 :][-1:]]
        at = (first.time or 0.0, first.number, first.file)
        seen_at = find_source(first)
        return [Candidate(SLUG, "fallout", 0, text, at, lines=tuple(quoted), confidence=NONE, seen_at=seen_at)]
