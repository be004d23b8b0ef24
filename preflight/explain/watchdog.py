"""The waits that torch's watchdog gave up, read from its lines."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from preflight import ranges
from preflight.explain.line import Line
from preflight.explain.story import Story

OWN = "own "
"""Before the number of a group that a process gave it: another's of this number may be another group. (Its GUID, which
torch writes from 2.5 on, is one for all.)"""
ENDS = ("elastic.exit", "elastic.restart", "slurm.", "srun.")
"""Rows, by how their names begin, of what a launcher says when processes have ended."""
ATTEMPT = re.compile(r"\A.*\battempt_\d+(?=/)")
GROUP = re.compile(r"\[PG (?:ID )?(?P<pg>\d+)(?: PG GUID (?P<pg_guid>\d+))?")


@dataclass(frozen=True)
class Wait:
    """A collective that a rank's watchdog gave up."""

    rank: int | None
    group: str
    """Process group; "" for the world."""
    number: int | None
    """Sequence number in the group."""
    operation: str
    elements: int | None
    limit: int | None
    """The time-out, in ms."""
    line: Line
    part: tuple[str, int]
    """Of the logs: torchrun's folder of an attempt, or a file, and the ends of processes that it tells of before."""
    ran: str = ""
    """How long, in ms: a copy of the line says the same."""

    def told(self) -> str:
        """ "ALLREDUCE #12 of 1 element"."""
        number = f" #{self.number}" if self.number is not None else ""
        size = f" of {ranges.count(self.elements, 'element')}" if self.elements is not None else ""
        return f"{self.operation or 'a collective'}{number}{size}"


def waits(story: Story) -> list[Wait]:
    """The first of each rank, group and part. A line of the watchdog may be wrapped into several."""
    found: dict[tuple[int | None, str, tuple[str, int] | str], Wait] = {}
    parts, named, ends = _parts(story), _groups_named(story), _ends(story)
    for match in story.matches("watchdog.timeout"):
        groups = {**parts.get((match.line.file, match.line.rank), {}), **match.groups}
        rank = match.line.rank if match.line.rank is not None else number(groups.get("rank"))
        group = _group(groups if "pg" in groups or "pg_guid" in groups else named.get((match.line.file, rank), {}))
        one = _wait(rank, group, groups, match.line, ends)
        found.setdefault((rank, group, match.line.file if rank is None else one.part), one)
    return list(found.values())


class _Hang:
    """Waits of one group, each rank once."""

    def __init__(self) -> None:
        self.of_rank: dict[int | None, Wait] = {}
        self._alike: Counter[object] = Counter()

    def add(self, one: Wait) -> None:
        self.of_rank[one.rank] = one
        self._alike.update((one.part, (one.number, one.operation)))

    def likeness(self, one: Wait) -> tuple[int, int]:
        """How many stand in the same part of the logs, and how many wait in the same collective."""
        return self._alike[one.part], self._alike[one.number, one.operation]


def hangs(ranked: Sequence[Wait]) -> list[list[Wait]]:
    """Waits of one group, a list for each hang: who waits again, does so in another attempt or another job. Who waited
    once belongs to the hang that it is most like; if that says nothing, to each: it is missing in none."""
    of_rank: dict[int | None, dict[object, Wait]] = {}
    for one in ranked:
        of_rank.setdefault(one.rank, {}).setdefault((one.number, one.operation, one.elements, one.ran), one)
    found: list[_Hang] = []
    for those in sorted(of_rank.values(), key=len, reverse=True):
        for one in those.values():
            free = [hang for hang in found if one.rank not in hang.of_rank]
            if not free:
                found.append(_Hang())
            most = max((hang.likeness(one) for hang in free), default=None)
            for hang in [hang for hang in free if hang.likeness(one) == most] or found[-1:]:
                hang.add(one)
    return [sorted(hang.of_rank.values(), key=lambda one: one.line.order) for hang in found]


def _ends(story: Story) -> dict[str, list[int]]:
    """By file: lines that tell of ends of processes, in whatever order."""
    found: dict[str, list[int]] = {}
    for match in story.matches(*(name for name in story.seen if name.startswith(ENDS))):
        found.setdefault(match.line.file, []).append(match.line.number)
    return found


def _groups_named(story: Story) -> dict[tuple[str, int | None], dict[str, str]]:
    """By file and rank: the group that its watchdog's next line names. (The line of the time-out itself names none in
    torch 2.2 to 2.4.)"""
    found: dict[tuple[str, int | None], dict[str, str]] = {}
    for match in story.matches("watchdog.pg_status"):
        told = GROUP.search(match.line.raw)
        if told:
            found.setdefault((match.line.file, match.line.rank), {k: v for k, v in told.groupdict().items() if v})
    return found


def _group(groups: Mapping[str, str]) -> str:
    """ "" is the world: the first group that each process has."""
    known, own = groups.get("pg_guid", ""), groups.get("pg", "0")
    return "" if "0" in (known, own) and not known.strip("0") else known or f"{OWN}{own}"


def _parts(story: Story) -> dict[tuple[str, int | None], Mapping[str, str]]:
    """What follows on a wrapped line's next ones, by file and rank."""
    found: dict[tuple[str, int | None], dict[str, str]] = {}
    for match in story.matches("watchdog.work", "watchdog.ran"):
        of_source = found.setdefault((match.line.file, match.line.rank), {})
        for name, value in match.groups.items():
            of_source.setdefault(name, value)
    return {key: value for key, value in found.items() if key[1] is not None or len(story.ranks) < 2}


def _wait(
    rank: int | None, group: str, groups: Mapping[str, str], line: Line, ends: Mapping[str, Sequence[int]]
) -> Wait:
    folder = ATTEMPT.search(line.file)
    part = (folder[0] if folder else line.file, sum(at < line.number for at in ends.get(line.file, ())))
    return Wait(
        rank, group, number(groups.get("seq")), groups.get("op", ""), number(groups.get("numel_in")),
        number(groups.get("timeout_ms")), line, part, groups.get("ran_ms", ""),
    )  # fmt: skip


def number(text: str | None) -> int | None:
    """Of a group; None where it is no number."""
    return int(text[:18]) if text and text.isdecimal() else None
