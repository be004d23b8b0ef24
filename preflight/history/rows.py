"""The SQLite database of a history: its tables, adding a run, and dropping old runs."""

import sqlite3
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from preflight.history import machines
from preflight.history.run_entry import RunEntry

APPLICATION = 0x70666C68
"""SQLite's application_id of a history."""
TABLES = """
CREATE TABLE run (id INTEGER PRIMARY KEY, name TEXT UNIQUE, started REAL, kind TEXT, verdict TEXT, sound INTEGER);
CREATE INDEX run_started ON run (started);
CREATE TABLE unit (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE TABLE part (run INTEGER, unit INTEGER, node INTEGER, PRIMARY KEY (run, unit)) WITHOUT ROWID;
CREATE TABLE status (run INTEGER, test TEXT, status TEXT, PRIMARY KEY (run, test)) WITHOUT ROWID;
CREATE TABLE finding (run INTEGER, code TEXT, severity TEXT, unit INTEGER, message TEXT);
CREATE INDEX finding_run ON finding (run);
CREATE TABLE trait (unit INTEGER, kind TEXT, test TEXT, name TEXT, value TEXT, PRIMARY KEY (unit, kind, test, name))
    WITHOUT ROWID;
CREATE TABLE change (run INTEGER, unit INTEGER, kind TEXT, name TEXT, old TEXT, new TEXT);
CREATE INDEX change_run ON change (run);
CREATE TABLE series (id INTEGER PRIMARY KEY, kind TEXT, test TEXT, name TEXT, measure TEXT, less_is_better INTEGER,
    UNIQUE (kind, test, name, measure));
CREATE TABLE figure (series INTEGER, unit INTEGER, run INTEGER, value REAL, spread REAL,
    PRIMARY KEY (series, unit, run)) WITHOUT ROWID;
"""
"""A unit is a node (machines.py), or a GPU by its UUID, whichever node it is in (part.node). A trait is the latest of
its unit, and change says when it changed. A series of all ranks together has the kind of job, and figures of unit 0."""
OF_RUN = ("part", "status", "finding", "change", "figure")
SLOWER = ("slower_than_baseline", "slower_than_history")
"""A run that was reported as slower than others does not serve as a measure for later runs."""
DAY_S = 86400.0


def prepare(database: sqlite3.Connection) -> None:
    """Creates missing tables. Raises ValueError if the database is another program's, or a newer preflight's."""
    known = database.execute("PRAGMA application_id").fetchone()[0]
    if known == APPLICATION:
        database.execute(machines.TABLE)
        return
    if known or database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise ValueError("it is a database of another program")
    for statement in (*TABLES.split(";\n"), machines.TABLE):
        database.execute(statement)
    database.execute(f"PRAGMA application_id = {APPLICATION}")


def seconds(started: str) -> float:
    """Seconds since 1970 for "2026-01-31T12:00:00Z". Raises ValueError."""
    return datetime.fromisoformat(started).timestamp()


def time_text(started: float) -> str:
    """The reverse of `seconds`."""
    return datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def add(database: sqlite3.Connection, entry: RunEntry) -> None:
    """Adds an entry; one that already exists changes nothing. In the caller's transaction."""
    sound = entry.verdict in ("pass", "warn") and not any(finding.code.endswith(SLOWER) for finding in entry.findings)
    row = (entry.run, seconds(entry.started), entry.kind, entry.verdict, sound)
    done = database.execute(
        "INSERT OR IGNORE INTO run (name, started, kind, verdict, sound) VALUES (?, ?, ?, ?, ?)", row
    )
    if not done.rowcount:
        return
    run = done.lastrowid or 0
    units = machines.settle(database, entry, run)
    units |= _units(database, entry.places)
    places = {**{node: node for node in entry.nodes}, **entry.places}
    database.executemany(
        "INSERT INTO part VALUES (?, ?, ?)", [(run, units[unit], units[node]) for unit, node in places.items()]
    )
    database.executemany("INSERT INTO status VALUES (?, ?, ?)", [(run, *pair) for pair in entry.checks.items()])
    database.executemany("INSERT INTO finding VALUES (?, ?, ?, ?, ?)", _findings(entry, run, units))
    _add_traits(database, entry, run, units)
    _add_figures(database, entry, run, units)


