"""What a check's plan asks of the engine beside measuring: fresh workers, and to be left out where it applies to
nothing."""

from pathlib import Path

import pytest

from tests import running
from tests.running import Finished


def run(tmp_path: Path, world: int, *plugins: str, more: tuple[str, ...] = (), **environ: str) -> Finished:
    words = [word for name in plugins for word in ("--plugin", str(running.PLUGINS / f"{name}.py"))]
    chosen = ",".join(f"plugin.{name}" for name in plugins)
    ranks = running.plain_ranks(world, None, **environ)
    return running.run_ranks(tmp_path, ranks, "--level", "standard", *words, "--only", chosen, *more)


@pytest.mark.parametrize("fresh", ["always", "with its option", ""])
def test_before_a_fresh_check_the_workers_of_all_ranks_have_ended(tmp_path: Path, fresh: str) -> None:
    (tmp_path / "workers").mkdir()
    environ = {"TEST_FOLDER": str(tmp_path / "workers"), "TEST_FRESH": fresh}
    more = ("--set", "plugin.fresh.code=mine") if fresh == "with its option" else ()
    finished = run(tmp_path, 3, "holds", "fresh", more=more, **environ)
    assert [finding["code"] for finding in finished.findings()] == ([] if fresh else ["plugin.fresh.held"]), (
        finished.told()
    )
    assert finished.check("plugin.fresh")["picture"] == ["rank 0 asked 3 OK"]
    assert "    │ rank 0 asked 3 OK" in finished.output.splitlines(), finished.told()
    assert "rank 0 asked 3 OK" in (tmp_path / "report.md").read_text()
    assert "rank 0 asked 3 OK" in (tmp_path / "report.html").read_text()


def quick(tmp_path: Path, *arguments: str, here: str = "") -> Finished:
    plugin = ("--plugin", str(running.PLUGINS / "absent.py"))
    ranks = running.plain_ranks(2, TEST_HERE=here)
    return running.run_ranks(tmp_path, ranks, "--skip", "comm,train,net,gpu,node", *plugin, *arguments)


def test_a_check_that_applies_to_no_rank_is_left_out(tmp_path: Path) -> None:
    finished = quick(tmp_path, "--strict")
    assert set(finished.exit_codes) == {0} and "absent" not in finished.output, finished.told()
    assert "plugin.absent" not in [check["check"] for check in finished.report["checks"]]


def test_asked_for_by_name_it_says_why_it_was_skipped(tmp_path: Path) -> None:
    finished = quick(tmp_path, "--only", "plugin.absent")
    assert finished.check("plugin.absent")["skipped"] == "there is no such thing here", finished.told()
    assert finished.report["verdict"] == "error"  # nothing was measured


def test_where_it_applies_to_some_ranks_the_others_are_a_skip(tmp_path: Path) -> None:
    finished = quick(tmp_path, here="1")
    assert finished.check("plugin.absent")["status"] == "skip", finished.told()
    assert finished.check("plugin.absent")["skipped"] == "rank 0: there is no such thing here"


def test_without_what_it_reads_a_check_is_skipped(tmp_path: Path) -> None:
    plugins = [word for name in ("holds", "fresh") for word in ("--plugin", str(running.PLUGINS / f"{name}.py"))]
    ranks = running.plain_ranks(1, None, TEST_FOLDER=str(tmp_path))
    finished = running.run_ranks(tmp_path, ranks, *plugins, "--only", "plugin.fresh", "--skip", "plugin.holds")
    assert finished.check("plugin.fresh")["skipped"] == "needs plugin.holds, which was not selected", finished.told()


def test_what_a_rank_hands_over_with_its_skip_is_judged(tmp_path: Path) -> None:
    """Also where the check applies to no rank, and would be left out."""
    finished = quick(tmp_path, here="facts")
    assert [finding["code"] for finding in finished.findings()] == ["plugin.absent.found"], finished.told()
    assert finished.check("plugin.absent")["skipped"] == "there is no such thing here"
