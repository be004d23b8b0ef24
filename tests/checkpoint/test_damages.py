"""Each row of tests/faults/checkpoint_command.py: the damage is real, and found, and nothing else."""

import errno
from pathlib import Path

import pytest

from preflight.checkpoint import codes
from tests.checkpoint import saved
from tests.checkpoint.damages import DAMAGES, MODEL
from tests.faults import ELSEWHERE, checkpoint_command
from tests.fuse import NUMBERS, SILENT, Call, File, mounted

pytestmark = pytest.mark.process
ON_FUSE = {"disk_error": {Call.READ: errno.EIO}, "dead_server": {Call.READ: SILENT}}


def hold(name: str, report: dict[str, object]) -> None:
    row = ELSEWHERE[f"saved_{name}"]
    (check,) = report["checks"]  # type: ignore[misc]
    assert row.is_told_by(check["findings"]), check["findings"]  # type: ignore[has-type]
    assert row.says in check["findings"][0]["message"]  # type: ignore[has-type]
    assert report["exit_code"] == row.exit_code


def test_each_row_has_its_damage_and_each_code_a_row() -> None:
    rows = checkpoint_command.ELSEWHERE
    assert {row.name.removeprefix("saved_") for row in rows} == {*DAMAGES, *ON_FUSE}
    held = {word.split()[-1].rpartition(".")[2] for row in rows for find in row.finds for word in find.split(" or ")}
    assert held == set(codes.by_slug())


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damage_is_found(name: str, tmp_path: Path, two_ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    hold(name, saved.look(DAMAGES[name](folder, two_ranks), MODEL.get(name, "")))
    assert not list(tmp_path.rglob("hacked")), "a pickle was executed"


@pytest.mark.parametrize("name", ON_FUSE)
def test_a_file_system_that_fails(name: str, tmp_path: Path) -> None:
    files: dict[int, File] = {next(NUMBERS): ("model.pt", bytearray(100_000))}
    try:
        with mounted(tmp_path / "mount", ON_FUSE[name], files=files) as system:
            hold(name, saved.look(system.folder / "model.pt", timeout_s=5.0))
    except OSError as error:
        pytest.skip(f"no FUSE here: {error.strerror}")
