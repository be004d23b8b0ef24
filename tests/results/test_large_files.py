"""A file is judged by its size and its beginning before it is read: JSON takes several times its size in memory."""

import json
import os
from pathlib import Path

import pytest

from preflight.errors import UsageError
from preflight.results import report_files

BEGINNINGS = {"no JSON": b"\0", "a list": b"[1, 2", "another object": b'{"a": 1', "a log": b"step 1\n"}


def made(path: Path, head: bytes, size: int) -> str:
    """A file with holes: it takes no room."""
    path.write_bytes(head)
    os.truncate(path, size)
    return str(path)


@pytest.mark.parametrize("head", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_large_file_that_does_not_begin_as_a_report_is_not_read(
    head: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json, "load", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(UsageError, match="is 1,073,741,824 bytes, expected a report of at most 268,435,456"):
        report_files.load(made(tmp_path / "gib", head, 1 << 30))
    with pytest.raises(UsageError, match="is 104,857,600 bytes and does not begin as a report of preflight"):
        report_files.load(made(tmp_path / "mib", head, 100 << 20))


def test_one_that_begins_as_a_report_is_read_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = b'{\n "schema": 1,\n "checks": '
    monkeypatch.setattr(report_files, "LARGEST", 20 << 20)
    monkeypatch.setattr(json, "load", lambda *_, **__: {"schema": 1, "checks": []})
    with pytest.raises(UsageError, match="is not a complete report"):  # it was read
        report_files.load(made(tmp_path / "some", head, 10 << 20))
    with pytest.raises(UsageError, match="expected a report of at most"):
        report_files.load(made(tmp_path / "more", head, 21 << 20))
