"""Collectives that torch's watchdog gave up, read from its lines."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from preflight.core import rank_ranges
from preflight.explain.timeline import Timeline
from preflight.failure_book.line import Line

OWN = "own "
"""Prefix of a group number that is local to a process: the same number may be another group elsewhere. (Its GUID, which
torch writes since 2.5, is global.)"""
LONGEST_NUMBER = 18
"""Digits."""
ENDS = ("elastic.exit", "elastic.restart", "slurm.", "srun.")
"""Prefixes of the names of rows that a launcher writes when processes have ended."""
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
    """The timeout, in ms."""
    line: Line
    part: tuple[str, int]
    """Part of the logs: torchrun's folder of an attempt, or a file and the number of ended processes up to the line."""
    ran: str = ""
    """How long, in ms; a copy of the line has the same."""

    def describe(self) -> str:
        """ "ALLREDUCE #12 of 1 element"."""
        number = f" #{self.number}" if self.number is not None else ""
        size = f" of {rank_ranges.count(self.elements, 'element')}" if self.elements is not None else ""
        return f"{self.operation or 'a collective'}{number}{size}"


def find_waits(timeline: Timeline) -> list[Wait]:
    """The first per rank, group and part. A line of the watchdog may be wrapped into several."""
    waits: dict[tuple[int | None, str, tuple[str, int] | str], Wait] = {}
    parts, named, ends = _parts(timeline), _group_names(timeline), _process_ends(timeline)
    for match in timeline.matches("watchdog.timeout"):
        groups = {**_rest(parts, match.line), **match.groups}
        rank = match.line.rank if match.line.rank is not None else parse_number(groups.get("rank"))
        group = _group(groups if "pg" in groups or "pg_guid" in groups else named.get((match.line.file, rank), {}))
        file, folder = match.line.file, ATTEMPT.search(match.line.file)
        part = (folder[0] if folder else file, sum(at < match.line.number for at in ends.get(file, ())))
        wait = Wait(
            rank, group, parse_number(groups.get("seq")), groups.get("op", ""), parse_number(groups.get("numel_in")),
            parse_number(groups.get("timeout_ms")), match.line, part, groups.get("ran_ms", ""),
        )  # fmt: skip
        waits.setdefault((rank, group, file if rank is None else part), wait)
    return list(waits.values())


class _Hang:
    """Waits of one group, each rank once."""

    def __init__(self) -> None:
        self.of_rank: dict[int | None, Wait] = {}
        self._counts: Counter[object] = Counter()

    def add(self, wait: Wait) -> None:
        self.of_rank[wait.rank] = wait
        self._counts.update((wait.part, (wait.number, wait.operation)))

    def likeness(self, wait: Wait) -> tuple[int, int]:
        """How many of the waits are in the same part of the logs, and how many are in the same collective."""
        return self._counts[wait.part], self._counts[wait.number, wait.operation]


def group_hangs(ranked: Sequence[Wait]) -> list[list[Wait]]:
    """Waits of one group, a list per hang: a rank that waits twice does so in another attempt or job. A rank that
    waited once belongs to the most similar hang; if that is not clear, to each, so that it is not missing from any."""
    of_rank: dict[int | None, dict[object, Wait]] = {}
    for wait in ranked:
        of_rank.setdefault(wait.rank, {}).setdefault((wait.number, wait.operation, wait.elements, wait.ran), wait)
    hangs: list[_Hang] = []
    for those in sorted(of_rank.values(), key=len, reverse=True):
        for wait in those.values():
            free = [hang for hang in hangs if wait.rank not in hang.of_rank]
            if not free:
                hangs.append(_Hang())
            most = max((hang.likeness(wait) for hang in free), default=None)
            for hang in [hang for hang in free if hang.likeness(wait) == most] or hangs[-1:]:
                hang.add(wait)
    return [sorted(hang.of_rank.values(), key=lambda wait: wait.line.order) for hang in hangs]


def _process_ends(timeline: Timeline) -> dict[str, list[int]]:
    """By file, the numbers of lines that report ended processes, unordered."""
    numbers: dict[str, list[int]] = {}
    for match in timeline.matches(*(name for name in timeline.seen if name.startswith(ENDS))):
        numbers.setdefault(match.line.file, []).append(match.line.number)
    return numbers


def _group_names(timeline: Timeline) -> dict[tuple[str, int | None], dict[str, str]]:
    """By file and rank: the group that the watchdog's next line names. (In torch 2.2 to 2.4 the timeout's own line
    does not name it.)"""
    names: dict[tuple[str, int | None], dict[str, str]] = {}
    for match in timeline.matches("watchdog.pg_status"):
        if group := GROUP.search(match.line.raw):
            names.setdefault((match.line.file, match.line.rank), {k: v for k, v in group.groupdict().items() if v})
    return names


def _group(groups: Mapping[str, str]) -> str:
    """ "" is the world: the first group that each process has."""
    known, own = groups.get("pg_guid", ""), groups.get("pg", "0")
    return "" if "0" in (known, own) and not known.strip("0") else known or f"{OWN}{own}"


def _parts(timeline: Timeline) -> dict[tuple[str, int | None], Mapping[str, str]]:
    """The rest of wrapped lines, by file and rank."""
    parts: dict[tuple[str, int | None], dict[str, str]] = {}
    for match in timeline.matches("watchdog.work", "watchdog.ran"):
        of_source = parts.setdefault((match.line.file, match.line.rank), {})
        for name, value in match.groups.items():
            of_source.setdefault(name, value)
    return {key: value for key, value in parts.items() if key[1] is not None or len(timeline.ranks) < 2}


def _rest(parts: Mapping[tuple[str, int | None], Mapping[str, str]], line: Line) -> Mapping[str, str]:
    """Parts of this rank, and of lines without one: only the first line of a wrapped message has a prefix."""
    return {**parts.get((line.file, None), {}), **parts.get((line.file, line.rank), {})}


def parse_number(text: str | None) -> int | None:
    """The number in a group of a match; None if it is not one, or stands for an unknown one, as torch's 2^64-1 elements
    of a coalesced call."""
    return int(text) if text and text.isdecimal() and len(text) <= LONGEST_NUMBER else None
