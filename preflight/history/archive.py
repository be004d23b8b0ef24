"""The storage of a history: a SQLite file; or a folder with a file per run, where a file cannot be shared.

A writer locks the file for one transaction; others wait for it. SQLite's locks and its journal are not reliable on a
network file system (sqlite.org/faq.html, question 5), so there the history is a folder: a run's file appears complete,
by rename, and never changes. Its index is the reader's own SQLite file, updated on each read.
"""

import contextlib
import gzip
import hashlib
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator

import psutil

from preflight.core.exceptions import in_one_line
from preflight.errors import UsageError
from preflight.history import rows
from preflight.history.run_entry import RunEntry
from preflight.results import report_files
from preflight.sdk import paths
from preflight.sdk.file_systems import LOCAL, MEMORY

WAIT_S = 3.0
"""How long to wait for another writer."""
ENDING = ".json.gz"
NO_VALUES = sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.IntegrityError
"""What SQLite raises for values that it does not take. A full disk or a lock is none of these."""
NOT_OURS = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError)
"""What reading a run raises that somebody has changed."""
AT_ONCE = 200
"""Files that a reader adds per transaction, about 0.3 s: `--baseline auto` has 10 s."""


def write(path: str, entry: RunEntry, keep_days: float) -> None:
    """Adds the run and drops those older than `keep_days`. Raises OSError, ValueError and sqlite3.Error."""
    before = time.time() - keep_days * rows.DAY_S
    if is_folder(path):
        _write_file(path, entry, before)
        return
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise FileNotFoundError("its folder does not exist")
    with contextlib.closing(_connect(path)) as database, _transaction(database):
        rows.prepare(database)
        rows.add(database, entry)
        rows.forget(database, before)


def is_folder(path: str) -> bool:
    """Whether it is a folder, or becomes one because a file would be on a file system that may be shared."""
    return os.path.isdir(path) or (not os.path.exists(path) and may_be_shared(path))


def may_be_shared(path: str) -> bool:
    """Whether it is on a network file system, or on a type that is not known to be local to this node."""
    real = os.path.realpath(path)
    mounts = [mount for mount in psutil.disk_partitions(all=True) if _is_below(real, mount.mountpoint)]
    nearest = max(mounts, key=lambda mount: len(mount.mountpoint), default=None)
    return nearest is not None and nearest.fstype not in LOCAL | MEMORY


def _is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def _connect(path: str) -> sqlite3.Connection:
    """Opens a connection on which transactions are begun by hand."""
    return sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """A transaction with one writer at a time."""
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


def _write_file(folder: str, entry: RunEntry, before: float) -> None:
    os.makedirs(folder, exist_ok=True)
    oldest = rows.time_text(max(before, 0.0))
    with report_files.replacing(os.path.join(folder, f"{entry.started}-{entry.run}{ENDING}")) as file:
        file.write(gzip.compress(json.dumps(entry.to_json(), allow_nan=False).encode(), 6, mtime=0))
    for name in _files(folder):
        if name < oldest:
            with contextlib.suppress(FileNotFoundError):  # another writer did it
                os.unlink(os.path.join(folder, name))


def _files(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(ENDING))


@contextlib.contextmanager
def reading(path: str) -> Iterator[sqlite3.Connection]:
    """Opens the history for reading. Raises UsageError for something that is not a history."""
    try:
        with contextlib.closing(_index(path) if os.path.isdir(path) else _opened(path)) as database:
            yield database
    except (OSError, sqlite3.Error, *NOT_OURS) as error:
        raise UsageError(f"{path}: is not a readable history ({in_one_line(error)})", everywhere=False) from None


def _opened(path: str) -> sqlite3.Connection:
    """Opens a file for reading and writing: SQLite must be able to undo what a killed writer has left."""
    os.close(paths.opened(path))  # SQLite would create a missing file
    database = _connect(path)
    if database.execute("PRAGMA application_id").fetchone()[0] != rows.APPLICATION:
        database.close()
        raise ValueError("it is not preflight's")
    return database


def _index(folder: str) -> sqlite3.Connection:
    """The index of the runs' files, without those that cannot be read. The next reader goes on where one was ended."""
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
    """Adds one run's file, unless another reader has done so since."""
    with contextlib.suppress(OSError, EOFError, zlib.error, *NO_VALUES, *NOT_OURS), _part(database):
        with gzip.open(os.path.join(folder, name), "rt") as file:
            entry = RunEntry.from_json(json.load(file))
        rows.add(database, entry)
        database.execute("INSERT OR IGNORE INTO file VALUES (?, ?)", (name, entry.run))


def _own_index(folder: str) -> sqlite3.Connection:
    """A SQLite file in the user's cache; in memory if that cannot be written."""
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
