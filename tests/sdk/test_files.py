import os
from pathlib import Path

import pytest

from preflight.sdk import files


def test_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b" 25000\xff\n")
    (tmp_path / "a").mkdir()
    assert files.read(str(tmp_path / "b")) == "25000�" and files.entries(str(tmp_path)) == ["a", "b"]


def test_what_is_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    for path in (str(tmp_path), str(tmp_path / "no"), "/proc/self/mem"):
        assert files.read(path) == ""
    assert files.entries(str(tmp_path / "no")) == files.entries("/proc/version") == []


def test_the_state_of_a_process() -> None:
    assert files.state_of(os.getpid()) == "R" and files.state_of(2**22 + 1) == ""


def test_the_wait_for_a_core_where_the_kernel_does_not_count_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is missing, or is empty."""
    assert files.core_wait_s() >= 0.0
    monkeypatch.setattr(files, "read", lambda _: "")
    assert files.core_wait_s() == 0.0
