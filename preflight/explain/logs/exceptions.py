"""Python exceptions that match no signature: the user's own, and those that only report another process's end."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from preflight.core.own_code import is_own
from preflight.explain.candidates import Candidate, describe_sources, find_source, from_lines, ranks_of
from preflight.explain.evidence import REPORTED_ROLES, Evidence
from preflight.explain.logs import fixes
from preflight.explain.logs.tracebacks import LONGEST, Traceback, exception, prefixed_exception
from preflight.failure_book.line import Line

RAISED, BARE, PASSED, CUT = 40, 16, 8, 5
"""Weights: of a traceback; of an exception's line without one; of an exception that reports another's failure; of a
traceback that is cut off. A line that names a cause outweighs them all."""
ROW = "python.traceback"
BARE_ROWS = ("any.failure", "any.exception")
"""Rows of lines that may be an exception's, without its traceback."""
RESTARTED = "elastic.restart"
"""Row that starts a new attempt."""
SECOND_HAND = (
    ("external_signal", "it was interrupted", r"^(?:KeyboardInterrupt|SignalException)$", r"^\b$"),
    (
        "app_crash",
        "it reports another process's failure",
        r"^(?:ChildFailedError|Process(?:Raised|Exited)\w*|CalledProcessError|SystemExit|Ray\w*Error|Actor\w*Error|"
        r"Worker\w*Error|WorkerCrashed\w*|EngineDead\w*|BrokenExecutor|BrokenProcessPool|Full|Empty)$",
        r"terminated with|exited (?:with|unexpectedly)|[Ee]ngine ?[Cc]ore|worker (?:process|died|failed)|Worker failed|"
        r"subprocess|\bdied\b",
    ),
    (
        "remote_peer_failure",
        "it reports that another process ended",
        r"^(?:BrokenPipeError|EOFError|Connection(?:Reset|Aborted)Error)$",
        r"remote process exited|ncclRemoteError|[Cc]onnection (?:reset|closed|was (?:reset|closed|aborted))|"
        r"[Bb]roken pipe|communicator was aborted",
    ),
    (
        "rdzv_incomplete",
        "it reports a wait for others",
        r"^Rendezvous\w*$",
        r"[Rr]endezvous.*time",
    ),
    ("slow_rank_timeout", "it reports a wait for others", r"^TimeoutError$", r"[Tt]imed? ?out|timeout"),
    (
        "app_crash",
        "its reason is elsewhere",
        r"^(?:Dist\w*Error|NCCLError|Connection\w*Error)$",
        r"NCCL|\b[Gg]loo\b|TCPStore|[Cc]onnect(?:ion)? |[Rr]endezvous|ProcessGroup|process group",
    ),
)
"""Exceptions that are not their process's own fault: a slug, a description, and patterns of type and text."""
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


def find_candidates(evidence: Evidence) -> list[Candidate]:
    """The candidates from tracebacks, exceptions without a traceback, and tracebacks without an exception."""
    whole = [traceback for traceback in evidence.tracebacks if not (traceback.known or traceback.survived)]
    by_weight = ((whole, RAISED), (_bare(evidence), BARE))
    found = ((filter(lambda each: not _is_wanted(evidence, each), those), weight) for those, weight in by_weight)
    return [*(made for those, weight in found for made in _by_kind(evidence, those, weight)), *_cut_off(evidence)]


def _is_wanted(evidence: Evidence, traceback: Traceback) -> bool:
    """Whether it is no failure: an exit with 0, a task that was cancelled, an interrupt that a user wished, or what a
    finalizer raises."""
    wished = traceback.type == "KeyboardInterrupt" and not WISHES.isdisjoint(evidence.seen)
    cleans_up = bool(traceback.frames) and bool(_CLEANS_UP.search(traceback.frames[0]))
    return wished or cleans_up or bool(_ENDS.match(traceback.raised))


def second_hand(traceback: Traceback) -> tuple[str, str]:
    """A slug and a description if the exception is not its process's own fault; else empty strings."""
    if _WRONG_CALL.search(traceback.text):
        return "", ""
    for slug, meaning, of_type, of_text in SECOND_HAND:
        if re.search(of_type, traceback.type) or re.search(of_text, traceback.text):
            return slug, meaning
    return "", ""


