"""A full disk: which place it is (a checkpoint's folder, a cache, /tmp, /dev/shm), by the path and by the stack."""

import re
from collections.abc import Iterator, Mapping

from preflight.core.own_code import is_own
from preflight.explain.candidates import Candidate, from_lines
from preflight.explain.culprits import find_source, ranks_of
from preflight.explain.logs.tracebacks import Traceback
from preflight.explain.timeline import Timeline
from preflight.failure_book.book import Match
from preflight.failure_book.tables import table

BARE = "shm.no_space_bare"
"""Row of ENOSPC without a path."""
ROWS = (
    "torch.disk_full", "disk.quota", "disk.storage_full", "disk.stream_writer", "disk.write_fd",
    "disk.unexpected_position", BARE,
)  # fmt: skip
Place = Mapping[str, str]
UNKNOWN: Place = {"what": "a file system", "fix": "Remove what is not needed, or write elsewhere"}
"""As a row of the table "full_place"."""
WEIGHT = 80


def find_candidates(timeline: Timeline) -> Iterator[Candidate]:
    """One candidate per matched row; none for ENOSPC without path and stack: its row says what that may mean."""
    for row in ROWS:
        matches = timeline.matches(row) if row in timeline.seen else []
        if matches and (place := _place(timeline, matches[0])):
            yield _candidate(timeline, matches, place)


def superseded(timeline: Timeline) -> set[str]:
    """The rows that find_candidates reports."""
    return {row for row in ROWS if row in timeline.seen and _place(timeline, timeline.matches(row)[0])}


def _place(timeline: Timeline, match: Match) -> Place | None:
    traceback = timeline.tracebacks.around(match.line)
    texts = [match.groups.get("path", ""), match.line.text, *reversed(traceback.frames if traceback else ())]
    for text in filter(None, texts):
        for place in table("full_place"):
            if re.search(place["pattern"], text):
                return place
    return UNKNOWN if match.signature.name != BARE or traceback else None


def _candidate(timeline: Timeline, matches: list[Match], place: Place) -> Candidate:
    first, lines = matches[0], [match.line for match in matches]
    traceback = timeline.tracebacks.around(first.line)
    own = traceback is not None and is_own(traceback.file)
    where = {**find_source(first.line), **_code_of(traceback if own else None)}
    if len(ranks_of(lines)) > 1:
        where.pop("rank", None)
    path = first.groups.get("path", "")
    at = f" ({where['file']}:{where['line']})" if own else ""
    quota = first.signature.name == "disk.quota"
    text = f"{place['what']} is {'over its quota' if quota else 'full'}{f': {path}' if path else ''}, expected room{at}"
    shared = not place["fix"]
    return from_lines(
        timeline, "shm_exhausted" if shared else "disk_full", "cause", _weight(first, place), text, lines, where,
        row=first.signature.name, fix="" if shared else _fix(place, path, quota),
    )  # fmt: skip


def _weight(first: Match, place: Place) -> int:
    return WEIGHT if first.signature.role == "cause" else WEIGHT - 10 if place is not UNKNOWN else 50


def _code_of(traceback: Traceback | None) -> dict[str, str | int]:
    return {"file": traceback.file, "line": traceback.number} if traceback else {}


def _fix(place: Place, path: str, quota: bool) -> str:
    show = f"df -h {path or 'PATH'}; df -i {path or 'PATH'}"
    show = f"quota -s (lfs quota -h {path or 'PATH'}); {show}" if quota else f"{show}; quota -s"
    return f"There: {show}. {place['fix']}."
