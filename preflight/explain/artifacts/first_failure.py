"""Which rank failed first, by the records of `preflight debug`: a survivor's exception is raised by a collective, after
the other rank's end."""

import re
from collections.abc import Sequence
from typing import Any

from preflight.core.exceptions import WORDS_OF_COLLECTIVES, Worker, first_words, printed_frames
from preflight.explain.artifacts.processes import RankProcess, as_number, format_place, own_place, place_where, ranks
from preflight.explain.candidates import Candidate, from_artifact
from preflight.failure_book.book import Signature, book
from preflight.failure_book.line import Line
from preflight.failure_book.signals import DECISIVE, SIGNALS, Signal

NOT_ITS_OWN = ("KeyboardInterrupt", "SystemExit", "SignalException")
"""It was ended from outside."""
_OF_OTHERS = re.compile(
    r"^(Dist\w*Error|Rendezvous\w+|NCCLError|Connection\w*Error|TimeoutError|BrokenPipeError|EOFError"
    r"|ChildFailedError|Process(Raised|Exited)\w*|CalledProcessError)$"
)
"""They report that another rank ended or was missing."""
RAISED, KNOWN, SIGNALLED, LEFT, CLEAN, UNKNOWN = 60, 75, 70, 65, 55, 45
"""Weights: of an exception without a signature, and with one; of a rank that ended first by a signal, with another exit
status, or in order; and of an end that is unknown or better explained by the rank's own output."""
TOGETHER_S = 1.0
"""Within this time a launcher ends the rest."""
CLOSING_S = 5.0
"""From closing connections, which other ranks notice at once, to the end of the interpreter."""


def find_candidates(processes: Sequence[RankProcess]) -> list[Candidate]:
    """At most one candidate: the first rank that failed by itself. A rank with an unknown end counts as failed if
    others waited for it. A launcher ends the rest after one has failed."""
    raised = [process for process in processes if _is_own(_exception(process))]
    noticed = [process for process in processes if _exception(process) and process not in raised]
    abrupt = [process for process in processes if _is_abrupt(process)]
    ended = [process for process in abrupt if _is_launchers(process, noticed)]
    failed = [process for process in abrupt if process not in ended]
    if not noticed:
        unknown = [process for process in failed if not isinstance(process.record.get("status"), int)]
        failed = [process for process in failed if process not in unknown and not _is_after(process, unknown)]
    first = min([*raised, *failed], key=lambda process: (_failed_at(process), process.rank), default=None)
    if first is None:
        return _left_early(processes, noticed) or _never_came(ended, noticed)
    if first in raised:
        return [_raised(first, raised, noticed)]
    status = (first.record.get("status"), None)
    return [_died(first, [process for process in abrupt if process.record.get("status") in status], noticed)]


def _exception(process: RankProcess) -> dict[str, Any]:
    exception = process.record.get("exception")
    return exception if isinstance(exception, dict) else {}


def _failed_at(process: RankProcess) -> float:
    exception = _exception(process)
    return as_number(exception.get("time") if exception else process.record["gone"])


def _is_own(exception: dict[str, Any]) -> bool:
    """Whether the failure is the rank's own: a signature names its cause, or it was not raised by a collective, does
    not report another rank's end, and was not caused from outside."""
    kind, message = str(exception.get("type", "")), str(exception.get("message", ""))
    if not exception or kind in NOT_ITS_OWN:
        return False
    out_of_collective = any(word in message[:500] for word in WORDS_OF_COLLECTIVES.get(kind, ()))
    return _signature(f"{kind}: {message}") is not None or not (out_of_collective or _OF_OTHERS.search(kind))


def _is_abrupt(process: RankProcess) -> bool:
    """Whether it ended without an exception, not in order, and not by `debug`, which takes stacks first."""
    record = process.record
    status, is_known = record.get("status"), isinstance(record.get("status"), int)
    in_order = "ended" in record and not (is_known and status != 0)
    return "gone" in record and not _exception(process) and not in_order and status != 0 and not process.samples


def _is_launchers(process: RankProcess, noticed: Sequence[RankProcess]) -> bool:
    """Whether a signal ended it, as far as is known, after a rank that had raised was gone."""
    gone = [as_number(other.record["gone"]) for other in noticed if "gone" in other.record]
    after = any(time < as_number(process.record["gone"]) for time in gone)
    return process.record.get("status") in (-15, -9, None) and after


def _is_after(process: RankProcess, unknown: Sequence[RankProcess]) -> bool:
    """Whether it got SIGTERM, as a launcher sends when a rank has ended: maybe one of those with an unknown end."""
    end = _failed_at(process) + TOGETHER_S
    return process.record.get("status") == -15 and any(_failed_at(other) < end for other in unknown)


