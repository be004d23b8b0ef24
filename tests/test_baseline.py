"""--baseline: a run is held against an earlier one of the same shape, and its report stands by itself."""

from pathlib import Path

from tests import running

COMPARES = ("--plugin", str(running.PLUGINS / "compares.py"), "--only", "plugin.compares")


def _run(folder: Path, *arguments: str, world: int = 3) -> running.Finished:
    folder.mkdir()
    return running.run_ranks(folder, running.plain_ranks(world), *COMPARES, *arguments)


def _show(folder: Path, *arguments: str) -> str:
    run = running.Run(folder)
    run.start(running.preflight("show", str(folder), *arguments), running.environment())
    return run.finish().output


def test_a_later_run_is_held_against_an_earlier_one(tmp_path: Path) -> None:
    first = _run(tmp_path / "first", "--set", "plugin.compares.speed=5")
    assert first.findings() == [] and first.exit_codes == [0, 0, 0], first.told()
    parts = [[12.0, 12.0], [12.0, 12.0], [21.0, 21.0]]
    assert first.check("plugin.compares")["summary"] == f"0 of 3 ranks have a baseline; {parts}"
    later = _run(tmp_path / "later", "--baseline", str(tmp_path / "first"))
    assert [(finding["where"]["rank"], finding["message"]) for finding in later.findings()] == [
        (rank, "1, before 5") for rank in range(3)
    ], later.told()
    (tmp_path / "first" / "report.json").unlink()  # judged again without it
    assert "1, before 5" in _show(tmp_path / "later", "--judge", *COMPARES[:2])
    _is_refused_of_another_size(tmp_path, "later")


def _is_refused_of_another_size(tmp_path: Path, earlier: str) -> None:
    finished = _run(tmp_path / "two", "--baseline", str(tmp_path / earlier), world=2)
    (found,) = finished.findings()
    assert (found["severity"], found["code"]) == ("warn", "preflight.run.baseline"), finished.told()
    assert "is of 3 ranks on gloo, expected 2 ranks on gloo" in found["message"]
    assert "0 of 2 ranks have a baseline" in finished.check("plugin.compares")["summary"]
    (tmp_path / earlier / "facts.jsonl.gz").unlink()
    refused = _run(tmp_path / "refused", "--baseline", str(tmp_path / earlier), world=1)
    assert refused.exit_codes == [2] and "there are no facts beside it" in refused.output, refused.told()
