"""Queries a history: which nodes fail again and again, what was repaired and came back, when a figure became worse."""

import math
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from preflight.core.words import some
from preflight.history.rows import DAY_S, time_text
from preflight.history.steps import Step, steps

RUNS, RUNS_OF_A_UNIT = 1000, 200
"""How many of the last runs are read: for the whole job; for a figure of each node or GPU."""
WINDOW_DAYS = 30

REPAIRED = 3
"""After this many runs without a finding it is gone, not merely missed."""
Z = 1.96


class KeptRun(NamedTuple):
    id: int
    started: float


@dataclass(frozen=True)
class FailingNode:
    node: str
    score: float
    """See `score`."""
    failed: int
    runs: int
    spells: int
    """Of failed runs, with a sound one between."""
    codes: Sequence[str]


@dataclass(frozen=True)
class Repair:
    """A finding that was gone for at least REPAIRED runs that looked."""

    unit: str
    """The node, or the UUID of the GPU."""
    node: str
    """Where it is now."""
    code: str
    state: str
    """ "repaired", or "came back"."""
    found: int
    """Number of runs."""
    first: str
    last: str


@dataclass(frozen=True)
class FigureSeries:
    """What a figure is."""

    kind: str
    """Of job, for a figure of all ranks together."""
    check: str
    name: str
    measure: str
    less_is_better: bool
    unit: str
    """The node, or the UUID of the GPU, or ""."""

    @property
    def of(self) -> tuple[str, str, str, str]:
        return self.kind, self.check, self.name, self.measure


@dataclass(frozen=True)
class FigureStep:
    """A step for the worse."""

    series: FigureSeries
    since: str
    before: float
    after: float
    ratio: float
    over: bool
    """Whether the last runs are back at the level before."""
    changed: Sequence[str]
    """What else changed between the runs before and after the step, as sentences."""

    def to_json(self) -> dict[str, object]:
        own = {name: value for name, value in vars(self).items() if name != "series"}
        return {**vars(self.series), **own}


@dataclass(frozen=True)
class RenamedHost:
    node: str
    earlier: str
    until: str
    """The first run without the old name."""


@dataclass(frozen=True)
class Answers:
    runs: int
    first: str
    last: str
    failing: Sequence[FailingNode]
    came_back: Sequence[Repair]
    repaired: Sequence[Repair]
    steps: Sequence[FigureStep]
    """The latest first."""
    renamed: Sequence[RenamedHost]

    def to_json(self) -> dict[str, Any]:
        lists = {name: [vars(each) for each in getattr(self, name)]
                 for name in ("failing", "came_back", "repaired", "renamed")}  # fmt: skip
        return {"schema": 1, **vars(self), **lists, "steps": [step.to_json() for step in self.steps]}


def answers(database: sqlite3.Connection) -> Answers:
    recent = recent_runs(database)
    count, first = database.execute("SELECT count(*), min(started) FROM run").fetchone()
    found = list(_repairs(database, recent))
    return Answers(
        count,
        time_text(first) if recent else "",
        time_text(recent[-1].started) if recent else "",
        failing(database, recent),
        came_back=[each for each in found if each.state == "came back"],
        repaired=[each for each in found if each.state == "repaired"],
        steps=list(_all_steps(database, recent)),
        renamed=_renamed(database),
    )


def recent_runs(database: sqlite3.Connection) -> list[KeptRun]:
    """The last RUNS, in the order of time."""
    rows = database.execute("SELECT id, started FROM run ORDER BY started DESC LIMIT ?", (RUNS,)).fetchall()
    return [KeptRun(*row) for row in reversed(rows)]


def _renamed(database: sqlite3.Connection) -> list[RenamedHost]:
    """Hosts that have a new name (machines.py), the latest first."""
    rows = database.execute(
        "SELECT unit.name, old, max(run.started) AS until FROM change JOIN unit ON unit.id = change.unit JOIN run ON "
        "run.id = change.run WHERE change.kind = 'host' AND change.name = 'name' AND old != unit.name "
        "GROUP BY unit.id, old ORDER BY until DESC, unit.name"
    )
    return [RenamedHost(name, old, time_text(until)) for name, old, until in rows]


