"""`preflight diff` between two real runs between which something was really changed."""

import gzip
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from preflight.core.finding import Reported
from tests import running
from tests.checks.gpu import in_machine
from tests.checks.gpu.in_machine import needs_machines
from tests.history.told import diff, refused
from tests.hosts import cluster, needs_hosts
from tests.made import finding, job, made_report, result
from tests.nodes import run_nodes
from tests.on_hosts import ranks_on
from tests.standin import machines

Capture = pytest.CaptureFixture[str]
ENV = ("--only", "env.variables,env.software")


def _run(folder: Path, *arguments: str, **environ: str) -> Path:
    folder.mkdir()
    ranks = running.plain_ranks(2, None, **environ)
    finished = running.run_ranks(folder, ranks, *(arguments or ENV), deadline_s=120)
    assert finished.exit_codes == [0, 0], finished.told()
    return folder


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _run(tmp_path_factory.mktemp("diff") / "before")


def _changes(found: Mapping[str, list[Mapping[str, str]]]) -> list[tuple[str, str, str, str]]:
    return [(change["kind"], change["name"], change["old"], change["new"]) for change in found["changes"]]


ONE_COLLECTIVE = ("--only", "env,net.interfaces,node.limits,comm.all_reduce")


@pytest.mark.parametrize(
    ("words", "measured"),
    [
        (ONE_COLLECTIVE, {"comm.all_reduce"}),
        pytest.param((), {"comm.all_reduce", "comm.all_gather", "gpu.compute"}, marks=pytest.mark.more),
    ],
    ids=["one_collective", "standard"],
)
def test_two_equal_runs_differ_in_nothing(
    words: tuple[str, ...], measured: set[str], tmp_path: Path, capsys: Capture
) -> None:
    """Nor are the collectives of a loaded machine called slower."""
    words = words or ("--level", "standard")
    old, new = _run(tmp_path / "old", *words), _run(tmp_path / "new", *words)
    found, screen = diff(capsys, old, new, 0)
    assert not found["worse"] and found["changes"] == [] and found["not_compared"] == {}, screen
    assert found["nodes"] == {"came": [], "went": []} and found["checks"] == [], screen
    assert not any(found["findings"].values()), screen
    assert {speed["check"] for speed in found["speeds"]} == measured, screen
    assert "verdict: NOT WORSE" in screen


def test_a_variable_that_changed_is_named(before: Path, tmp_path: Path, capsys: Capture) -> None:
    found, screen = diff(capsys, before, _run(tmp_path / "new", NCCL_BUFFSIZE="8388608"), 0)
    assert _changes(found) == [("variable", "NCCL_BUFFSIZE", "", "8388608")], screen
    assert "changed: variable NCCL_BUFFSIZE: not set before, now 8388608, on " in screen
    found, screen = diff(capsys, tmp_path / "new", before, 0)
    assert _changes(found) == [("variable", "NCCL_BUFFSIZE", "8388608", "")], screen


@pytest.mark.more
def test_a_package_that_changed_is_named(before: Path, tmp_path: Path, capsys: Capture) -> None:
    paths = running.environment()["PYTHONPATH"]
    for version in ("1.2", "1.3"):
        (tmp_path / version / f"made_up-{version}.dist-info").mkdir(parents=True)
        _run(tmp_path / f"of-{version}", *ENV, PYTHONPATH=os.pathsep.join([str(tmp_path / version), paths]))
    found, _ = diff(capsys, tmp_path / "of-1.2", tmp_path / "of-1.3", 0)
    assert _changes(found) == [("software", "made-up", "1.2", "1.3")]
    found, screen = diff(capsys, before, tmp_path / "of-1.3", 0)
    assert "changed: software made-up: not there before, now 1.3, on " in screen


def test_a_new_node_and_what_is_different_there(tmp_path: Path, capsys: Capture) -> None:
    for name, world in (("old", 2), ("new", 3)):
        (tmp_path / name).mkdir()
        own = {2: {"NCCL_BUFFSIZE": "8388608"}}
        run_nodes(tmp_path / name, world, *ENV, own=own, environ={"NCCL_BUFFSIZE": "4194304"})
    found, screen = diff(capsys, tmp_path / "old", tmp_path / "new", 1)
    assert found["nodes"] == {"came": ["node-2"], "went": []}, screen
    (change,) = found["changes"]
    assert (change["old"], change["new"], change["nodes"]) == ("4194304", "8388608", ["node-2"])
    (came,) = found["findings"]["came"]
    assert came["code"] == "env.variables.differs" and "node-2, rank 2, variable NCCL_BUFFSIZE" in screen
    found, screen = diff(capsys, tmp_path / "new", tmp_path / "old", 0)
    assert found["nodes"]["went"] == ["node-2"] and "fail env.variables.differs node-2, rank 2, variable" in screen


