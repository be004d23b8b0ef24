"""What the figures of a run are compared with: those of one run, or of the last sound runs of a history.

`--baseline REPORT` and `preflight diff` compare with one run, `--baseline auto` with a history. A profile has no
figures: profile.py compares what nodes have.
"""

import sqlite3
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from preflight.history import machines
from preflight.history.entry import spread
from preflight.history.rows import time_text
from preflight.history.run_entry import KeptFigure, Of, RunEntry

FEWEST, MOST = 3, 20
"""Sound runs of a figure: with fewer nothing is compared; no more than MOST are read."""


class Usual(NamedTuple):
    """A figure as it was before."""

    value: float
    spread: float
    """Between the ranks of one run, or between the runs; as a share."""
    least: float | None = None
    """As in Figure, where the earlier run knows it."""
    runs: Sequence[str] = ()


class PastFigures(Protocol):
    def usual(self, of: Of, unit: str) -> Usual | None:
        """The figure of a node or a GPU, or of all ranks together (`unit` ""). None if it is not known."""


class OneRun:
    """The run of a report."""

    def __init__(self, figures: Iterable[KeptFigure]) -> None:
        self._figures = {figure.of: figure for figure in figures}

    def usual(self, of: Of, unit: str) -> Usual | None:
        was = self._figures.get(of)
        if was is None or (unit and unit not in was.units):
            return None
        return Usual(was.units[unit] if unit else was.value, was.spread, was.least)


class SoundRuns:
    """The median of the last sound runs of the same kind as the run of `entry`."""

    def __init__(self, database: sqlite3.Connection, entry: RunEntry) -> None:
        self._database, self._entry = database, entry
        self._nodes = machines.known(database, entry)

    def usual(self, of: Of, unit: str) -> Usual | None:
        rows = self._rows(of, self._place(unit))
        if len(rows) < FEWEST:
            return None
        values = [value for *_, value in rows]
        runs = [f"{run} ({time_text(started)})" for run, started, _ in rows]
        return Usual(statistics.median(values), spread(values), runs=runs)

    def _place(self, unit: str) -> int:
        """The unit's number in the database; 0 stands for all ranks together, -1 for one that is not known."""
        if not unit or unit in self._entry.nodes:
            return self._nodes.get(unit, -1) if unit else 0
        known = self._database.execute("SELECT id FROM unit WHERE name = ?", (unit,)).fetchone()
        return int(known[0]) if known else -1

    def _rows(self, of: Of, place: int) -> list[tuple[str, float, float]]:
        """(run, when it started, value), the latest first."""
        kind = self._entry.kind
        query = "SELECT id FROM series WHERE kind = ? AND test = ? AND name = ? AND measure = ?"
        series = self._database.execute(query, ("" if place else kind, *of)).fetchone()
        return self._database.execute(
            "SELECT run.name, run.started, figure.value FROM figure JOIN run ON run.id = figure.run JOIN status ON "
            "status.run = run.id AND status.test = ? WHERE figure.series = ? AND figure.unit = ? AND run.sound AND "
            "run.kind = ? AND run.name != ? AND status.status IN ('pass', 'warn') ORDER BY figure.run DESC LIMIT ?",
            (of[0], *(series or (0,)), place, kind, self._entry.run, MOST),
        ).fetchall()
