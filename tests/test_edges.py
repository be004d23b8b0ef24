"""What `make test-floor` and `make test-newest` install."""

from pathlib import Path

import pytest

from tests import edges


def test_a_floor_is_exactly_what_pyproject_promises() -> None:
    promised = [text.split(">=") for text in edges.dependencies("newest")]
    assert edges.dependencies("floor") == [f"{name}=={version}" for name, version in promised]
    assert {name for name, _ in promised} == {"torch", "numpy", "psutil", "nvidia-ml-py", "rich", "jinja2"}


def test_the_tools_have_one_version() -> None:
    wanted = edges.TOOLS
    assert [line.partition("==")[0] for line in edges.pinned(*wanted)] == list(wanted)


def test_a_python_that_is_not_here_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(edges.CannotInstall, match=r"^Python 3\.11 with venv is not on this machine"):
        edges.python("floor")
    with pytest.raises(edges.CannotInstall, match=r"^Python 3\.11 or newer with venv is not on this machine"):
        edges.python("newest")


def test_what_cannot_be_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(edges, "python", lambda _: "python3")
    monkeypatch.setattr(edges, "_run", lambda _: False)
    with pytest.raises(edges.CannotInstall, match=r"torch==.* cannot be installed for Python 3\.11 here"):
        edges.install("floor", tmp_path)
    assert not (tmp_path / edges.DONE).exists()