def _by_kind(evidence: Evidence, all_of_them: Iterable[Traceback], weight: int) -> Iterator[Candidate]:
    kinds: dict[tuple[str, str], list[Traceback]] = {}
    for traceback in all_of_them:
        kinds.setdefault((traceback.type, re.sub(r"\d+", "#", traceback.text)), []).append(traceback)
    for those in kinds.values():
        ordered = sorted(those, key=lambda traceback: evidence.moment(traceback.line))
        slug, meaning = second_hand(ordered[0])
        yield _aftermath(evidence, ordered, slug, meaning) if slug else _crash(evidence, ordered, weight)


def _crash(evidence: Evidence, those: Sequence[Traceback], weight: int) -> Candidate:
    first, lines = those[0], [traceback.line for traceback in those]
    ranks = ranks_of(lines)
    processes = {(line.node, line.local_rank, line.pid) for line in lines} - {("", None, None)}
    everywhere, many = len(ranks) > 1 and ranks == evidence.ranks.keys(), not ranks and len(processes) > 1
    who = f"{len(processes)} processes" if many else describe_sources(lines, "a process")
    who = f"all {len(ranks)} ranks" if everywhere else who
    again = _attempts(lines) if len(ranks) < 2 or everywhere else 1
    if RESTARTED in evidence.seen:  # a second file may be a copy
        by_file = Counter((line.rank, line.file) for line in lines if line.rank is not None)
        again = max([again, *by_file.values()])
    more = f", {again} times: torchrun started it again" if again > 1 else ""
    at, place = (f" ({first.file}:{first.number})", {"file": first.file, "line": first.number})
    where = {**({} if everywhere or many else find_source(first.line)), **(place if first.file else {})}
    sure = "high" if len(ranks) == 1 or everywhere else "medium"
    own = f"{'its' if len(ranks) < 2 and not many else 'their'} own code"
    made = from_lines(
        evidence, "app_crash", "cause" if weight == RAISED else "failure", weight,
        f"{who} failed in {own}: {_whole(evidence, first)}{at if first.file else ''}{more}", lines, where,
        confidence=sure if weight == RAISED else "low", row=ROW, fix=fixes.of_exception(first, everywhere, ranks),
    )  # fmt: skip
    return replace(made, named=ranks if weight == RAISED else frozenset())


def _whole(evidence: Evidence, traceback: Traceback) -> str:
    """The exception with all lines of its text."""
    rest = evidence.tracebacks.rest(traceback.line)
    return f"{traceback.raised} {rest}"[:LONGEST].strip() if rest else traceback.raised


def _attempts(lines: Sequence[Line]) -> int:
    """How many attempts these lines are from, by torchrun's folders."""
    return len({match[0] for line in lines if (match := re.search(r"attempt_\d+", line.file))})


def _aftermath(evidence: Evidence, those: Sequence[Traceback], slug: str, meaning: str) -> Candidate:
    lines = [traceback.line for traceback in those]
    text = f"{describe_sources(lines, 'a process')} raised {those[0].raised}: {meaning}"
    return from_lines(evidence, slug, "fallout", PASSED, text, lines, row=ROW)


def _bare(evidence: Evidence) -> Iterator[Traceback]:
    """Lines that look like the end of a traceback, in an excerpt without the rest."""
    known = {(traceback.line.file, traceback.line.number) for traceback in evidence.tracebacks.all()}
    for name, kept in evidence.seen.items():
        matches = kept.matches() if name not in BARE_ROWS else []
        known |= {(m.line.file, m.line.number) for m in matches if m.signature.role in REPORTED_ROLES}
    below = (match.line for match in evidence.matches("python.below_error"))
    survived = {(line.file, line.number) for line in below if evidence.went_on_after(line)}
    for match in evidence.matches(*BARE_ROWS):
        raised = exception(match.line.text, indented=False) or prefixed_exception(match.line.text)
        if raised and (match.line.file, match.line.number) not in known | survived:
            yield Traceback(match.line, {}, raised[0], raised[1], "", 0, known=False)


def _cut_off(evidence: Evidence) -> Iterator[Candidate]:
    """A traceback at the end of an excerpt."""
    for line, file, number in evidence.tracebacks.cut_off()[:1]:
        text = f"a process raised an exception at {file}:{number}, which is not visible in this log"
        place = {"file": file, "line": number} if is_own(file) else {}
        yield from_lines(
            evidence, "app_crash", "failure", CUT, text, [line], {**find_source(line), **place}, confidence="low",
            row=ROW, fix=f"Give the log to its end, or that rank's own: it names the exception of {file}:{number}.",
        )  # fmt: skip