@pytest.mark.hosts
@needs_hosts
def test_a_slower_link_and_the_variable_that_changed_beside_it_are_the_first_story(
    tmp_path: Path, capsys: Capture
) -> None:
    words = ("--only", "env.variables,comm.all_reduce,comm.rails", "--set", "comm.all_reduce.max_mib=16")
    old, new = tmp_path / "old", tmp_path / "new"
    with cluster(2) as hosts:
        for folder, setting in ((old, "4194304"), (new, "8388608")):
            folder.mkdir()
            ranks_on(folder, hosts, *words, environ=[{"NCCL_BUFFSIZE": setting}] * 2, deadline_s=120)
            for host in hosts if folder is old else ():
                host.slow_down("80mbit")
    found, screen = diff(capsys, old, new, 1)
    slower = {speed["check"] for speed in found["speeds"] if speed["verdict"] == "worse"}
    assert slower and slower <= {"comm.all_reduce", "comm.rails"}, screen
    story = screen.partition(" SLOWER comm.")[2].partition("also changed: ")[2]
    assert story.startswith("variable NCCL_BUFFSIZE: 4194304 before, now 8388608, on host-a and host-b"), screen


@needs_machines
def test_a_gpus_clock_and_a_driver_and_a_card_that_was_swapped(tmp_path: Path, capsys: Capture) -> None:
    """As the gpu family reads them from NVML."""
    changed = {"gpu.2.clock.application.graphics": 1000, "gpu.5.uuid": "GPU-new", "driver": "550.90.07"}
    for name, changes in (("old", {}), ("new", changed)):
        (tmp_path / name).mkdir()
        in_machine.run(machines.load("h100_nvswitch", tmp_path / name, changes), tmp_path / name)
    found, screen = diff(capsys, tmp_path / "old", tmp_path / "new", 1)
    (clock,) = [change for change in found["changes"] if change["kind"] == "clock"]
    assert clock["name"] == "graphics_application clock in MHz" and clock["new"] == "1000", screen
    assert len(clock["gpus"]) == 1 and clock["gpus"][0] in screen
    assert found["gpus"]["came"] == ["GPU-new"] and len(found["gpus"]["went"]) == 1
    assert [finding["code"] for finding in found["findings"]["came"]] == ["gpu.health.clock"], screen
    assert "also changed: " in screen and "clock graphics_application clock in MHz: " in screen


def test_a_report_without_facts_is_compared_by_its_findings(before: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copy(before / "report.json", tmp_path)
    found, screen = diff(capsys, before, tmp_path / "report.json", 0)
    assert found["changes"] == [] and "there are no facts beside it" in screen


def test_facts_of_another_version_are_not_compared(before: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(before, tmp_path / "new")
    report = json.loads((before / "report.json").read_text())
    report["checks"][0]["facts_version"] = 99
    (tmp_path / "new" / "report.json").write_text(json.dumps(report))
    found, screen = diff(capsys, before, tmp_path / "new", 0)
    assert list(found["not_compared"].values()) == ["its facts are of version 99, expected 1"], screen


def test_bad_input_is_one_sentence(before: Path, tmp_path: Path) -> None:
    assert "cannot be read (No such file" in refused("diff", str(before), str(tmp_path / "none"))
    (tmp_path / "report.json").write_text("{}")
    assert "is not a preflight report of schema 1" in refused("diff", str(tmp_path), str(before))
    report = json.loads((before / "report.json").read_text())
    (tmp_path / "report.json").write_text(json.dumps({**report, "job": {}}))
    assert "is not a complete report" in refused("diff", str(tmp_path), str(before))
    shutil.copytree(before, tmp_path / "torn")
    with gzip.open(tmp_path / "torn" / "facts.jsonl.gz", "wt") as file:
        file.write('{"check": 1')
    assert "cannot be read" in refused("diff", str(before), str(tmp_path / "torn"))


def test_a_finding_that_weighs_more_is_worse_and_many_of_a_kind_are_folded(tmp_path: Path, capsys: Capture) -> None:
    def write(name: str, *found: Reported) -> Path:
        (tmp_path / name).write_text(json.dumps(made_report(result(*found), on=job(*[1] * 50)).to_json()))
        return tmp_path / name

    mild, grave = (write(word, finding(word, node="node-7")) for word in ("warn", "fail"))
    found, screen = diff(capsys, mild, grave, 1)
    assert found["findings"]["stayed"][0]["severity_before"] == "warn", screen
    assert "more severe than before: fail plugin.made.bad node-7" in screen
    assert not diff(capsys, grave, mild, 0)[0]["worse"]
    many = write("many", *(finding("fail", f"{number} of 50", node=f"node-{number}") for number in range(50)))
    found, screen = diff(capsys, write("none"), many, 1)
    assert len(found["findings"]["came"]) == 50 and "47 more [plugin.made.bad]: node-3; node-4; " in screen
    waived = write("waived", replace(finding("fail", node="node-7"), waived={"until": "2027-01-01", "reason": "known"}))
    assert not diff(capsys, write("none"), waived, 0)[0]["worse"]
