"""Ranks that ended by themselves while the others still needed them: no launcher reports an exit code of 0."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from preflight.core import rank_ranges
from preflight.core.own_code import is_own
from preflight.explain.candidates import Candidate, from_lines
from preflight.explain.evidence import Evidence
from preflight.explain.logs import exit_codes
from preflight.explain.logs.watchdog import GROUP, parse_number
from preflight.failure_book.book import Match
from preflight.failure_book.line import Line
from preflight.failure_book.signals import DECISIVE

WEIGHT = 55
REMINDER = "harmless.destroy_reminder"
"""torch prints it where a process ends in order, with an exception or without, and its process group is still there."""
STATUSES = ("watchdog.pg_status", "watchdog.dump_signal")
STOPPED = ("elastic.closing_sigterm", "elastic.exit", "launcher.death_signal", "launcher.signal", "launcher.sigterm")
"""Rows of a launcher that ends ranks: one that leaves after them was told to."""
FIX = (
    "Look at what ends {who} there, although it shows no error: a return, break or sys.exit that not all ranks take, "
    "an exception that is caught, fewer batches than on the others. All ranks must make the same calls, and then "
    "destroy_process_group()."
)


def find_candidates(evidence: Evidence) -> Iterator[Candidate]:
    """For ranks that ended before the others reported a call of the world group that did not end. Where they
    are no minority, the call may be one too many, and nobody is to blame."""
    waiting = find_waiting(evidence)
    gone = _gone(evidence, waiting)
    if not gone or any(death.first and death.code in DECISIVE for death in exit_codes.deaths(evidence)):
        return
    who, everyone, world = rank_ranges.ranks(gone), frozenset(gone.keys() | waiting.keys()), evidence.job().world_size
    is_few = 2 * len(gone) < max(world, len(everyone))
    is_plain = is_few and everyone.issuperset(range(world))
    text = (
        f"{who} ended without a traceback and without destroy_process_group(), while {rank_ranges.ranks(waiting)} "
        f"{'was' if len(waiting) == 1 else 'were'} in {_call(evidence, waiting)}, expected all ranks to take part"
    )
    where = {"rank": min(gone), "node": evidence.ranks[min(gone)] or None} if is_few and len(gone) == 1 else {}
    made = from_lines(
        evidence, "remote_peer_failure", "cause", WEIGHT, text, [*gone.values(), *waiting.values()], where,
        frozenset(waiting), confidence="medium" if is_plain else "low", row="watchdog.timeout", fix=FIX.format(who=who),
    )  # fmt: skip
    yield replace(made, named=frozenset(gone)) if is_few else replace(made, ranks=frozenset(), named=everyone)


def find_waiting(evidence: Evidence) -> dict[int, Line]:
    """Ranks whose watchdog says that a call of the world group has not ended, with that line."""
    waiting: dict[int, Line] = {}
    for match in evidence.matches(*STATUSES):
        enqueued, completed = (parse_number(match.groups.get(name)) for name in ("enqueued", "completed"))
        group = GROUP.search(match.line.raw)
        of_world = group is not None and group["pg"] == "0" and not (group["pg_guid"] or "0").strip("0")
        if match.line.rank is not None and of_world and (enqueued or 0) > (completed or 0):
            waiting.setdefault(match.line.rank, match.line)
    return waiting


def _gone(evidence: Evidence, waiting: Mapping[int, Line]) -> dict[int, Line]:
    """Ranks that ended before anyone waited or a launcher ended ranks, and that say nothing of an error."""
    if not waiting:
        return {}
    others = [*waiting.values(), *(match.line for match in evidence.matches(*STOPPED))]
    first = min(evidence.moment(line) for line in others)
    failed = {traceback.line.rank for traceback in evidence.tracebacks.all()} | waiting.keys()
    for kept in evidence.seen.values():
        failed |= kept.ranks if kept.matches()[0].signature.role == "cause" else set()
    gone: dict[int, Line] = {}
    for match in evidence.matches(REMINDER):
        rank = match.line.rank
        if rank is not None and rank not in failed and evidence.moment(match.line) < first:
            gone.setdefault(rank, match.line)
    return gone


def _call(evidence: Evidence, waiting: Mapping[int, Line]) -> str:
    """ "ALLREDUCE #6 of 4,096 elements at /job/train.py:36": the latest call that they report, and the user's line."""
    known = [match for match in evidence.matches("watchdog.timeout", "watchdog.work") if match.line.rank in waiting]
    last = max(known, key=lambda match: parse_number(match.groups.get("seq")) or 0, default=None)
    if last is None or "op" not in last.groups:
        return "a collective"
    size = parse_number(last.groups.get("numel_in"))
    of = f" of {rank_ranges.count(size, 'element')}" if size is not None else ""
    place = _place(evidence.matches("watchdog.stack_frame"), waiting)
    return f"{last.groups['op']} #{last.groups.get('seq', '?')}{of}{place}"


def _place(frames: list[Match], waiting: Mapping[int, Line]) -> str:
    """The innermost of the user's lines that a rank that waits shows: torch prints the innermost frame first."""
    own = (match.groups for match in frames if match.line.rank in waiting and is_own(match.groups["file"]))
    innermost = next(own, None)
    return f" at {innermost['file']}:{innermost['line']}" if innermost else ""
