"""An answer of NCCL's RAS that somebody kept beside a job's logs."""

import json
from pathlib import Path
from typing import Any

from preflight.explain.command import explain_paths
from preflight.results.report import Report, findings

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
    (found,) = findings(told(tmp_path, ([rank(0), rank(1), rank(2, 9)], [silent(3, True, True)])))
    assert (found.code, found.where) == ("explain.slow_rank_timeout", {"rank": 3})
    assert found.message == (
        "NCCL's RAS has given up rank 3 of the communicator of 4 ranks, expected all to answer; launched AllReduce: "
        "ranks 0-1 12 times, rank 2 9 times"
    )


def test_of_two_equal_communicators_no_rank_of_the_job_is_named(tmp_path: Path) -> None:
    half = ([rank(0)], [silent(1, True, False)])
    found = list(findings(told(tmp_path, half, ([rank(0), rank(1)], []))))
    assert [finding.where for finding in found] == [{}] and "has no answer from rank 1" in found[0].message


def test_a_communicator_that_met_an_error_is_told(tmp_path: Path) -> None:
    (found,) = findings(told(tmp_path, ([rank(0, async_error=6), rank(1)], [])))
    assert found.code == "explain.remote_peer_failure" and "rank 0" in found.message


def test_a_job_that_runs_or_starts_has_no_finding(tmp_path: Path) -> None:
    """Its counts differ, and a rank may not have been asked yet."""
    made = told(tmp_path, ([rank(0, 13), rank(1, 12), rank(2, 11, init_state=7)], [silent(3, False, False)]))
    assert (list(findings(made)), made["exit_code"]) == ([], 0)


def test_a_cut_answer_is_said_to_be_broken(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_text('{"ras": {}, "communicators": [{"size": 4}]}')
    made = explain_paths([str(tmp_path)])
    assert made["exit_code"] == 3 and "not whole" in next(findings(made)).message
