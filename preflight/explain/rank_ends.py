"""Which rank failed first, by the records of `preflight debug`: a survivor's exception comes out of a collective, and
after the other's end."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from preflight import ranges
from preflight.explain.hint import Hint
from preflight.explain.line import Line
from preflight.explain.processes import Process, number, own_place, told
from preflight.explain.signatures import Signature, book
from preflight.raised import WORDS_OF_COLLECTIVES, Worker, first_words, printed_frames

NOT_ITS_OWN = ("KeyboardInterrupt", "SystemExit", "SignalException")
"""Somebody has ended it."""
_OF_OTHERS = re.compile(
    r"^(Dist\w*Error|Rendezvous\w+|NCCLError|Connection\w*Error|TimeoutError|BrokenPipeError|EOFError"
    r"|ChildFailedError|Process(Raised|Exited)\w*|CalledProcessError)$"
)
"""They tell of another's end, or that another was not there."""
SIGNALS = {
    -9: ("host_oom_kill", "SIGKILL, as the kernel does where the host's memory runs out, or an operator"),
    -7: ("shm_exhausted", "SIGBUS, as it comes where /dev/shm is full and its memory is touched"),
    -11: ("app_crash", "SIGSEGV: a segmentation fault in native code"),
    -6: ("app_crash", "SIGABRT: native code has given up; its words are in the output"),
    -4: ("app_crash", "SIGILL: an instruction that this processor does not have"),
    -8: ("app_crash", "SIGFPE: a division by zero in native code"),
    -15: ("external_signal", "SIGTERM, which somebody has sent"),
    -1: ("external_signal", "SIGHUP: its terminal or session was closed"),
    -2: ("external_signal", "SIGINT, which somebody has sent"),
}
RAISED, KNOWN, SIGNALLED, LEFT, CLEAN, UNKNOWN = 60, 75, 70, 65, 55, 45
"""Weights: of an exception that no signature knows; of one that one does; of a rank that was gone first by a signal,
with another exit status, or in order; or by what is not known, or what its own words tell better."""

TOGETHER_S = 1.0
"""Within which a launcher ends the rest."""
CLOSING_S = 5.0
"""From a rank's closing its connections, which others notice at once, to its interpreter's end."""


@dataclass(frozen=True)
class End:
    """How a rank failed by itself."""

    process: Process
    time: float


def hints(processes: Sequence[Process]) -> list[Hint]:
    """At most one: the first that others only noticed, or that failed alone. Of whom nobody knows how
    it ended, it counts that others miss it. A launcher ends the rest after one has failed."""
    raised = [End(one, number(_exception(one).get("time"))) for one in processes if _is_own(_exception(one))]
    noticed = [one for one in processes if _exception(one) and not _is_own(_exception(one))]
    ended = [one for one in processes if _is_abrupt(one) and _is_launchers(one, noticed)]
    abrupt = [End(one, number(one.record["gone"])) for one in processes if _is_abrupt(one) and one not in ended]
    if not noticed:
        unknown = [end for end in abrupt if _may_be_in_order(end.process)]
        abrupt = [end for end in abrupt if end not in unknown and not _is_after(end, unknown)]
    first = min([*raised, *abrupt], key=lambda end: (end.time, end.process.rank), default=None)
    if first is None:
        return _of_clean(processes, noticed) or _of_absent(ended, noticed)
    if first in raised:
        return [_of_exception(first.process, [end.process for end in raised], noticed)]
    like_it = (first.process.record.get("status"), None)
    alike = [one for one in processes if _is_abrupt(one) and one.record.get("status") in like_it]
    return [_of_abrupt(first.process, alike, noticed)]


def _exception(one: Process) -> dict[str, Any]:
    found = one.record.get("exception")
    return found if isinstance(found, dict) else {}


def _is_own(exception: dict[str, Any]) -> bool:
    """A signature names its cause; or it is neither out of a collective, nor tells of another's end, nor has somebody
    ended it."""
    kind, message = str(exception.get("type", "")), str(exception.get("message", ""))
    if not exception or kind in NOT_ITS_OWN:
        return False
    out_of_collective = any(word in message[:500] for word in WORDS_OF_COLLECTIVES.get(kind, ()))
    return _signature(f"{kind}: {message}") is not None or not (out_of_collective or _OF_OTHERS.search(kind))


def _is_abrupt(one: Process) -> bool:
    """Gone without an exception, and not in order. `debug` had no part in it: in a hang the stacks come first."""
    record = one.record
    status, is_known = record.get("status"), isinstance(record.get("status"), int)
    in_order = "ended" in record and not (is_known and status != 0)
    return "gone" in record and not _exception(one) and not in_order and status != 0 and not one.taken


def _is_launchers(one: Process, noticed: Sequence[Process]) -> bool:
    """Ended by a signal, as far as is known, after another was gone that had raised."""
    gone = [number(each.record["gone"]) for each in noticed if "gone" in each.record]
    return one.record.get("status") in (-15, -9, None) and any(time < number(one.record["gone"]) for time in gone)


def _may_be_in_order(one: Process) -> bool:
    """Nobody knows how it ended."""
    return not _exception(one) and not isinstance(one.record.get("status"), int)


def _is_after(end: End, unknown: Sequence[End]) -> bool:
    """SIGTERM, as a launcher sends it when one has gone: of whom nobody knows how, maybe that one."""
    return end.process.record.get("status") == -15 and any(one.time < end.time + TOGETHER_S for one in unknown)