# Who fails again and again


def score(failed: int, runs: int) -> float:
    """The lower end of the 95 % interval of the share of failed runs (Wilson, 1927): one failure in one run counts less
    than ten in twenty."""
    share = failed / runs
    middle = share + Z * Z / (2 * runs)
    half = Z * math.sqrt(share * (1 - share) / runs + Z * Z / (4 * runs * runs))
    return (middle - half) / (1 + Z * Z / runs)


def failing(database: sqlite3.Connection, recent: Sequence[KeptRun]) -> list[FailingNode]:
    """Nodes that a failure blamed in at least two runs of the last 30 days with a sound one between, by score."""
    window = [run for run in recent if run.started >= recent[-1].started - WINDOW_DAYS * DAY_S]
    if not window:
        return []
    took_part: dict[int, list[int]] = {}
    within = (window[0].started,)
    for node, run in database.execute(
        "SELECT part.node, part.run FROM part JOIN run ON run.id = part.run WHERE part.unit = part.node "
        "AND run.started >= ? ORDER BY run.started", within
    ):  # fmt: skip
        took_part.setdefault(node, []).append(run)
    failed: dict[int, dict[int, set[str]]] = {}
    for node, run, code in database.execute(
        "SELECT part.node, part.run, finding.code FROM finding JOIN run ON run.id = finding.run JOIN part ON "
        "part.run = finding.run AND part.unit = finding.unit WHERE severity = 'fail' AND run.started >= ?", within
    ):  # fmt: skip
        failed.setdefault(node, {}).setdefault(run, set()).add(code)
    listed = [_failing(database, node, took_part[node], runs) for node, runs in failed.items()]
    return sorted((node for node in listed if node.spells > 1), key=lambda node: -node.score)


def _failing(database: sqlite3.Connection, node: int, runs: Sequence[int], failed: dict[int, set[str]]) -> FailingNode:
    spells = sum(is_bad for is_bad, _ in groupby(run in failed for run in runs))
    codes = sorted({code for found in failed.values() for code in found})
    share = round(score(len(failed), len(runs)), 4)
    return FailingNode(_name(database, node), share, len(failed), len(runs), spells, codes)


def _name(database: sqlite3.Connection, unit: int) -> str:
    return str(database.execute("SELECT name FROM unit WHERE id = ?", (unit,)).fetchone()[0])


# What was repaired, and what came back


def _repairs(database: sqlite3.Connection, recent: Sequence[KeptRun]) -> Iterator[Repair]:
    """Yields findings by node or GPU that were gone for at least REPAIRED runs that looked, and perhaps came back."""
    found: dict[tuple[int, str], set[int]] = {}
    seen: dict[int, list[int]] = {}
    looked: dict[int, set[str]] = {}
    for run, _ in recent:
        for unit, code in database.execute("SELECT unit, code FROM finding WHERE run = ? AND unit IS NOT NULL", (run,)):
            found.setdefault((unit, code), set()).add(run)
        for (unit,) in database.execute("SELECT unit FROM part WHERE run = ?", (run,)):
            seen.setdefault(unit, []).append(run)
        measured = database.execute("SELECT test FROM status WHERE run = ? AND status != 'skip'", (run,))
        looked[run] = {test for (test,) in measured}
    started = dict(recent)
    for (unit, code), bad in sorted(found.items(), key=lambda pair: -max(started[run] for run in pair[1])):
        test = code.rpartition(".")[0]
        state = _state([run for run in seen[unit] if test in looked[run]], bad)
        if state:
            times = sorted(started[run] for run in bad)
            yield Repair(
                _name(database, unit), _name(database, _last_node(database, unit, seen[unit][-1])), code, state,
                len(bad), time_text(times[0]), time_text(times[-1]),
            )  # fmt: skip


