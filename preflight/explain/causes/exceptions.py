"""Python exceptions that match no signature: the user's own, and those that only report another process's end; and what
to do about them, by their type and place."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from preflight.core import rank_ranges
from preflight.core.own_code import is_own
from preflight.explain.candidates import Candidate, from_lines
from preflight.explain.culprits import describe_sources, find_source, ranks_of
from preflight.explain.logs.tracebacks import LONGEST, Traceback, exception, prefixed_exception
from preflight.explain.timeline import REPORTED_ROLES, Timeline
from preflight.failure_book.line import Line
from preflight.failure_book.tables import table

RAISED, BARE, PASSED, CUT = 40, 16, 8, 5
"""Weights: of a traceback; of an exception's line without one; of an exception that reports another's failure; of a
traceback that is cut off. A line that names a cause outweighs them all."""
ROW = "python.traceback"
BARE_ROWS = ("any.failure", "any.exception")
"""Rows of lines that may be an exception's, without its traceback."""
RESTARTED = "elastic.restart"
"""Row that starts a new attempt."""
_WRONG_CALL = re.compile(r"\binvalid (?:root|tensor|argument|rank|reduce|usage|size)|[Uu]nsupported|[Nn]ot supported")
"""Wrong arguments to a collective: the process's own fault."""
_ENDS = re.compile(r"(?:CancelledError\b.*|GeneratorExit|SystemExit(?:: (?:0|None|))?)\Z", re.DOTALL)
"""Exceptions that end a process, or a task, as its program wants it."""
_CLEANS_UP = re.compile(
    r"(?:\A|/)(?:multiprocessing/(?:util|resource_tracker)|weakref|atexit|concurrent/futures/thread)\.py\Z"
)
"""Files of the outermost frame of what Python runs at a process's end."""
WISHES = frozenset(("end.wish", "end.wish_lightning"))
"""Rows of a user's wish to stop."""
CUDA = re.compile(r"\bCUDA\b|\bcuda\w*Error\b|CUBLAS|CUDNN|\bHIP\b")
CUDA_FIX = "CUDA reports errors late: run that rank with CUDA_LAUNCH_BLOCKING=1 to see the line that caused it."
READ = "Read that rank's own output from its first traceback on; this line alone shows no place."


def find_candidates(timeline: Timeline) -> list[Candidate]:
    """The candidates from tracebacks, exceptions without a traceback, and tracebacks without an exception."""
    whole = [traceback for traceback in timeline.tracebacks if not (traceback.known or traceback.survived)]
    by_weight = ((whole, RAISED), (_bare(timeline), BARE))
    found = ((filter(lambda each: not _is_wanted(timeline, each), those), weight) for those, weight in by_weight)
    return [*(crash for those, weight in found for crash in _by_kind(timeline, those, weight)), *_cut_off(timeline)]


def _is_wanted(timeline: Timeline, traceback: Traceback) -> bool:
    """Whether it is no failure: an exit with 0, a task that was cancelled, an interrupt that a user wished, or what a
    finalizer raises."""
    wished = traceback.type == "KeyboardInterrupt" and not WISHES.isdisjoint(timeline.seen)
    cleans_up = bool(traceback.frames) and bool(_CLEANS_UP.search(traceback.frames[0]))
    return wished or cleans_up or bool(_ENDS.match(traceback.raised))


def second_hand(traceback: Traceback) -> tuple[str, str]:
    """A slug and a description if the exception is not its process's own fault; else empty strings."""
    if _WRONG_CALL.search(traceback.text):
        return "", ""
    for row in table("second_hand"):
        if re.search(row["type"], traceback.type) or re.search(row["text"], traceback.text):
            return row["slug"], row["meaning"]
    return "", ""


def _by_kind(timeline: Timeline, all_of_them: Iterable[Traceback], weight: int) -> Iterator[Candidate]:
    kinds: dict[tuple[str, str], list[Traceback]] = {}
    for traceback in all_of_them:
        kinds.setdefault((traceback.type, re.sub(r"\d+", "#", traceback.text)), []).append(traceback)
    for those in kinds.values():
        ordered = sorted(those, key=lambda traceback: timeline.moment(traceback.line))
        slug, meaning = second_hand(ordered[0])
        yield _aftermath(timeline, ordered, slug, meaning) if slug else _crash(timeline, ordered, weight)