def _of_exception(one: Process, alike: Sequence[Process], noticed: Sequence[Process]) -> Hint:
    exception = _exception(one)
    message, worker = str(exception.get("message", "")), Worker.of(Exception(str(exception.get("message", ""))))
    said = (
        f"{worker.said} (in {worker.name})" if worker else f"{exception.get('type')}: {first_words(Exception(message))}"
    )
    stack = str(exception.get("traceback", "")).rpartition("Traceback (most recent call last):")[2]
    place = own_place(worker.frames if worker else printed_frames(stack)[::-1], one.record)
    same = [each for each in alike if _exception(each).get("type") == exception.get("type")]
    everywhere = len(same) > 1 and len(same) == _world(one)
    who = f"all {len(same)} ranks raised" if everywhere else f"rank {one.rank} on {one.node} was the first to raise"
    at = f" at {told(place)}" if place else ""
    known = _signature(f"{exception.get('type')}: {message}")
    where = {} if everywhere else {"rank": one.rank, "node": one.node}
    return Hint(
        slug=known.slug if known else "app_crash",
        message=f"{who} {said}{at}; expected no exception{_others(noticed)}",
        where={**where, **({"file": place[0], "line": place[1]} if place else {})},
        noticed_by=tuple(sorted(each.rank for each in noticed)),
        file=one.file,
        weight=KNOWN if known else RAISED,
        quote=f"{exception.get('type')}: {message}"[:500],
        fix=known.fix if known else "",
    )


def _signature(text: str) -> Signature | None:
    """The heaviest that names a cause in the words of an exception."""
    lines = [Line(one, one, "", place, place) for place, one in enumerate(text.splitlines()[:50])]
    found = [match.signature for line in lines for match in book().matches(line) if match.signature.role == "cause"]
    return max((one for one in found if not one.needs and not one.unless), key=lambda one: one.weight, default=None)


def _of_abrupt(one: Process, alike: Sequence[Process], noticed: Sequence[Process]) -> Hint:
    status = one.record.get("status")
    slug, how = "app_crash", "without a word: by a signal or os._exit"
    weight = UNKNOWN
    if isinstance(status, int) and status < 0:
        slug, meaning = SIGNALS.get(status, ("external_signal", f"signal {-status}"))
        how, weight = f"by {meaning}", UNKNOWN if status == -6 or slug == "external_signal" else SIGNALLED
        if slug == "external_signal" and len(alike) > 1 and not noticed:  # to all: who was the first says nothing
            who = ranges.ranks(each.rank for each in alike)
            return Hint(slug, f"{who} were ended {how}; expected them to stay", {}, (), one.file, weight)
    elif isinstance(status, int):
        how, weight = f"with exit status {status}, and raised nothing", LEFT
        if len(alike) > 1 and len(alike) == _world(one):
            message = f"all {len(alike)} ranks ended {how}; expected them to stay"
            return Hint(slug, message, {}, (), one.file, weight)
    who = f"rank {one.rank} on {one.node} (pid {one.pid})"
    message = f"{who} was the first to end, {how}; expected it to stay{_others(noticed)}"
    return Hint(
        slug,
        message,
        {"rank": one.rank, "node": one.node},
        tuple(sorted(each.rank for each in noticed)),
        one.file,
        weight,
    )


def _of_clean(processes: Sequence[Process], noticed: Sequence[Process]) -> list[Hint]:
    """Ranks whose script came to its end while the others waited for them."""
    told_first = min((number(_exception(one).get("time")) for one in noticed), default=0.0)
    left = [one for one in processes if not _exception(one) and 0.0 < _left_at(one) < told_first + CLOSING_S]
    words = [str(_exception(one).get("message", "")) for one in noticed]
    if not left or not any(re.search("closed by peer|reset by peer|[Tt]imed? ?out", text) for text in words):
        return []
    who = ranges.ranks(one.rank for one in left)
    message = f"{who} left the script in order while others were inside a collective; expected them to take part"
    where = {"rank": left[0].rank, "node": left[0].node} if len(left) == 1 else {}
    ranks = tuple(sorted(one.rank for one in noticed))
    return [Hint("collective_mismatch", f"{message}{_others(noticed)}", where, ranks, left[0].file, CLEAN)]


def _left_at(one: Process) -> float:
    """When a rank ended in order, or by os._exit(0); 0.0 else."""
    record = one.record
    return number(record.get("ended")) or (number(record.get("gone")) if record.get("status") == 0 else 0.0)


def _of_absent(ended: Sequence[Process], noticed: Sequence[Process]) -> list[Hint]:
    """Ranks that ran until their launcher ended them, when the others' time was up."""
    timed = [one for one in noticed if re.search("[Tt]imed? ?out", str(_exception(one).get("message", "")))]
    if not timed or not ended:
        return []
    who, waited = ranges.ranks(one.rank for one in ended), ranges.ranks(one.rank for one in timed)
    message = (
        f"{who} still ran, and had raised nothing, when the time-out ended the wait of {waited} in a collective: "
        "late, or in another one; expected all to enter it"
    )
    where = {"rank": ended[0].rank, "node": ended[0].node} if len(ended) == 1 else {}
    return [Hint("slow_rank_timeout", message, where, tuple(one.rank for one in timed), ended[0].file, UNKNOWN)]


def _world(one: Process) -> int:
    size = one.record.get("world_size")
    return size if isinstance(size, int) else 0


def _others(noticed: Sequence[Process]) -> str:
    """ "; ranks 0-2 noticed it"."""
    return f"; {ranges.ranks(one.rank for one in noticed)} noticed it" if noticed else ""
