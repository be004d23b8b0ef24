"""--baseline: a run is held against an earlier one of the same shape, and its report stands by itself."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from preflight.core.answer import Failure, FailureKind
from preflight.core.job import Job
from preflight.engine import baseline
from tests import running

SLOWER = "speed 1 GB/s is 20% of 5, the baseline's (spread 0.0%), expected at least 80%"
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
    assert first.check("plugin.compares")["summary"] == f"[] before; {parts}"
    later = _run(tmp_path / "later", "--baseline", str(tmp_path / "first"))
    (slow,) = later.findings()
    assert (slow["severity"], slow["code"]) == ("warn", "plugin.compares.slower_than_baseline"), later.told()
    assert slow["message"] == SLOWER and later.check("plugin.compares")["status"] == "warn"
    assert later.check("plugin.compares")["summary"].startswith("['5 GB/s'] before"), later.told()
    (tmp_path / "first" / "report.json").unlink()  # judged again without it
    again = " ".join(_show(tmp_path / "later", "--judge", *COMPARES[:2]).split())
    assert SLOWER in again
    share = ("--set", "plugin.compares.baseline_share=0.1")
    assert SLOWER not in " ".join(_show(tmp_path / "later", "--judge", *COMPARES[:2], *share).split())
    _is_refused_of_another_size(tmp_path, "later")


def _is_refused_of_another_size(tmp_path: Path, earlier: str) -> None:
    finished = _run(tmp_path / "two", "--baseline", str(tmp_path / earlier), world=2)
    (found,) = finished.findings()
    assert (found["severity"], found["code"]) == ("warn", "preflight.run.baseline"), finished.told()
    assert "is of 3 ranks on gloo, expected 2 ranks on gloo" in found["message"]
    assert "[] before" in finished.check("plugin.compares")["summary"]
    (tmp_path / earlier / "facts.jsonl.gz").unlink()
    refused = _run(tmp_path / "refused", "--baseline", str(tmp_path / earlier), world=1)
    assert refused.exit_codes == [2] and "there are no facts beside it" in refused.output, refused.told()


def test_a_check_whose_earlier_facts_cannot_be_used_is_named(tmp_path: Path) -> None:
    """The later run's report is written where the earlier one lies."""
    _run(tmp_path / "first", world=1)
    path = tmp_path / "first" / "report.json"
    path.write_text(path.read_text().replace('"facts_version": 1', '"facts_version": 7'))
    later = running.run_ranks(tmp_path / "first", running.plain_ranks(1), *COMPARES, "--baseline", str(path.parent))
    found = later.findings(finds=("info preflight.run.baseline",))
    why = "plugin.compares: its facts are of version 7, expected 1"
    assert [finding["message"] for finding in found] == [f"not compared with --baseline {path.parent}: {why}"]


def test_a_baseline_whose_reading_hangs_is_a_warning() -> None:
    late: Any = SimpleNamespace(ask=lambda *_: Failure(FailureKind.TIMED_OUT, "did not end within 10.0 s"))
    figures, found = baseline.read(late, "good", Job("env", 3, "gloo", ()), {})
    assert found and (figures, found.severity, found.code) == ("", "warn", "preflight.run.baseline")
    assert found.message.endswith("reading it did not end within 10.0 s: nothing is compared with it")


def test_ranks_of_its_own_are_compared_with_the_report_that_they_replace(tmp_path: Path) -> None:
    words = ("--only", "env.launch", "--report", str(tmp_path / "kept"))
    for more in ((), ("--baseline", str(tmp_path / "kept"))):
        finished = running.run_to_end(running.preflight(*words, *more))
        assert finished.returncode == 0, finished.stdout + finished.stderr
