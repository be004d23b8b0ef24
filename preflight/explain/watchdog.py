"""The waits that torch's watchdog gave up, read from its lines."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from preflight import ranges
from preflight.explain.line import Line
from preflight.explain.story import Story

OWN = "own "
"""Before the number of a group that a process gave it: another's of this number may be another group. (Its GUID, which
torch writes from 2.5 on, is one for all.)"""
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

    def told(self) -> str:
        """ "ALLREDUCE #12 of 1 element"."""
        number = f" #{self.number}" if self.number is not None else ""
        size = f" of {ranges.count(self.elements, 'element')}" if self.elements is not None else ""
        return f"{self.operation or 'a collective'}{number}{size}"


def waits(story: Story) -> list[Wait]:
    """The first of each rank and group. A line of the watchdog may be wrapped into several."""
    found: dict[tuple[int | None, str, str], Wait] = {}
    parts, named = _parts(story), _groups_named(story)
    for match in story.matches("watchdog.timeout"):
        groups = {**parts.get((match.line.file, match.line.rank), {}), **match.groups}
        rank = match.line.rank if match.line.rank is not None else number(groups.get("rank"))
        group = _group(groups if "pg" in groups or "pg_guid" in groups else named.get((match.line.file, rank), {}))
        key = (rank, group, match.line.file if rank is None else "")
        found.setdefault(key, _wait(rank, group, groups, match.line))
    return list(found.values())


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


def _wait(rank: int | None, group: str, groups: Mapping[str, str], line: Line) -> Wait:
    numbers = {name: number(groups.get(name)) for name in ("seq", "numel_in", "timeout_ms")}
    return Wait(rank, group, numbers["seq"], groups.get("op", ""), numbers["numel_in"], numbers["timeout_ms"], line)


def number(text: str | None) -> int | None:
    """Of a group; None where it is no number."""
    return int(text[:18]) if text and text.isdecimal() else None
