"""Compares the flight-recorder dumps of a job's ranks: which ranks are out of step, and in which collective.

The records are brought into the form of preflight.hangs.collective_recorder.Group, and compared as a live check's are
(preflight.hangs.desync).
"""

from collections.abc import Iterator, Mapping, Sequence

from preflight.core import rank_ranges
from preflight.core.outcome import Outcome
from preflight.explain.artifacts import flight_recorder
from preflight.explain.artifacts.desync_messages import JobDumps
from preflight.explain.artifacts.flight_recorder import Call, Dump, Key, Recorded
from preflight.explain.inputs import Unread
from preflight.sdk.pickles import RefusedFile

Records = dict[Key, dict[int, Recorded]]
"""By process group, and by rank."""


def read(paths: Sequence[str]) -> tuple[JobDumps, list[Unread]]:
    """What the dumps hold, as if a check had hung; without outcomes where none can be read."""
    dumps, unread = _read(paths)
    world = max([*dumps, *(dump.world - 1 for dump in dumps.values())], default=-1) + 1
    records = _with_unused(_records(dumps, world), dumps)
    files = {rank: dump.file for rank, dump in dumps.items()}
    outcomes = {rank: Outcome("timed_out", recorded=list(_groups(records, rank))) for rank in sorted(dumps)}
    return JobDumps(outcomes, files, world), unread


def _read(paths: Sequence[str]) -> tuple[dict[int, Dump], list[Unread]]:
    """Reads the dumps by rank: the last one where a rank has several (a restarted job). Also the unread files."""
    dumps: dict[int, Dump] = {}
    unread: list[Unread] = []
    shared: dict[object, Call] = {}
    for path in paths:
        try:
            dump = flight_recorder.read(path, shared)
        except RefusedFile as refused:
            unread.append(Unread(path, str(refused), broken=True))
            continue
        older, newer = sorted([dump, dumps.get(dump.rank, dump)], key=lambda dump: dump.last_s)
        dumps[dump.rank] = newer
        if older is not newer:
            unread.append(Unread(older.file, f"is an older dump of rank {dump.rank} than {newer.file}"))
    return dumps, unread


def _records(dumps: Mapping[int, Dump], world: int) -> Records:
    """The records by group. If the dumps do not say which ranks a group has, it has those that used it."""
    named: dict[tuple[str, bool], set[str]] = {}
    users: dict[tuple[str, bool], set[int]] = {}
    for rank, dump in dumps.items():
        for key in dump.groups:
            named.setdefault((key.name, key.world), set()).update({key.ranks} - {""})
            users.setdefault((key.name, key.world), set()).add(rank)
    records: Records = {}
    for rank, dump in dumps.items():
        for key, recorded in dump.groups.items():
            known = named[key.name, key.world]
            unnamed = rank_ranges.to_text(range(world) if key.world else users[key.name, key.world])
            ranks = key.ranks or (next(iter(known)) if len(known) == 1 else unnamed)
            records.setdefault(Key(key.name, ranks, key.world), {})[rank] = recorded
    return records


def _with_unused(records: Records, dumps: Mapping[int, Dump]) -> Records:
    """Adds empty records: a member with a complete dump that lacks the group has entered nothing there."""
    for key, by_rank in records.items():
        for rank in rank_ranges.from_text(key.ranks):
            if rank in dumps and dumps[rank].whole:
                by_rank.setdefault(rank, Recorded(0, [], []))
    return records


def _groups(records: Records, rank: int) -> Iterator[dict[str, object]]:
    """A rank's groups. If numbers cannot be compared, each rank gets its own group."""
    for key, by_rank in records.items():
        if mine := by_rank.get(rank):
            name = key.name if all(each.comparable for each in by_rank.values()) else f"{key.name} of rank {rank}"
            about = {
                "name": name,
                "ranks": key.ranks,
                "world": key.world,
                "entered": mine.entered,
                "opened_s": mine.opened_s,
            }
            yield {**about, "lately": False, "sending": bool(mine.sends), "sends": mine.sends, "calls": mine.calls}
