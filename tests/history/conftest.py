"""A history of both kinds."""

from pathlib import Path

import pytest


@pytest.fixture(params=["file", "folder"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "folder":
        (tmp_path / "history").mkdir()
    return tmp_path / "history"
