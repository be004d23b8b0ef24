"""Where a history lies: a SQLite file; or a folder with a file per run, where a file cannot be shared.

A writer has the file to itself for as long as a transaction takes; others wait for it. SQLite's locks and its journal
do not hold on a network file system (sqlite.org/faq.html, question 5), so there the history is a folder: a run's file
comes whole, by rename, and is never changed. Its index is a SQLite file of the reader's own, brought up to date when it
reads.
"""

import contextlib
import gzip
import hashlib
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import psutil

from preflight.core.exceptions import in_one_line
from preflight.errors import UsageError
from preflight.history import rows
from preflight.results import report
from preflight.sdk.file_systems import LOCAL, MEMORY

WAIT_S = 3.0
"""For another writer."""
ENDING = ".json.gz"
NO_VALUES = sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.IntegrityError
"""What SQLite raises for values that it does not take. A full disk or a lock is none of these."""
AT_ONCE = 200
"""Files that a reader takes in, about 0.3 s, before it keeps them: `--baseline auto` has 10 s."""


def write(path: str, entry: Mapping[str, Any], keep_days: float) -> None:
    """Adds the run and forgets those that are older. Raises OSError, ValueError and sqlite3.Error."""
    before = time.time() - keep_days * rows.DAY_S
    if is_folder(path):
        _write_file(path, entry, before)
        return
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise FileNotFoundError("the folder that it would lie in is not there")
    with contextlib.closing(_connect(path)) as database, _transaction(database):
        rows.prepare(database)
        rows.add(database, entry)
        rows.forget(database, before)


def is_folder(path: str) -> bool:
    """Whether it is one, or becomes one since a file would lie on a file system that may be shared."""
    return os.path.isdir(path) or (not os.path.exists(path) and may_be_shared(path))


def may_be_shared(path: str) -> bool:
    """Whether it lies on a network file system, or on a type that is not known to be this node's alone."""
    real = os.path.realpath(path)
    mounts = [mount for mount in psutil.disk_partitions(all=True) if _is_below(real, mount.mountpoint)]
    nearest = max(mounts, key=lambda mount: len(mount.mountpoint), default=None)
    return nearest is not None and nearest.fstype not in LOCAL | MEMORY


def _is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def _connect(path: str) -> sqlite3.Connection:
    """Transactions are begun by hand."""
    return sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """One writer at a time."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


@contextlib.contextmanager
def _part(database: sqlite3.Connection) -> Iterator[None]:
    """Of a transaction: all of it, or nothing."""
    database.execute("SAVEPOINT part")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK TO part")
        raise
    finally:
        database.execute("RELEASE part")


def _write_file(folder: str, entry: Mapping[str, Any], before: float) -> None:
    os.makedirs(folder, exist_ok=True)
    oldest = rows.time_text(max(before, 0.0))
    with report.replacing(os.path.join(folder, f"{entry['started']}-{entry['run']}{ENDING}")) as file:
        file.write(gzip.compress(json.dumps(entry, allow_nan=False).encode(), 6, mtime=0))
    for name in _files(folder):
        if name < oldest:
            with contextlib.suppress(FileNotFoundError):  # another writer did it
                os.unlink(os.path.join(folder, name))


def _files(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(ENDING))


@contextlib.contextmanager
def reading(path: str) -> Iterator[sqlite3.Connection]:
    """The history, to be asked. Raises UsageError for what is none."""
    try:
        with contextlib.closing(_index(path) if os.path.isdir(path) else _opened(path)) as database:
            yield database
    except (OSError, sqlite3.Error, *report.BROKEN) as error:
        raise UsageError(f"{path}: is no history that can be read ({in_one_line(error)})", everywhere=False) from None


def _opened(path: str) -> sqlite3.Connection:
    """What a killed writer has left is undone by SQLite, which needs to write for that."""
    with open(path, "rb") as file:  # SQLite would make a file that is not there
        file.read(1)
    database = _connect(path)
    if database.execute("PRAGMA application_id").fetchone()[0] != rows.APPLICATION:
        database.close()
        raise ValueError("it is not preflight's")
    return database


def _index(folder: str) -> sqlite3.Connection:
    """Of the runs' files. One that cannot be read is left out. A reader that is ended goes on from there next time."""
    database = _own_index(folder)
    with _transaction(database):
        rows.prepare(database)
        database.execute("CREATE TABLE IF NOT EXISTS file (name TEXT PRIMARY KEY, run TEXT)")
        known = dict(database.execute("SELECT name, run FROM file"))
        there = _files(folder)
        for name in set(known) - set(there):
            started = database.execute("SELECT started FROM run WHERE name = ?", (known[name],)).fetchone()
            rows.forget(database, started[0] + 0.5 if started else 0.0)
            database.execute("DELETE FROM file WHERE name = ?", (name,))
    new = sorted(set(there) - set(known))
    for at in range(0, len(new), AT_ONCE):
        with _transaction(database):
            for name in new[at : at + AT_ONCE]:
                _take_in(database, folder, name)
    return database


def _take_in(database: sqlite3.Connection, folder: str, name: str) -> None:
    """Also what another reader has taken in since."""
    with contextlib.suppress(OSError, EOFError, zlib.error, *NO_VALUES, *report.BROKEN), _part(database):
        with gzip.open(os.path.join(folder, name), "rt") as file:
            entry = json.load(file)
        rows.add(database, entry)
        database.execute("INSERT OR IGNORE INTO file VALUES (?, ?)", (name, entry["run"]))


def _own_index(folder: str) -> sqlite3.Connection:
    """In the user's cache; in memory where that cannot be written."""
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "preflight")
    name = hashlib.sha256(os.path.realpath(folder).encode()).hexdigest()[:16]
    try:
        os.makedirs(cache, mode=0o700, exist_ok=True)
        database = _connect(os.path.join(cache, f"history-{name}.sqlite"))
        database.execute("BEGIN IMMEDIATE")
        database.execute("ROLLBACK")
        return database
    except (OSError, sqlite3.Error):
        return _connect(":memory:")
