"""What preflight itself said in a job's log is believed before all else, and nobody else is named."""

from pathlib import Path

import pytest

from preflight.explain.command import explain_paths
from preflight.results import console, report_nodes
from preflight.results.report import Report
from tests import made
from tests.explain.last_words import STEPS

JOB_ENDS = (
    "srun: error: node1: task 0: Exited with exit code 1\nsrun: error: node2: tasks 8-15: Exited with exit code 1\n"
)
FAILS = "verdict: FAIL (do not start this job), exit code 1, 57.3 s\n"


def screen(who: str, code: str = "env.software.torch") -> str:
    return (
        "preflight: 16 ranks on 2 nodes (slurm, nccl), full, at most 300 s\nPASS  env.launch  0.0 s  16 ranks\n"
        f"FAIL  {code.rpartition('.')[0]:<20} 0.4 s  1 finding, see below\n\nFAIL  {who}{'  ' if who else ''}[{code}]\n"
        "      torch is 2.6.0, expected 2.7.1 as on 1 of 2 nodes\n      fix: Install the same torch on all nodes.\n\n"
        "2 checks: 1 fail, 1 pass\n"
    )


def found(folder: Path, text: str) -> tuple[Report, list[tuple[str, str, dict[str, object]]]]:
    (folder / "slurm.out").write_text(text)
    given = explain_paths([str(folder / "slurm.out")])
    return given, [(item.severity, item.code, dict(item.where)) for item in given.findings]


@pytest.mark.parametrize("label", ["", "0: ", "[1,0]<stdout>: "])
@pytest.mark.parametrize("end", ["", JOB_ENDS])
def test_the_node_that_preflight_named_is_named(label: str, end: str, tmp_path: Path) -> None:
    text = "".join(f"{label}{line}\n" for line in (screen("node2, ranks 8-15") + FAILS).splitlines())
    given, listed = found(tmp_path, text + end)
    assert listed == [("fail", "explain.rank_config_mismatch", {"node": "node2"})] and given.exit_code == 1
    (first,) = given.findings
    assert "node2, ranks 8-15 [env.software.torch]" in first.message and first.evidence["confidence"] == "high"
    assert report_nodes.bad_nodes(given) == [] or report_nodes.bad_nodes(given) == ["node2"]


@pytest.mark.parametrize(
    ("who", "where"),
    [
        ("", {}),
        ("node2", {"node": "node2"}),
        ("node2, rank 9", {"node": "node2", "rank": 9}),
        ("node2, rank 9, gpu 1", {"node": "node2", "rank": 9, "gpu": 1}),
        ("node2, ranks 8-15, variable NCCL_IB_HCA", {"node": "node2", "variable": "NCCL_IB_HCA"}),
        ("host-b and host-c", {}),
        ("12 nodes", {}),
        ("file train.py:7", {"file": "train.py:7"}),
    ],
)
def test_the_culprit_is_read_as_the_screen_writes_it(who: str, where: dict[str, object], tmp_path: Path) -> None:
    _, (first, *_) = found(tmp_path, screen(who, "env.launch.nothing_known") + JOB_ENDS)
    assert first == ("fail", "env.launch.nothing_known", where)


def test_it_outweighs_what_the_job_says_then(tmp_path: Path) -> None:
    oom = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    _, (first, *_) = found(tmp_path, screen("node2") + oom)
    assert first == ("fail", "explain.rank_config_mismatch", {"node": "node2"})


def test_two_nodes_of_one_code_are_both_said(tmp_path: Path) -> None:
    given, listed = found(tmp_path, screen("node2") + screen("node3"))
    assert listed == [("fail", "explain.rank_config_mismatch", {})]
    assert all(node in given.findings[0].message for node in ("node2", "node3"))


def test_a_job_that_ran_nevertheless_did_not_fail_of_it(tmp_path: Path) -> None:
    assert found(tmp_path, screen("node2") + FAILS + STEPS)[1] == []


def test_the_verdict_in_one_line_is_read_too(tmp_path: Path) -> None:
    line = "preflight: FAIL: node2: torch is 2.6.0, expected 2.7.1 [env.software.torch] (and 1 more)\n"
    _, (first, *_) = found(tmp_path, line + JOB_ENDS)
    assert first == ("fail", "explain.rank_config_mismatch", {"node": "node2"})


def test_a_verdict_without_its_findings_is_a_failure_of_an_unknown_cause(tmp_path: Path) -> None:
    assert found(tmp_path, FAILS)[1] == [("fail", "explain.unknown", {})]


def test_the_screen_s_own_lines_are_known(tmp_path: Path) -> None:
    finding = made.finding(code="comm.init.duplicate_gpu", node="host-b", rank=3)
    _, (first, *_) = found(tmp_path, "\n".join(console.finding_lines(finding)) + "\n")
    assert first == ("fail", "explain.duplicate_gpu", {"node": "host-b", "rank": 3})
