"""An answer of NCCL's RAS that somebody kept beside a job's logs."""

import json
from pathlib import Path
from typing import Any

import pytest

from preflight.explain.command import explain_paths
from preflight.results.report import Report

FINE = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}


def rank(number: int, launched: int = 12, **status: Any) -> dict[str, Any]:
    return {
        "rank": number, "host": "node-a", "pid": 4711 + number, "cuda_dev": number, "nvml_dev": number,
        "collective_counts": {"AllReduce": launched}, "status": {**FINE, **status},
    }  # fmt: skip


def silent(number: int, unresponsive: bool, dead: bool) -> dict[str, Any]:
    return {"rank": number, "host": "node-b", "status": {"unresponsive": unresponsive, "considered_dead": dead}}


def told(tmp_path: Path, *communicators: tuple[list[Any], list[Any]]) -> Report:
    listed = [
        {"hash": f"0x{at}", "size": len(ranks) + len(missing), "ranks": ranks, "missing_ranks": missing}
        for at, (ranks, missing) in enumerate(communicators)
    ]
    answer = {"nccl_version": "2.28.3", "ras": {"timeouts_count": 0}, "communicators": listed}
    (tmp_path / "ras.json").write_text(json.dumps(answer))
    return explain_paths([str(tmp_path)])


def test_a_rank_that_ras_has_given_up_is_named(tmp_path: Path) -> None:
    (found,) = told(tmp_path, ([rank(0), rank(1), rank(2, 9)], [silent(3, True, True)])).findings
    assert (found.code, found.where) == ("explain.slow_rank_timeout", {"rank": 3})
    assert found.message == (
        "NCCL's RAS has given up rank 3 of the communicator of 4 ranks, expected all to answer; launched AllReduce: "
        "ranks 0-1 12 times, rank 2 9 times"
    )


def test_of_two_equal_communicators_no_rank_of_the_job_is_named(tmp_path: Path) -> None:
    half = ([rank(0)], [silent(1, True, False)])
    found = told(tmp_path, half, ([rank(0), rank(1)], [])).findings
    assert [finding.where for finding in found] == [{}] and "has no answer from rank 1" in found[0].message


def test_a_communicator_that_met_an_error_is_told(tmp_path: Path) -> None:
    (found,) = told(tmp_path, ([rank(0, async_error=6), rank(1)], [])).findings
    assert found.code == "explain.remote_peer_failure" and "rank 0" in found.message


def test_a_job_that_starts_has_no_finding(tmp_path: Path) -> None:
    """A rank may not have been asked yet."""
    made = told(tmp_path, ([rank(0), rank(1), rank(2, init_state=7)], [silent(3, False, False)]))
    assert (made.findings, made.exit_code) == ([], 0)


REAL = Path(__file__).parent / "nccl_logs"
"""What NCCL 2.28.9 answered in both formats while rank 1 of 3 slept, and the others waited in their sixth AllReduce."""


@pytest.mark.parametrize("name", ["ras.json", "ras.txt"])
@pytest.mark.parametrize("greeting", ["", "SERVER PROTOCOL 2\nOK\nOK\n"])
def test_counts_that_differ_once_warn_and_accuse_nobody(tmp_path: Path, name: str, greeting: str) -> None:
    """They do in any job that runs. `greeting`: by nc, which shows the server's replies."""
    (tmp_path / name).write_text(greeting + (REAL / name).read_text())
    made = explain_paths([str(tmp_path / name)])
    (found,) = made.findings
    assert (found.code, found.severity, found.where, made.exit_code) == (
        "explain.slow_rank_timeout", "warn", {}, 0,
    )  # fmt: skip
    assert "counts" in found.message and "AllReduce" in found.message and "ncclras -f json" in found.fix


def asked(folder: Path, at: str, last: int, usual: int = 6) -> None:
    """The real answer, at another second of its minute, with other counts for rank 1 and for the others."""
    said = json.loads((REAL / "ras.json").read_text())
    said["timestamp"] = said["timestamp"][:-2] + at
    for number, launched in enumerate((usual, last, usual)):
        said["communicators"][0]["ranks"][number]["collective_counts"]["AllReduce"] = launched
    (folder / f"ras-{at}.json").write_text(json.dumps(said, indent=2))


def test_a_rank_that_stays_behind_in_two_answers_is_named(tmp_path: Path) -> None:
    asked(tmp_path, "05", 5)
    asked(tmp_path, "35", 5)
    (found,) = explain_paths([str(tmp_path)]).findings
    assert (found.code, found.severity, found.where) == ("explain.slow_rank_timeout", "fail", {"rank": 1})
    assert found.message == (
        "NCCL's RAS was asked twice, 30 s apart, and no rank had moved; launched AllReduce: ranks 0,2 6 times, rank 1 "
        "5 times: rank 1 is late, stuck or gone"
    )


def test_a_job_that_moves_between_two_answers_has_no_finding(tmp_path: Path) -> None:
    asked(tmp_path, "05", 5)
    asked(tmp_path, "35", 40, usual=41)
    made = explain_paths([str(tmp_path)])
    assert (made.findings, made.exit_code) == ([], 0)


def test_two_answers_in_one_moment_accuse_nobody(tmp_path: Path) -> None:
    asked(tmp_path, "05", 5)
    asked(tmp_path, "08", 5)
    assert [(found.severity, found.where) for found in explain_paths([str(tmp_path)]).findings] == [("warn", {})]


def test_a_process_that_ras_calls_dead_in_text_is_told(tmp_path: Path) -> None:
    text = (REAL / "ras.txt").read_text().partition("Errors\n======\n")[0]
    dead = "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
    (tmp_path / "ras.txt").write_text(f"{text}Errors\n======\n\n{dead}  Process 4102 on node 10.0.0.2 managing GPU 0\n")
    (found,) = explain_paths([str(tmp_path)]).findings
    assert (found.code, found.severity) == ("explain.slow_rank_timeout", "fail") and "process 4102" in found.message
    assert found.where == {"node": "10.0.0.2", "gpu": 0}


def test_a_cut_answer_is_said_to_be_broken(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_text('{"ras": {}, "communicators": [{"size": 4}]}')
    made = explain_paths([str(tmp_path)])
    assert made.exit_code == 3 and "not whole" in next(iter(made.findings)).message