def _state(looked: Sequence[int], bad: set[int]) -> str:
    """ "repaired", "came back", or "" if it was never gone for long enough."""
    spells = [(is_bad, len(list(runs))) for is_bad, runs in groupby(run in bad for run in looked)]
    while spells and not spells[0][0]:
        spells.pop(0)
    gone = [count >= REPAIRED for is_bad, count in spells if not is_bad]
    if gone and gone[-1] and not spells[-1][0]:
        return "repaired"
    return "came back" if any(gone) else ""


def _last_node(database: sqlite3.Connection, unit: int, run: int) -> int:
    query = "SELECT node FROM part WHERE run = ? AND unit = ?"
    return int(database.execute(query, (run, unit)).fetchone()[0])


# Where a figure has changed


def _all_steps(database: sqlite3.Connection, recent: Sequence[KeptRun]) -> Iterator[FigureStep]:
    """Steps for the worse, the latest first, with what changed between the runs before and after the step."""
    found = [
        (points[step.at][0].started, series, step, points)
        for series, points in courses(database, recent)
        for step in steps([value for _, value in points])
        if (step.after < step.before) != series.less_is_better
    ]
    for started, series, step, points in sorted(found, key=lambda item: -item[0]):
        changed = _changed(database, points[step.at - 1][0], points[step.at][0], series.unit)
        ratio = round(step.after / step.before, 4)
        yield FigureStep(series, time_text(started), step.before, step.after, ratio, _is_over(points, step), changed)


def _is_over(points: Sequence[tuple[KeptRun, float]], step: Step) -> bool:
    """Whether the last runs are back at the level before the step."""
    last = sorted(value for _, value in points[-3:])[1]
    return abs(last - step.before) < abs(last - step.after)


def courses(
    database: sqlite3.Connection, recent: Sequence[KeptRun]
) -> Iterator[tuple[FigureSeries, list[tuple[KeptRun, float]]]]:
    """Yields (what the figure is, its values in the order of time)."""
    for number, is_of_job in ((RUNS, True), (RUNS_OF_A_UNIT, False)):
        since = recent[-number:][0].started if recent else 0.0
        rows = database.execute(
            "SELECT series.kind, test, series.name, measure, less_is_better, COALESCE(unit.name, ''), run.id, "
            "run.started, figure.value FROM figure JOIN series ON series.id = figure.series JOIN run ON "
            "run.id = figure.run LEFT JOIN unit ON unit.id = figure.unit WHERE (figure.unit = 0) = ? AND "
            "run.started >= ? ORDER BY figure.series, figure.unit, run.started", (is_of_job, since)
        )  # fmt: skip
        for of, group in groupby(rows, key=lambda row: row[:6]):
            kind, check, name, measure, less_is_better, unit = of
            series = FigureSeries(kind, check, name, measure, bool(less_is_better), unit)
            yield series, [(KeptRun(id_, started), value) for *_, id_, started, value in group]


def _changed(database: sqlite3.Connection, before: KeptRun, first: KeptRun, unit: str) -> list[str]:
    """ "software torch: 2.9 to 2.10 on node-1": changes on nodes that took part, or on this unit and its node."""
    rows = database.execute(
        "SELECT change.kind, change.name, old, new, unit.name FROM change JOIN run ON run.id = change.run "
        "JOIN unit ON unit.id = change.unit JOIN part ON part.run = ? AND part.unit = change.unit "
        "WHERE run.started > ? AND run.started <= ? AND (? = '' OR unit.name = ? OR part.node IN "
        "(SELECT node FROM part JOIN unit ON unit.id = part.unit WHERE part.run = ? AND unit.name = ?)) "
        "ORDER BY change.kind, change.name, unit.name",
        (first.id, before.started, first.started, unit, unit, first.id, unit),
    )
    return [
        f"{kind} {name}: {old or 'not there'} to {new or 'not there'} on {some([row[4] for row in group])}"
        for (kind, name, old, new), group in groupby(rows, key=lambda row: row[:4])
    ]