def _crash(timeline: Timeline, those: Sequence[Traceback], weight: int) -> Candidate:
    first, lines = those[0], [traceback.line for traceback in those]
    ranks = ranks_of(lines)
    processes = {(line.node, line.local_rank, line.pid) for line in lines} - {("", None, None)}
    everywhere, many = len(ranks) > 1 and ranks == timeline.ranks.keys(), not ranks and len(processes) > 1
    who = f"{len(processes)} processes" if many else describe_sources(lines, "a process")
    who = f"all {len(ranks)} ranks" if everywhere else who
    again = _attempts(lines) if len(ranks) < 2 or everywhere else 1
    if RESTARTED in timeline.seen:  # a second file may be a copy
        by_file = Counter((line.rank, line.file) for line in lines if line.rank is not None)
        again = max([again, *by_file.values()])
    more = f", {again} times: torchrun started it again" if again > 1 else ""
    at, place = (f" ({first.file}:{first.number})", {"file": first.file, "line": first.number})
    where = {**({} if everywhere or many else find_source(first.line)), **(place if first.file else {})}
    sure = "high" if len(ranks) == 1 or everywhere else "medium"
    own = f"{'its' if len(ranks) < 2 and not many else 'their'} own code"
    candidate = from_lines(
        timeline, "app_crash", "cause" if weight == RAISED else "failure", weight,
        f"{who} failed in {own}: {_whole(timeline, first)}{at if first.file else ''}{more}", lines, where,
        confidence=sure if weight == RAISED else "low", row=ROW, fix=_fix(first, everywhere, ranks),
    )  # fmt: skip
    return replace(candidate, named=ranks if weight == RAISED else frozenset())


def _whole(timeline: Timeline, traceback: Traceback) -> str:
    """The exception with all lines of its text."""
    rest = timeline.tracebacks.rest(traceback.line)
    return f"{traceback.raised} {rest}"[:LONGEST].strip() if rest else traceback.raised


def _attempts(lines: Sequence[Line]) -> int:
    """How many attempts these lines are from, by torchrun's folders."""
    return len({match[0] for line in lines if (match := re.search(r"attempt_\d+", line.file))})


def _aftermath(timeline: Timeline, those: Sequence[Traceback], slug: str, meaning: str) -> Candidate:
    lines = [traceback.line for traceback in those]
    text = f"{describe_sources(lines, 'a process')} raised {those[0].raised}: {meaning}"
    return from_lines(timeline, slug, "fallout", PASSED, text, lines, row=ROW)


def _bare(timeline: Timeline) -> Iterator[Traceback]:
    """Lines that look like the end of a traceback, in an excerpt without the rest."""
    known = {(traceback.line.file, traceback.line.number) for traceback in timeline.tracebacks.all()}
    for name, kept in timeline.seen.items():
        matches = kept.matches() if name not in BARE_ROWS else []
        known |= {(m.line.file, m.line.number) for m in matches if m.signature.role in REPORTED_ROLES}
    below = (match.line for match in timeline.matches("python.below_error"))
    survived = {(line.file, line.number) for line in below if timeline.went_on_after(line)}
    for match in timeline.matches(*BARE_ROWS):
        raised = exception(match.line.text, indented=False) or prefixed_exception(match.line.text)
        if raised and (match.line.file, match.line.number) not in known | survived:
            yield Traceback(match.line, {}, raised[0], raised[1], "", 0, known=False)


def _cut_off(timeline: Timeline) -> Iterator[Candidate]:
    """A traceback at the end of an excerpt."""
    for line, file, number in timeline.tracebacks.cut_off()[:1]:
        text = f"a process raised an exception at {file}:{number}, which is not visible in this log"
        place = {"file": file, "line": number} if is_own(file) else {}
        yield from_lines(
            timeline, "app_crash", "failure", CUT, text, [line], {**find_source(line), **place}, confidence="low",
            row=ROW, fix=f"Give the log to its end, or that rank's own: it names the exception of {file}:{number}.",
        )  # fmt: skip


def _fix(traceback: Traceback, everywhere: bool, ranks: frozenset[int]) -> str:
    """One or two sentences: what to look at, and whether it is one rank's data or all ranks' code."""
    found = (row["fix"] for row in table("exception") if re.search(row["type"], traceback.type))
    place = f"{traceback.file}:{traceback.number}" if traceback.file else ""
    what = next(found, f"Look at {place}: its traceback shows the calls that led there." if place else READ)
    cuda = f" {CUDA_FIX}" if CUDA.search(traceback.raised) else ""
    return f"{what}{cuda}{_scope(everywhere, ranks)}"


def _scope(everywhere: bool, ranks: frozenset[int]) -> str:
    if everywhere:
        return " All ranks raise it, so one process alone will, too: try it with --nproc-per-node 1."
    if len(ranks) == 1:
        who = rank_ranges.ranks(ranks)
        return f" Only {who} shows it here: look at its data and at what the code does for that rank only."
    return ""
