"""Every row of the fault table, on real ranks."""

from pathlib import Path
from typing import Any

import pytest

from tests import faults, running
from tests.faults import row
from tests.faults.row import Fault
from tests.pages import Page
from tests.running import Finished


@pytest.mark.parametrize("rows", row.params(row.runs(faults.ALL)))
def test_fault_is_found_and_named(rows: tuple[Fault, ...], tmp_path: Path) -> None:
    run = row.as_one(rows)
    finished = _run(run, tmp_path)
    found = finished.findings(finds=run.finds)
    told = finished.told()
    assert len(found) == len(run.finds), told
    for fault in rows:
        own = found if len(rows) == 1 else _about(fault, found)
        _is_told_by(own, fault, told)
    assert finished.report["exit_code"] == run.exit_code, told
    if len(rows) == 1 and any(not find.startswith("info") for find in run.finds):
        first_screen = Page((tmp_path / "report.html").read_text()).verdict
        assert all(str(value) in first_screen for value in run.culprit.values()), first_screen
    assert finished.left_over == [], told
    assert finished.seconds < run.deadline_s + running.PATIENCE_S
    if run.after is not None:
        assert finished.check("plugin.after")["summary"] == f"{run.after} members, sum {run.after}", told
    if run.launcher == "plain" and run.after == run.world:
        assert finished.exit_codes == [run.exit_code] * run.world, told


def _about(fault: Fault, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What its own checks say of its own culprit, where others share the run."""
    checks = {slug.split()[-1].rpartition(".")[0] for find in fault.finds for slug in find.split(" or ")}
    mine = [finding for finding in found if finding["code"].rpartition(".")[0] in checks]
    return [finding for finding in mine if fault.culprit.items() <= finding["where"].items()]


def _is_told_by(found: list[dict[str, Any]], fault: Fault, told: str) -> None:
    codes = sorted(f"{f['severity']} {f['code']}" for f in found)
    assert len(codes) == len(fault.finds), f"{fault.name}: {told}"
    wanted = [slugs.split(" or ") for slugs in sorted(fault.finds)]
    assert all(code in slugs for code, slugs in zip(codes, wanted, strict=True)), f"{fault.name}: {told}"
    for finding in found:
        _is_right(finding, fault, f"{fault.name}: {told}")


def _is_right(finding: dict[str, Any], fault: Fault, told: str) -> None:
    for key, value in fault.culprit.items():
        assert finding["where"].get(key) == value, told
    if "rank" not in fault.culprit:
        assert "rank" not in finding["where"], f"a healthy rank is blamed: {told}"
    assert finding["noticed_by"] == fault.noticed_by, told
    assert fault.says in finding["message"], told
    assert "\n" not in finding["message"], f"a stack belongs into the evidence: {told}"
    assert finding["fix"], told


def _run(fault: Fault, folder: Path) -> Finished:
    arguments = ["--only", ",".join(fault.only)]
    for plugin in fault.plugins:
        arguments += ["--plugin", plugin]
    for name, value in fault.settings.items():
        arguments += ["--set", f"{name}={value}"]
    if fault.launcher == "torchrun":
        return running.run_torchrun(folder, fault.world, *arguments, deadline_s=fault.deadline_s)
    if fault.launcher == "plain":
        plain = enumerate(running.plain_ranks(fault.world))
        ranks = [{**env, **fault.environ, **fault.environ_of.get(rank, {})} for rank, env in plain]
        if needs_alone(fault):
            ranks = [row.briefly_alone(env) for env in ranks]
        return running.run_ranks(folder, ranks, *arguments, deadline_s=fault.deadline_s, stopped=fault.stopped)
    with running.store_server() as (port, pid):
        ranks = running.plain_ranks(fault.world, port, TORCHELASTIC_USE_AGENT_STORE="True", TEST_STORE_PID=str(pid))
        return running.run_ranks(folder, ranks, *arguments, deadline_s=fault.deadline_s)


def needs_alone(fault: Fault) -> bool:
    """Whether train.alone is what another check needs, and not what the row is about."""
    return fault.only[0].startswith("train.") and "train.alone" not in fault.only


def test_the_page_is_fresh() -> None:
    assert faults.DOCS.read_text() == faults.page(), "run python -m tests.faults"


def test_who_waits_for_a_rank_that_failed_is_ended_long_before_the_deadline(tmp_path: Path) -> None:
    """gloo alone would let them wait 28 s here, and NCCL for ever."""
    ranks = [{**env, "TEST_CHECK_DEADLINE_S": "40"} for env in running.plain_ranks(3)]
    words = ["--only", "plugin", "--plugin", "together", "--plugin", "after", "--set", "plugin.together.deed=raise"]
    finished = running.run_ranks(tmp_path, ranks, *words, deadline_s=90)
    (found,) = finished.findings()
    assert (found["where"]["rank"], found["noticed_by"]) == (1, "0,2"), finished.told()
    ended = [outcome for outcome in finished.check("plugin.together")["outcomes"] if outcome["aborted"]]
    assert {outcome["ranks"] for outcome in ended} <= {"0", "2", "0,2"} and ended, finished.told()
    assert all("rank 1 could not continue" in outcome["reason"] for outcome in ended), finished.told()
    assert finished.check("plugin.after")["summary"] == "3 members, sum 3", finished.told()
