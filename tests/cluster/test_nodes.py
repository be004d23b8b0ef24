"""Lists of nodes from saved reports, and which N of them are picked."""

import json
from pathlib import Path

import pytest

from preflight.cli import main
from preflight.cluster import pick
from preflight.cluster.host_list import fold
from preflight.core.finding import Reported
from tests.made import finding, job, made_report, result

FOLDED = [
    ([], ""),
    (["login"], "login"),
    (["gpu-3", "gpu-17", "gpu-18", "gpu-19"], "gpu-[3,17-19]"),
    (["gpu-9", "gpu-10", "a1"], "gpu-[9-10],a1"),
    (["gpu009", "gpu010", "gpu7"], "gpu[009-010],gpu7"),
    (["r1n2", "r1n1", "r2n1"], "r1n[1-2],r2n1"),
    (["n1-ib", "n2-ib"], "n1-ib,n2-ib"),
    (["gpu-3", "gpu-3"], "gpu-3"),
]


@pytest.mark.parametrize(("names", "folded"), FOLDED)
def test_names_are_folded_as_slurm_reads_them(names: list[str], folded: str) -> None:
    assert fold(names) == folded


def saved(path: Path, *findings: Reported, nodes: int = 4) -> str:
    path.write_text(json.dumps(made_report(result(*findings), on=job(*[2] * nodes)).to_json()))
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as exited:
        main.main(["nodes", *words])
    assert not exited.value.code
    return capsys.readouterr().out


FORMATS = {
    "slurm": "node-[0-1,3]\n",
    "lines": "node-0\nnode-1\nnode-3\n",
    "csv": "node-0,node-1,node-3\n",
    "hostfile": "node-0 slots=2\nnode-1 slots=2\nnode-3 slots=2\n",
    "json": '["node-0", "node-1", "node-3"]\n',
}


@pytest.mark.parametrize("form", FORMATS)
def test_the_good_nodes_are_printed_as_asked(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = saved(tmp_path / "report.json", finding(node="node-2"), finding("warn", node="node-1"))
    assert printed(capsys, report, "--good", "--format", form) == FORMATS[form]
    assert printed(capsys, str(tmp_path), "--bad") == "node-2\n"


def test_what_is_to_be_done_with_each_node_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gravest of its failures; of its warnings where it has no failure."""
    report = saved(
        tmp_path / "report.json",
        finding(node="node-2", code="gpu.nvlink.inactive", action="reset_gpu"),
        finding(node="node-2", code="gpu.inventory.missing", action="reboot"),
        finding("warn", node="node-2", code="gpu.pcie.width", action="replace"),
        finding("warn", node="node-1", code="gpu.pcie.width", action="replace"),
        finding(rank=6, code="a.b.c"),
    )
    assert json.loads(printed(capsys, report, "--bad", "--format", "actions")) == {
        "node-2": {"action": "reboot", "codes": ["gpu.inventory.missing"]},
        "node-3": {"action": "none", "codes": []},
    }
    assert json.loads(printed(capsys, report, "--good", "--format", "actions")) == {
        "node-0": {"action": "none", "codes": []},
        "node-1": {"action": "replace", "codes": ["gpu.pcie.width"]},
    }


def test_of_several_reports_the_bad_ones_of_any_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a job's tries: the second had no node-2 any more."""
    both = [saved(tmp_path / "1", finding(node="node-2")), saved(tmp_path / "2", finding(node="node-0"), nodes=2)]
    assert printed(capsys, *both, "--bad", "--format", "slurm") == "node-[0,2]\n"
    assert printed(capsys, *both, "--good", "--format", "slurm") == "node-[1,3]\n"


def test_where_a_failure_names_no_node_none_is_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = saved(tmp_path / "report.json", finding())
    assert printed(capsys, report, "--good", "--format", "slurm") == ""
    assert printed(capsys, report, "--bad", "--format", "json") == "[]\n"


SWITCHES = {"node-0": "s0", "node-1": "s0", "node-2": "s1", "node-3": "s1", "node-4": "s1"}
PICKED = [
    ("sound: those of the largest switch", [], 3, ["node-2", "node-3", "node-4"]),
    ("a failure is out", [finding(node="node-0")], 3, ["node-2", "node-3", "node-4"]),
    ("warnings count before switches", [finding("warn", node="node-3")], 4, ["node-0", "node-1", "node-2", "node-4"]),
    ("of a rank, too", [finding("warn", rank=8)], 2, ["node-0", "node-1"]),
    ("too few are all that are sound", [finding(node="node-3")], 5, ["node-0", "node-1", "node-2", "node-4"]),
    ("a failure of nobody is everybody's", [finding()], 1, []),
]


@pytest.mark.parametrize(("findings", "wanted", "chosen"), [row[1:] for row in PICKED], ids=[row[0] for row in PICKED])
def test_the_best_are_picked(findings: list[Reported], wanted: int, chosen: list[str]) -> None:
    made = made_report(result(*findings), on=job(*[2] * 5))
    assert pick.best(made, wanted, SWITCHES) == chosen
