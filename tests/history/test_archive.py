"""The file and the folder of a history: writers that are killed, two writers, a file that is none, and age."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from preflight.errors import UsageError
from preflight.history import archive
from tests import running
from tests.history.made import entry
from tests.history.told import dispatched, refused

KEEP = 36500.0
WRITER = """
import sys
from preflight.history import archive
from tests.history.made import entry
path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
archive.WAIT_S = 100.0  # a busy machine may stop the other writer in its transaction
for number in range(first, first + count):
    archive.write(path, entry(number), 36500.0)
    print(number, flush=True)
"""


def _writer(path: Path, first: int, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(path), str(first), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=running.environment())


def _runs(path: Path) -> list[str]:
    with archive.reading(str(path)) as database:
        return [name for (name,) in database.execute("SELECT name FROM run ORDER BY name")]


def test_two_writers_lose_nothing(path: Path) -> None:
    writers = [_writer(path, first, 25) for first in (0, 100)]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    assert _runs(path) == [f"run-{number:05}" for first in (0, 100) for number in range(first, first + 25)]


def test_a_killed_writer_leaves_a_file_that_can_be_read_and_written(path: Path) -> None:
    with _writer(path, 0, 10_000) as writer:
        assert writer.stdout
        said = [int(writer.stdout.readline()) for _ in range(5)]
        os.kill(writer.pid, signal.SIGKILL)
        said += [int(line) for line in writer.stdout.read().split()]
    assert set(_runs(path)) >= {f"run-{number:05}" for number in said}
    archive.write(str(path), entry(20_000), KEEP)
    assert _runs(path)[-1] == "run-20000"


def test_a_writer_that_is_killed_within_its_transaction_is_undone(tmp_path: Path) -> None:
    """The pages that it has changed are on the disk already, and the journal beside them."""
    path = tmp_path / "history"
    archive.write(str(path), entry(0), KEEP)
    code = (
        "import sqlite3, sys, os, signal; d = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "d.execute('PRAGMA cache_size = 1'); d.execute('BEGIN IMMEDIATE'); d.execute('DELETE FROM part');"
        "d.executemany('INSERT INTO finding VALUES (1, ?, ?, 1, ?)', [('c' * 500, 'fail', 'm' * 500)] * 2000);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL and Path(f"{path}-journal").stat().st_size > 0
    with archive.reading(str(path)) as database:
        assert database.execute("SELECT count(*) FROM finding").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM part").fetchone() == (2,)


def test_a_run_is_kept_once_and_old_ones_go(path: Path) -> None:
    now = (time.time() - time.mktime((2026, 1, 1, 0, 0, 0, 0, 0, 0))) / 3600
    for number, age_days in ((0, 400), (1, 300), (2, 0)):
        for _ in range(2):
            archive.write(str(path), entry(number, hours=now - 24 * age_days), 365.0)
    assert _runs(path) == ["run-00001", "run-00002"]
    archive.write(str(path), entry(3, hours=now), 30.0)
    assert _runs(path) == ["run-00002", "run-00003"]


def test_a_file_of_a_folder_that_cannot_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")  # the index is in memory then
    folder = tmp_path / "history"
    folder.mkdir()
    archive.write(str(folder), entry(0), KEEP)
    (folder / "2026-01-01T00:00:00Z-torn.json.gz").write_bytes(b"\x1f\x8b torn")
    (folder / "notes.txt").write_text("mine")
    assert _runs(folder) == ["run-00000"]


def test_a_reader_that_is_ended_keeps_what_it_has_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(archive, "AT_ONCE", 2)
    folder, taken = tmp_path / "runs", []
    folder.mkdir()
    for number in range(5):
        archive.write(str(folder), entry(number), 1e6)

    def ended(*about: Any) -> None:
        taken.append(about)
        if len(taken) == 4:
            raise KeyboardInterrupt
        take_in(*about)

    take_in = archive._take_in
    monkeypatch.setattr(archive, "_take_in", ended)
    with pytest.raises(KeyboardInterrupt), archive.reading(str(folder)):
        pass
    with archive.reading(str(folder)) as database:
        assert len(taken) == 4 + 3 and database.execute("SELECT count(*) FROM run").fetchone() == (5,)


def test_on_a_network_file_system_it_becomes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "may_be_shared", lambda _: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive.write(str(tmp_path / "history"), entry(0), KEEP)
    assert (tmp_path / "history").is_dir() and _runs(tmp_path / "history") == ["run-00000"]


@pytest.mark.parametrize(
    ("types", "is_folder"),
    [({"/": "ext4"}, False), ({"/": "ext4", "/data": "nfs4"}, True), ({"/": "nfs", "/data": "xfs"}, False),
     ({"/": "overlay", "/data/deep": "nfs"}, False), ({"/": "xfs", "/data": "tmpfs"}, False),
     ({"/": "xfs", "/data": "fuse.tomorrowfs"}, True), ({}, False)],
)  # fmt: skip
def test_the_mount_that_is_nearest_decides_and_an_unknown_type_may_be_shared(
    types: dict[str, str], is_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = [SimpleNamespace(mountpoint=point, fstype=type_) for point, type_ in types.items()]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)  # noqa: A006, ARG005 -- psutil's
    assert archive.is_folder("/data/history") == is_folder


def test_what_is_no_history_is_refused_and_left_alone(tmp_path: Path) -> None:
    assert "is not a readable history" in refused("history", str(tmp_path / "none"))
    text, other = tmp_path / "text", tmp_path / "other.sqlite"
    text.write_text("no database, but a text that somebody needs\n" * 50)
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE mine (id INTEGER)")
    for path in (text, other):
        before = path.read_bytes()
        assert "is not a readable history" in refused("history", str(path))
        with pytest.raises((sqlite3.Error, ValueError)):
            archive.write(str(path), entry(0), KEEP)
        assert path.read_bytes() == before
    with pytest.raises(UsageError), archive.reading(str(text)):
        pass


def test_the_command_prints_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        archive.write(str(tmp_path / "h"), entry(number), KEEP)
    found, screen = dispatched(capsys, "history", str(tmp_path / "h"))
    assert found["runs"] == 3 and ": 3 runs, from 2026-01-01T00:00:00Z to " in screen
    assert "nodes that fail again and again, of the last 30 days: none" in screen
    assert json.dumps(found)
