"""Python exceptions that match no signature: the user's own, and those that only report another process's end."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from preflight.core import rank_ranges, words
from preflight.explain.candidates import MOST_NAMED, Candidate, find_source, from_lines, ranks_of
from preflight.explain.evidence import REPORTED_ROLES, Evidence
from preflight.explain.logs.tracebacks import Traceback, exception, prefixed_exception

RAISED, BARE, PASSED, CUT = 40, 15, 8, 5
"""Weights: of a traceback; of an exception's line without one; of an exception that reports another's failure; of a
traceback that is cut off. A line that names a cause outweighs them all."""
ROW = "python.traceback"
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


def find_candidates(evidence: Evidence) -> list[Candidate]:
    """From tracebacks, from exceptions without a traceback, and from a traceback without its exception."""
    whole = [traceback for traceback in evidence.tracebacks if not (traceback.known or traceback.survived)]
    return [*_by_kind(evidence, whole, RAISED), *_by_kind(evidence, _bare(evidence), BARE), *_cut_off(evidence)]


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
    first, ranks = those[0], ranks_of(traceback.line for traceback in those)
    everywhere = len(ranks) > 1 and ranks == evidence.ranks.keys()
    many = not ranks and _processes(those) > 1
    who = (
        f"all {len(ranks)} ranks"
        if everywhere
        else f"{_processes(those)} processes"
        if many
        else _describe_sources(those, ranks)
    )
    again = _times(those) if len(ranks) < 2 or everywhere else 1
    if RESTARTED in evidence.seen:
        again = max(
            [
                again,
                *(_in_one_file([traceback for traceback in those if traceback.line.rank == rank]) for rank in ranks),
            ]
        )
    more = f", {again} times: torchrun started it again" if again > 1 else ""
    at = f" ({first.file}:{first.number})" if first.file else ""
    where = {**({} if everywhere or many else find_source(first.line)), **_place(first)}
    sure = "high" if len(ranks) == 1 or everywhere else "medium"
    return from_lines(
        evidence, "app_crash", "cause" if weight == RAISED else "failure", weight,
        f"{who} failed in {'its' if len(ranks) < 2 and not many else 'their'} own code: {_raised(first)}{at}{more}",
        [traceback.line for traceback in those], where, confidence=sure if weight == RAISED else "low", row=ROW,
    )  # fmt: skip


def _aftermath(evidence: Evidence, those: Sequence[Traceback], slug: str, meaning: str) -> Candidate:
    ranks = ranks_of(traceback.line for traceback in those)
    text = f"{_describe_sources(those, ranks)} raised {_raised(those[0])}: {meaning}"
    return from_lines(evidence, slug, "fallout", PASSED, text, [traceback.line for traceback in those], row=ROW)


def _bare(evidence: Evidence) -> Iterator[Traceback]:
    """Lines that look like the end of a traceback, in an excerpt without the rest."""
    known = {(traceback.line.file, traceback.line.number) for traceback in evidence.tracebacks.all()}
    for name, kept in evidence.seen.items():
        matches = kept.matches() if name != "any.failure" else []
        known |= {(m.line.file, m.line.number) for m in matches if m.signature.role in REPORTED_ROLES}
    for match in evidence.matches("any.failure"):
        raised = exception(match.line.text, indented=False) or prefixed_exception(match.line.text)
        if raised and (match.line.file, match.line.number) not in known:
            yield Traceback(match.line, {}, raised[0], raised[1], "", 0, known=False)


def _cut_off(evidence: Evidence) -> Iterator[Candidate]:
    """A traceback at the end of an excerpt."""
    for line in evidence.tracebacks.cut_off()[:1]:
        text = "a process raised an exception, which is not visible in this log"
        yield from_lines(
            evidence, "app_crash", "failure", CUT, text, [line], find_source(line), confidence="low", row=ROW
        )


def _times(those: Sequence[Traceback]) -> int:
    """The number of attempts, by torchrun's folders."""
    return len({match[0] for traceback in those if (match := re.search(r"attempt_\d+", traceback.line.file))})


def _in_one_file(of_rank: Sequence[Traceback]) -> int:
    """A second file may be a copy."""
    return max(Counter(traceback.line.file for traceback in of_rank).values(), default=0)


def _processes(those: Sequence[Traceback]) -> int:
    """As far as the lines distinguish them; a file may be a copy of others."""
    return len(
        {(traceback.line.node, traceback.line.local_rank, traceback.line.pid) for traceback in those}
        - {("", None, None)}
    )


def _place(traceback: Traceback) -> dict[str, str | int]:
    return {"file": traceback.file, "line": traceback.number} if traceback.file else {}


def _raised(traceback: Traceback) -> str:
    return f"{traceback.type}: {traceback.text}" if traceback.text else traceback.type


def _describe_sources(those: Sequence[Traceback], ranks: frozenset[int]) -> str:
    nodes = sorted({traceback.line.node for traceback in those if traceback.line.node})
    on = f" on {words.some(nodes, MOST_NAMED)}" if nodes else ""
    return f"{rank_ranges.ranks(ranks) if ranks else 'a process'}{on}"
