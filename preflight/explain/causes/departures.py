"""Ranks that never came, by those that announced themselves; and ranks that ended by themselves while the others still
needed them: no launcher reports an exit code of 0."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from preflight.core import rank_ranges
from preflight.core.own_code import is_own
from preflight.explain.candidates import Candidate, from_lines
from preflight.explain.causes import exit_codes
from preflight.explain.causes.waits import GROUP, parse_number
from preflight.explain.timeline import REPORTED_ROLES, Timeline
from preflight.failure_book.book import Match
from preflight.failure_book.line import Line
from preflight.failure_book.signals import DECISIVE

LEFT, JOINED = 55, 60
"""Weights: of ranks that left, and of too few that joined."""
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
GOES_ON = ("members.all", "nccl.init_complete", "progress.bar", "progress.step", "epoch.end")
"""Rows that appear when all ranks have joined."""
WAITING = {"slow_rank_timeout", "rdzv_incomplete"}
"""Causes that may be reported while they wait."""


def find_candidates(timeline: Timeline) -> Iterator[Candidate]:
    yield from _never_came(timeline)
    yield from _left(timeline)


def _never_came(timeline: Timeline) -> Iterator[Candidate]:
    """Where fewer ranks announce themselves than they expect, and no line says that all have joined."""
    matches = timeline.matches("members.one")
    if not matches or _went_on(timeline):
        return
    world = max(int(match.groups["world"][:9]) for match in matches)
    came = frozenset(int(match.groups["rank"][:9]) for match in matches)
    nodes = {match.line.node for match in matches if match.line.node}
    if len(came) >= world or max(came) >= world or len(came) < 2:
        return
    one_block = came <= set(range(max(8, 1 << (len(came) - 1).bit_length()))) and len(nodes) < 2
    slug = "world_size_wrong" if one_block else "rdzv_incomplete"
    why = "only this node's ranks were started" if one_block else "the others never joined"
    text = (
        f"{rank_ranges.count(len(came), 'rank')} of {world} joined ({rank_ranges.to_text(came)}): {why}, or "
        "WORLD_SIZE, the number of nodes or of processes per node does not match what was started"
    )
    lines = [match.line for match in matches]
    yield from_lines(timeline, slug, "failure", JOINED, text, lines, ranks=came, confidence="medium", row="members.one")


def _went_on(timeline: Timeline) -> bool:
    """Whether all must have joined, or another failure was reported."""
    rows = [kept.matches()[0].signature for kept in timeline.seen.values()]
    failed = any(row.role in REPORTED_ROLES and row.slug not in WAITING for row in rows)
    return failed or bool(timeline.seen.keys() & {*GOES_ON}) or any(True for _ in timeline.tracebacks)


def _left(timeline: Timeline) -> Iterator[Candidate]:
    """For ranks that ended before the others reported a call of the world group that did not end. Where they
    are no minority, the call may be one too many, and nobody is to blame."""
    waiting = find_waiting(timeline)
    gone = _gone(timeline, waiting)
    if not gone or any(death.first and death.code in DECISIVE for death in exit_codes.deaths(timeline)):
        return
    who, everyone, world = rank_ranges.ranks(gone), frozenset(gone.keys() | waiting.keys()), timeline.job().world_size
    is_few = 2 * len(gone) < max(world, len(everyone))
    is_plain = is_few and everyone.issuperset(range(world))
    text = (
        f"{who} ended without a traceback and without destroy_process_group(), while {rank_ranges.ranks(waiting)} "
        f"{'was' if len(waiting) == 1 else 'were'} in {_call(timeline, waiting)}, expected all ranks to take part"
    )
    where = {"rank": min(gone), "node": timeline.ranks[min(gone)] or None} if is_few and len(gone) == 1 else {}
    candidate = from_lines(
        timeline, "remote_peer_failure", "cause", LEFT, text, [*gone.values(), *waiting.values()], where,
        frozenset(waiting), confidence="medium" if is_plain else "low", row="watchdog.timeout", fix=FIX.format(who=who),
    )  # fmt: skip
    yield replace(candidate, named=frozenset(gone)) if is_few else replace(candidate, ranks=frozenset(), named=everyone)


def find_waiting(timeline: Timeline) -> dict[int, Line]:
    """Ranks whose watchdog says that a call of the world group has not ended, with that line."""
    waiting: dict[int, Line] = {}
    for match in timeline.matches(*STATUSES):
        enqueued, completed = (parse_number(match.groups.get(name)) for name in ("enqueued", "completed"))
        group = GROUP.search(match.line.raw)
        of_world = group is not None and group["pg"] == "0" and not (group["pg_guid"] or "0").strip("0")
        if match.line.rank is not None and of_world and (enqueued or 0) > (completed or 0):
            waiting.setdefault(match.line.rank, match.line)
    return waiting


def _gone(timeline: Timeline, waiting: Mapping[int, Line]) -> dict[int, Line]:
    """Ranks that ended before anyone waited or a launcher ended ranks, and that say nothing of an error."""
    if not waiting:
        return {}
    others = [*waiting.values(), *(match.line for match in timeline.matches(*STOPPED))]
    first = min(timeline.moment(line) for line in others)
    failed = {traceback.line.rank for traceback in timeline.tracebacks.all()} | waiting.keys()
    for kept in timeline.seen.values():
        failed |= kept.ranks if kept.matches()[0].signature.role == "cause" else set()
    gone: dict[int, Line] = {}
    for match in timeline.matches(REMINDER):
        rank = match.line.rank
        if rank is not None and rank not in failed and timeline.moment(match.line) < first:
            gone.setdefault(rank, match.line)
    return gone


def _call(timeline: Timeline, waiting: Mapping[int, Line]) -> str:
    """ "ALLREDUCE #6 of 4,096 elements at /job/train.py:36": the latest call that they report, and the user's line."""
    known = [match for match in timeline.matches("watchdog.timeout", "watchdog.work") if match.line.rank in waiting]
    last = max(known, key=lambda match: parse_number(match.groups.get("seq")) or 0, default=None)
    if last is None or "op" not in last.groups:
        return "a collective"
    size = parse_number(last.groups.get("numel_in"))
    of = f" of {rank_ranges.count(size, 'element')}" if size is not None else ""
    place = _place(timeline.matches("watchdog.stack_frame"), waiting)
    return f"{last.groups['op']} #{last.groups.get('seq', '?')}{of}{place}"


def _place(frames: list[Match], waiting: Mapping[int, Line]) -> str:
    """The innermost of the user's lines that a rank that waits shows: torch prints the innermost frame first."""
    own = (match.groups for match in frames if match.line.rank in waiting and is_own(match.groups["file"]))
    innermost = next(own, None)
    return f" at {innermost['file']}:{innermost['line']}" if innermost else ""
