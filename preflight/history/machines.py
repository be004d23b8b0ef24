"""Finds the unit of a node in a history: by its machine's id before its name, since hosts are renamed.

An id that two nodes of one run share is an image's, and is no longer trusted: such nodes are known by their names.
"""

import sqlite3
from collections import Counter

from preflight.history.run_entry import RunEntry

TABLE = "CREATE TABLE IF NOT EXISTS machine (id TEXT PRIMARY KEY, unit INTEGER)"
"""Histories of earlier versions lack it. The unit of an id that is not trusted is 0."""


def known(database: sqlite3.Connection, entry: RunEntry) -> dict[str, int]:
    """The unit of each node of an entry that the history knows."""
    ids, units = _ids(entry), _machines(database)
    found = {node: units[id_] for node, id_ in ids.items() if units.get(id_)}
    taken = set(found.values())
    for node in entry.nodes:
        unit = _called(database, node)
        is_new = node in ids and ids[node] not in units  # then it is not the machine that had this name before
        if node not in found and unit and unit not in taken and not (is_new and unit in units.values()):
            found[node] = unit
    return found


def settle(database: sqlite3.Connection, entry: RunEntry, run: int) -> dict[str, int]:
    """Assigns each node of the run its unit, and the unit the newest name. In the caller's transaction."""
    units = known(database, entry)
    before = {unit: _name(database, unit) for unit in units.values()}
    for node in entry.nodes:
        holder = _called(database, node)
        if holder and holder != units.get(node):
            _call(database, holder, f"{node} (earlier machine, no. {holder})")
    for node in entry.nodes:
        if node not in units:
            units[node] = database.execute("INSERT INTO unit (name) VALUES (?)", (node,)).lastrowid or 0
        elif before[units[node]] != node:
            _call(database, units[node], node)
            _note(database, run, units[node], before[units[node]], node)
    trusted = {id_: units[node] for node, id_ in _ids(entry).items()}
    rows = {id_: trusted.get(id_, 0) for id_ in entry.machines.values()}
    gone = {id_ for id_, unit in _machines(database).items() if not unit}
    database.executemany(
        "INSERT OR REPLACE INTO machine VALUES (?, ?)", [(*row,) for row in rows.items() if row[0] not in gone]
    )
    return units


def _ids(entry: RunEntry) -> dict[str, str]:
    """Machine ids by node, without those that several nodes of the run share."""
    counts = Counter(entry.machines.values())
    return {node: id_ for node, id_ in entry.machines.items() if counts[id_] == 1}


def _machines(database: sqlite3.Connection) -> dict[str, int]:
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'machine'").fetchone():
        return {}
    return dict(database.execute("SELECT id, unit FROM machine"))


def _called(database: sqlite3.Connection, name: str) -> int:
    """The unit with this name; 0 if there is none."""
    found = database.execute("SELECT id FROM unit WHERE name = ?", (name,)).fetchone()
    return int(found[0]) if found else 0


def _name(database: sqlite3.Connection, unit: int) -> str:
    return str(database.execute("SELECT name FROM unit WHERE id = ?", (unit,)).fetchone()[0])


def _call(database: sqlite3.Connection, unit: int, name: str) -> None:
    database.execute("UPDATE unit SET name = ? WHERE id = ?", (name, unit))


def _note(database: sqlite3.Connection, run: int, unit: int, old: str, new: str) -> None:
    """Records a rename, unless only the number changed that separates nodes of one host name."""
    was = old.partition(" (earlier machine")[0]
    if was.partition("#")[0] != new.partition("#")[0]:
        database.execute("INSERT INTO change VALUES (?, ?, 'host', 'name', ?, ?)", (run, unit, was, new))
