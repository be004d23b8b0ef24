"""Which rank failed first, by the records of `preflight debug`: a survivor's exception is raised by a collective, after
the other rank's end."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from preflight.core import rank_ranges
from preflight.core.exceptions import WORDS_OF_COLLECTIVES, Worker, first_words, printed_frames
from preflight.explain.artifacts.processes import RankProcess, as_number, format_place, own_place
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


@dataclass(frozen=True)
class RankFailure:
    """When a rank failed by itself."""

    process: RankProcess
    time: float


def find_candidates(processes: Sequence[RankProcess]) -> list[Candidate]:
    """At most one: the first rank that failed by itself. A rank with an unknown end counts as failed if others waited
    for it. A launcher ends the rest after one has failed."""
    raised = [
        RankFailure(process, as_number(_exception(process).get("time")))
        for process in processes
        if _is_own(_exception(process))
    ]
    noticed = [process for process in processes if _exception(process) and not _is_own(_exception(process))]
    ended = [process for process in processes if _is_abrupt(process) and _is_launchers(process, noticed)]
    abrupt = [
        RankFailure(process, as_number(process.record["gone"]))
        for process in processes
        if _is_abrupt(process) and process not in ended
    ]
    if not noticed:
        unknown = [end for end in abrupt if _may_be_in_order(end.process)]
        abrupt = [end for end in abrupt if end not in unknown and not _is_after(end, unknown)]
    first = min([*raised, *abrupt], key=lambda end: (end.time, end.process.rank), default=None)
    if first is None:
        return _left_early(processes, noticed) or _never_came(ended, noticed)
    if first in raised:
        return [_raised(first.process, [end.process for end in raised], noticed)]
    like_it = (first.process.record.get("status"), None)
    alike = [process for process in processes if _is_abrupt(process) and process.record.get("status") in like_it]
    return [_died(first.process, alike, noticed)]


def _exception(process: RankProcess) -> dict[str, Any]:
    exception = process.record.get("exception")
    return exception if isinstance(exception, dict) else {}


def _is_own(exception: dict[str, Any]) -> bool:
    """A signature names its cause; or it was not raised by a collective, does not report another rank's end, and was
    not caused from outside."""
    kind, message = str(exception.get("type", "")), str(exception.get("message", ""))
    if not exception or kind in NOT_ITS_OWN:
        return False
    out_of_collective = any(word in message[:500] for word in WORDS_OF_COLLECTIVES.get(kind, ()))
    return _signature(f"{kind}: {message}") is not None or not (out_of_collective or _OF_OTHERS.search(kind))


def _is_abrupt(process: RankProcess) -> bool:
    """Gone without an exception, not in order, and not ended by `debug`, which takes stacks first."""
    record = process.record
    status, is_known = record.get("status"), isinstance(record.get("status"), int)
    in_order = "ended" in record and not (is_known and status != 0)
    return "gone" in record and not _exception(process) and not in_order and status != 0 and not process.samples


def _is_launchers(process: RankProcess, noticed: Sequence[RankProcess]) -> bool:
    """Ended by a signal, as far as is known, after a rank that had raised was gone."""
    gone = [as_number(each.record["gone"]) for each in noticed if "gone" in each.record]
    return process.record.get("status") in (-15, -9, None) and any(
        time < as_number(process.record["gone"]) for time in gone
    )


def _may_be_in_order(process: RankProcess) -> bool:
    """It is unknown how it ended."""
    return not _exception(process) and not isinstance(process.record.get("status"), int)


def _is_after(end: RankFailure, unknown: Sequence[RankFailure]) -> bool:
    """SIGTERM, as a launcher sends when a rank has ended: maybe one of those with an unknown end."""
    return end.process.record.get("status") == -15 and any(ending.time < end.time + TOGETHER_S for ending in unknown)


def _raised(process: RankProcess, alike: Sequence[RankProcess], noticed: Sequence[RankProcess]) -> Candidate:
    exception = _exception(process)
    message, worker = str(exception.get("message", "")), Worker.of(Exception(str(exception.get("message", ""))))
    raised = (
        f"{worker.said} (in {worker.name})" if worker else f"{exception.get('type')}: {first_words(Exception(message))}"
    )
    stack = str(exception.get("traceback", "")).rpartition("Traceback (most recent call last):")[2]
    place = own_place(worker.frames if worker else printed_frames(stack)[::-1], process.record)
    same = [each for each in alike if _exception(each).get("type") == exception.get("type")]
    everywhere = len(same) > 1 and len(same) == _world(process)
    who = (
        f"all {len(same)} ranks raised"
        if everywhere
        else f"rank {process.rank} on {process.node} was the first to raise"
    )
    at = f" at {format_place(place)}" if place else ""
    known = _signature(f"{exception.get('type')}: {message}")
    where = {} if everywhere else {"rank": process.rank, "node": process.node}
    return from_artifact(
        slug=known.slug if known else "app_crash",
        message=f"{who} {raised}{at}; expected no exception{_others(noticed)}",
        where={**where, **({"file": place[0], "line": place[1]} if place else {})},
        ranks=tuple(sorted(each.rank for each in noticed)),
        file=process.file,
        weight=KNOWN if known else RAISED,
        quote=f"{exception.get('type')}: {message}"[:500],
        fix=known.fix if known else "",
    )


def _signature(text: str) -> Signature | None:
    """The heaviest that names a cause in the words of an exception."""
    lines = [Line(line, line, "", place, place) for place, line in enumerate(text.splitlines()[:50])]
    rows = [match.signature for line in lines for match in book().matches(line)]
    causes = (row for row in rows if row.role == "cause" and not row.needs and not row.unless)
    return max(causes, key=lambda row: row.weight, default=None)


def _died(process: RankProcess, alike: Sequence[RankProcess], noticed: Sequence[RankProcess]) -> Candidate:
    status = process.record.get("status")
    slug, how = "app_crash", "without a message: by a signal or os._exit"
    weight = UNKNOWN
    if isinstance(status, int) and status < 0:
        ended_by = SIGNALS.get(status, Signal(f"signal {-status}", "external_signal", "sent from outside"))
        slug, how = ended_by.slug, f"by {ended_by.name} ({ended_by.meaning})"
        weight = SIGNALLED if status in DECISIVE else UNKNOWN
        if slug == "external_signal" and len(alike) > 1 and not noticed:  # to all: the order means nothing
            who = rank_ranges.ranks(each.rank for each in alike)
            return from_artifact(
                slug, f"{who} were ended {how}; expected them to keep running", {}, (), process.file, weight
            )
    elif isinstance(status, int):
        how, weight = f"with exit status {status}, and raised nothing", LEFT
        if len(alike) > 1 and len(alike) == _world(process):
            message = f"all {len(alike)} ranks ended {how}; expected them to keep running"
            return from_artifact(slug, message, {}, (), process.file, weight)
    who = f"rank {process.rank} on {process.node} (pid {process.pid})"
    message = f"{who} was the first to end, {how}; expected it to keep running{_others(noticed)}"
    return from_artifact(
        slug,
        message,
        {"rank": process.rank, "node": process.node},
        tuple(sorted(each.rank for each in noticed)),
        process.file,
        weight,
    )


def _left_early(processes: Sequence[RankProcess], noticed: Sequence[RankProcess]) -> list[Candidate]:
    """Ranks that reached the end of the script while others waited for them."""
    told_first = min((as_number(_exception(process).get("time")) for process in noticed), default=0.0)
    left = [
        process for process in processes if not _exception(process) and 0.0 < _left_at(process) < told_first + CLOSING_S
    ]
    words = [str(_exception(process).get("message", "")) for process in noticed]
    if not left or not any(re.search("closed by peer|reset by peer|[Tt]imed? ?out", text) for text in words):
        return []
    who = rank_ranges.ranks(process.rank for process in left)
    message = f"{who} finished the script while others were inside a collective; expected them to take part"
    where = {"rank": left[0].rank, "node": left[0].node} if len(left) == 1 else {}
    ranks = tuple(sorted(process.rank for process in noticed))
    return [from_artifact("collective_mismatch", f"{message}{_others(noticed)}", where, ranks, left[0].file, CLEAN)]


def _left_at(process: RankProcess) -> float:
    """When a rank ended in order, or by os._exit(0); otherwise 0.0."""
    record = process.record
    return as_number(record.get("ended")) or (as_number(record.get("gone")) if record.get("status") == 0 else 0.0)


def _never_came(ended: Sequence[RankProcess], noticed: Sequence[RankProcess]) -> list[Candidate]:
    """Ranks that ran until their launcher ended them after the others timed out."""
    timed = [process for process in noticed if re.search("[Tt]imed? ?out", str(_exception(process).get("message", "")))]
    if not timed or not ended:
        return []
    who, waited = (
        rank_ranges.ranks(process.rank for process in ended),
        rank_ranges.ranks(process.rank for process in timed),
    )
    message = (
        f"{who} still ran, without an exception, when the time-out ended the wait of {waited} in a collective: "
        "late, or in a different one; expected all to enter it"
    )
    where = {"rank": ended[0].rank, "node": ended[0].node} if len(ended) == 1 else {}
    return [
        from_artifact(
            "slow_rank_timeout", message, where, tuple(process.rank for process in timed), ended[0].file, UNKNOWN
        )
    ]


def _world(process: RankProcess) -> int:
    size = process.record.get("world_size")
    return size if isinstance(size, int) else 0


def _others(noticed: Sequence[RankProcess]) -> str:
    """ "; ranks 0-2 noticed it"."""
    return f"; {rank_ranges.ranks(process.rank for process in noticed)} noticed it" if noticed else ""