def _raised(process: RankProcess, alike: Sequence[RankProcess], noticed: Sequence[RankProcess]) -> Candidate:
    exception = _exception(process)
    kind, message = exception.get("type"), str(exception.get("message", ""))
    worker = Worker.of(Exception(message))
    raised = f"{worker.message} (in {worker.name})" if worker else f"{kind}: {first_words(Exception(message))}"
    stack = str(exception.get("traceback", "")).rpartition("Traceback (most recent call last):")[2]
    place = own_place(worker.frames if worker else printed_frames(stack)[::-1], process.record)
    same = [other for other in alike if _exception(other).get("type") == kind]
    everywhere = len(same) > 1 and len(same) == process.world_size
    first = f"rank {process.rank} on {process.node} was the first to raise"
    who = f"all {len(same)} ranks raised" if everywhere else first
    at = f" at {format_place(place)}" if place else ""
    text = f"{kind}: {message}"
    known = _signature(text) or _signature(text, "failure")
    led = "its traceback, in the report's folder, shows the calls that led there"
    look = f"Look at {format_place(place)}: {led}." if place else ""
    return from_artifact(
        known.slug if known else "app_crash",
        f"{who} {raised}{at}; expected no exception{_others(noticed)}",
        {**({} if everywhere else process.where), **place_where(place)},
        [other.rank for other in noticed], process.file,
        KNOWN if known and known.role == "cause" else RAISED, quote=text[:500],
        fix=known.fix if known else look,
    )  # fmt: skip


def _signature(text: str, role: str = "cause") -> Signature | None:
    """The heaviest signature of this role that matches an exception's text."""
    lines = [Line(line, line, "", place, place) for place, line in enumerate(text.splitlines()[:50])]
    rows = [match.signature for line in lines for match in book().matches(line)]
    causes = (row for row in rows if row.role == role and not row.needs and not row.unless)
    return max(causes, key=lambda row: row.weight, default=None)


def _died(process: RankProcess, alike: Sequence[RankProcess], noticed: Sequence[RankProcess]) -> Candidate:
    status = process.record.get("status")
    slug, how, weight = "app_crash", "without a message: by a signal or os._exit", UNKNOWN
    if isinstance(status, int) and status < 0:
        ended_by = SIGNALS.get(status, Signal(f"signal {-status}", "external_signal", "sent from outside"))
        slug, how = ended_by.slug, f"by {ended_by.name} ({ended_by.meaning})"
        weight = SIGNALLED if status in DECISIVE else UNKNOWN
        if slug == "external_signal" and len(alike) > 1 and not noticed:  # to all: the order means nothing
            message = f"{ranks(alike)} were ended {how}; expected them to keep running"
            return from_artifact(slug, message, {}, (), process.file, weight)
    elif isinstance(status, int):
        how, weight = f"with exit status {status}, and raised nothing", LEFT
        if len(alike) > 1 and len(alike) == process.world_size:
            message = f"all {len(alike)} ranks ended {how}; expected them to keep running"
            return from_artifact(slug, message, {}, (), process.file, weight)
    place = own_place(process.last, process.record)
    at = f", at {format_place(place)}" if place else ""
    message = f"{process.name} was the first to end, {how}{at}; expected it to keep running{_others(noticed)}"
    where, victims = {**process.where, **place_where(place)}, [other.rank for other in noticed]
    return from_artifact(slug, message, where, victims, process.file, weight)


def _left_early(processes: Sequence[RankProcess], noticed: Sequence[RankProcess]) -> list[Candidate]:
    """Ranks that reached the end of the script while others waited for them."""
    latest = min(map(_failed_at, noticed), default=0.0) + CLOSING_S
    left = [process for process in processes if not _exception(process) and 0.0 < left_at(process) < latest]
    lost = [process for process in noticed if _has_message(process, "closed by peer|reset by peer|[Tt]imed? ?out")]
    if not left or not lost:
        return []
    message = f"{ranks(left)} finished the script while others were inside a collective; expected them to take part"
    where, victims = left[0].where if len(left) == 1 else {}, [process.rank for process in noticed]
    return [from_artifact("collective_mismatch", f"{message}{_others(noticed)}", where, victims, left[0].file, CLEAN)]


def left_at(process: RankProcess) -> float:
    """When a rank ended in order, or by os._exit(0); otherwise 0.0."""
    record = process.record
    return as_number(record.get("ended")) or (as_number(record.get("gone")) if record.get("status") == 0 else 0.0)


def _has_message(process: RankProcess, pattern: str) -> bool:
    return bool(re.search(pattern, str(_exception(process).get("message", ""))))


def _never_came(ended: Sequence[RankProcess], noticed: Sequence[RankProcess]) -> list[Candidate]:
    """Ranks that ran until their launcher ended them after the others timed out."""
    timed = [process for process in noticed if _has_message(process, "[Tt]imed? ?out")]
    if not timed or not ended:
        return []
    message = (
        f"{ranks(ended)} still ran, without an exception, when the timeout ended the wait of {ranks(timed)} in a "
        "collective: late, or in a different one; expected all to enter it"
    )
    where, victims = ended[0].where if len(ended) == 1 else {}, [process.rank for process in timed]
    return [from_artifact("slow_rank_timeout", message, where, victims, ended[0].file, UNKNOWN)]


def _others(noticed: Sequence[RankProcess]) -> str:
    return f"; {ranks(noticed)} noticed it" if noticed else ""