def _units(database: sqlite3.Connection, names: Iterable[str]) -> dict[str, int]:
    listed = [(name,) for name in names]
    database.executemany("INSERT OR IGNORE INTO unit (name) VALUES (?)", listed)
    return {name: database.execute("SELECT id FROM unit WHERE name = ?", (name,)).fetchone()[0] for (name,) in listed}


def _findings(entry: RunEntry, run: int, units: Mapping[str, int]) -> list[tuple[Any, ...]]:
    """One row per node or GPU that a finding blames; one row without, if it blames none."""
    rows = []
    for finding in entry.findings:
        named = [finding.gpu] if finding.gpu in units else [node for node in finding.nodes if node in units]
        about = (run, finding.code, finding.severity)
        rows += [(*about, units.get(unit), finding.message) for unit in (named or [""]) * finding.counts]
    return rows


Key = tuple[int, str, str, str]
"""Unit, kind, check and name of a trait."""


def _add_traits(database: sqlite3.Connection, entry: RunEntry, run: int, units: Mapping[str, int]) -> None:
    """Adds the traits that changed on their unit; one that is gone from a node that measured becomes ""."""
    now: dict[Key, str] = {
        (units[unit], *trait.of): value for trait in entry.traits for unit, value in trait.values.items()
    }
    before: dict[Key, str] = {
        (unit, kind, check, name): value
        for unit in units.values()
        for kind, check, name, value in database.execute(
            "SELECT kind, test, name, value FROM trait WHERE unit = ?", (unit,)
        )
    }
    nodes = {units[node]: node for node in entry.nodes}
    gone = [key for key in before.keys() - now.keys() if key[0] in nodes]
    now |= {key: "" for key in gone if nodes[key[0]] not in entry.absent.get(key[2], [nodes[key[0]]])}
    changed = [(key, value) for key, value in now.items() if before.get(key, "") != value]
    known = {unit for unit, *_ in before}
    database.executemany("INSERT OR REPLACE INTO trait VALUES (?, ?, ?, ?, ?)", [(*key, now) for key, now in changed])
    database.executemany(
        "INSERT INTO change VALUES (?, ?, ?, ?, ?, ?)",
        [(run, unit, kind, name, before.get((unit, kind, check, name), ""), value)
         for (unit, kind, check, name), value in changed if unit in known],
    )  # fmt: skip


def _add_figures(database: sqlite3.Connection, entry: RunEntry, run: int, units: Mapping[str, int]) -> None:
    rows = []
    for figure in entry.figures:
        if not figure.least:
            continue
        of = (entry.kind if figure.of_job else "", *figure.of)
        database.execute(
            "INSERT OR IGNORE INTO series (kind, test, name, measure, less_is_better) VALUES (?, ?, ?, ?, ?)",
            (*of, figure.less_is_better),
        )
        where = "kind = ? AND test = ? AND name = ? AND measure = ?"
        series = database.execute(f"SELECT id FROM series WHERE {where}", of).fetchone()[0]  # noqa: S608 -- a constant
        if figure.of_job:
            rows.append((series, 0, run, figure.value, figure.spread))
        rows += [(series, units[unit], run, value, 0.0) for unit, value in figure.units.items() if unit in units]
    database.executemany("INSERT OR REPLACE INTO figure VALUES (?, ?, ?, ?, ?)", rows)


def forget(database: sqlite3.Connection, before: float) -> None:
    """Drops the runs that started before this time. The latest traits of each unit stay."""
    old = database.execute("SELECT id FROM run WHERE started < ?", (before,)).fetchall()
    if old:
        for table in OF_RUN:
            database.executemany(f"DELETE FROM {table} WHERE run = ?", old)  # noqa: S608 -- a constant
        database.executemany("DELETE FROM run WHERE id = ?", old)
