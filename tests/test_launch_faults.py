"""Ranks that were started wrongly or not at all."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests import running
from tests.faults import ELSEWHERE
from tests.running import Finished


def nodes_of(finished: Finished) -> list[str]:
    return [node["node"] for node in finished.report["job"]["nodes"]]


def where(finished: Finished, code: str) -> list[dict[str, object]]:
    return [f["where"] for f in finished.findings() if f["code"] == code]


def test_a_rank_that_never_starts_is_named_and_the_others_are_tested(tmp_path: Path) -> None:
    finished = running.run_ranks(tmp_path, running.plain_ranks(3)[:2], "--only", "comm", deadline_s=30)
    told = finished.told()
    assert ELSEWHERE["rank_never_starts"].is_told_by(finished.findings()), told
    assert finished.report["job"]["missing_ranks"] == "2", told
    assert finished.check("comm.all_reduce")["status"] == "pass", told
    assert finished.exit_codes == [1, 1] and finished.left_over == [], told


def test_rank_0_that_never_starts_is_named_by_each_node(tmp_path: Path) -> None:
    with running.store_server() as (port, _):
        ranks = running.plain_ranks(2, port, TORCHELASTIC_USE_AGENT_STORE="True")[1:]
        finished = running.run_ranks(tmp_path, ranks, "--only", "comm", deadline_s=20)
    report = finished.report_named("report.rank-1.json")
    found = finished.findings(report)
    assert ELSEWHERE["rank_0_never_starts"].is_told_by(found), finished.told()
    assert finished.exit_codes == [1], finished.told()


def run_after_arrivals(
    folder: Path, first: list[int], then: list[int], world: int, last: int | None = None
) -> Finished:
    """Starts the ranks in `then` when those in `first` have come to the store, and the `last` one 5 s after these."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    with running.store_server() as (port, _):
        ranks = running.plain_ranks(world, port, TORCHELASTIC_USE_AGENT_STORE="True")
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        run = running.Run(folder)
        command = running.preflight("--only", "comm", "--report", str(folder), "--deadline", "60")
        for rank in first:
            run.start(command, ranks[rank])
        store.wait([f"preflight/arrivals/{index + 1}" for index in range(len(first))], timedelta(seconds=60))
        for rank in then:
            run.start(command, ranks[rank])
        if last is not None:
            store.wait([f"preflight/arrivals/{len(first) + len(then)}"], timedelta(seconds=60))
            time.sleep(5)  # the fault itself: a node that imports torch slowly
            run.start(command, ranks[last])
        return run.finish()


def test_a_slow_rank_beside_a_duplicate_is_waited_for(tmp_path: Path) -> None:
    """As many processes have come as there are ranks, but one of them has no place."""
    finished = run_after_arrivals(tmp_path, [1, 1], [0], world=3, last=2)
    told = finished.told()
    assert ELSEWHERE["duplicate_rank"].is_told_by(finished.findings()), told
    assert finished.report["job"]["missing_ranks"] == "", told


def test_two_processes_with_one_rank(tmp_path: Path) -> None:
    finished = run_after_arrivals(tmp_path, [1, 1], [0, 2], world=3)
    assert ELSEWHERE["duplicate_rank"].is_told_by(finished.findings()), finished.told()
    assert len(finished.findings()) == 1, finished.told()
    assert finished.exit_codes == [1] * 4 and finished.left_over == [], finished.told()


def test_two_processes_with_rank_0(tmp_path: Path) -> None:
    """Both would lead: the later one finds that the first one does."""
    finished = run_after_arrivals(tmp_path, [1, 0, 0], [], world=2)
    assert ELSEWHERE["duplicate_rank_0"].is_told_by(finished.findings()), finished.told()
    assert len(finished.findings()) == 1, finished.told()
    assert finished.exit_codes == [1] * 3, finished.told()


def test_a_duplicate_instead_of_a_rank_names_both(tmp_path: Path) -> None:
    ranks = running.plain_ranks(3)
    finished = running.run_ranks(tmp_path, [ranks[0], ranks[1], ranks[1]], "--only", "comm", deadline_s=30)
    assert ELSEWHERE["duplicate_instead"].is_told_by(finished.findings()), finished.told()


def test_a_rank_beyond_the_world(tmp_path: Path) -> None:
    ranks = running.plain_ranks(3)
    finished = running.run_ranks(tmp_path, [*ranks[:2], {**ranks[2], "RANK": "7"}], "--only", "comm", deadline_s=30)
    assert ELSEWHERE["rank_outside"].is_told_by(finished.findings()), finished.told()


@pytest.mark.parametrize(
    ("variable", "value"), [("RANK", "one"), ("RANK", None), ("WORLD_SIZE", "0"), ("LOCAL_RANK", "x")]
)
def test_a_variable_that_is_no_number(variable: str, value: str | None, tmp_path: Path) -> None:
    ranks = running.plain_ranks(3)
    if value is None:
        del ranks[2][variable]
    else:
        ranks[2][variable] = value
    finished = running.run_ranks(tmp_path, ranks, "--only", "comm", deadline_s=30)
    told = finished.told()
    assert ELSEWHERE["no_number"].is_told_by(finished.findings()), told
    assert {one["variable"] for one in where(finished, "env.launch.invalid")} == {variable}, told
    assert {one["node"] for one in where(finished, "env.launch.invalid")} == {nodes_of(finished)[0]}, told
    assert finished.exit_codes == [1] * 3, told


def test_a_world_size_that_differs(tmp_path: Path) -> None:
    ranks = running.plain_ranks(3)
    ranks[2]["WORLD_SIZE"] = "8"
    finished = running.run_ranks(tmp_path, ranks, "--only", "comm")
    assert ELSEWHERE["world_size_differs"].is_told_by(finished.findings()), finished.told()
    assert len(finished.findings()) == 1, finished.told()


def test_two_ranks_with_one_local_rank(tmp_path: Path) -> None:
    ranks = running.plain_ranks(3)
    ranks[2]["LOCAL_RANK"] = "1"
    finished = running.run_ranks(tmp_path, ranks, "--only", "comm")
    assert ELSEWHERE["local_rank_taken"].is_told_by(finished.findings()), finished.told()


def test_a_local_world_size_that_is_wrong(tmp_path: Path) -> None:
    ranks = running.plain_ranks(3)
    ranks[1]["LOCAL_WORLD_SIZE"] = "8"
    finished = running.run_ranks(tmp_path, ranks, "--only", "comm")
    assert ELSEWHERE["local_world_size"].is_told_by(finished.findings()), finished.told()


def test_a_port_that_is_taken_is_said_by_rank_0(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        finished = running.run_ranks(
            tmp_path, running.plain_ranks(1, taken.getsockname()[1]), "--only", "comm", deadline_s=20
        )
    report = finished.report_named("report.rank-0.json")
    assert ELSEWHERE["port_taken"].is_told_by(finished.findings(report)), finished.told()
    assert "is taken by another process" in " ".join(finished.output.split()), finished.told()
    assert finished.exit_codes == [1], finished.told()


def test_a_store_that_is_frozen_from_the_start(tmp_path: Path) -> None:
    with running.store_server() as (port, pid):
        os.kill(pid, signal.SIGSTOP)
        ranks = running.plain_ranks(2, port, TORCHELASTIC_USE_AGENT_STORE="True")
        finished = running.run_ranks(tmp_path, ranks, "--only", "comm", deadline_s=20)
    for rank in (0, 1):
        found = finished.findings(finished.report_named(f"report.rank-{rank}.json"))
        assert ELSEWHERE["store_frozen_at_the_start"].is_told_by(found), finished.told()
    assert finished.exit_codes == [3, 3] and finished.left_over == [], finished.told()


def test_a_rank_whose_torch_cannot_be_imported_says_so_itself(tmp_path: Path) -> None:
    ranks = running.plain_ranks(2)
    ranks[1]["TORCH_DISTRIBUTED_DEBUG"] = "FULL"
    finished = running.run_ranks(tmp_path, ranks, "--only", "env.launch", deadline_s=20)
    told = finished.told()
    own = finished.findings(finished.report_named("report.rank-1.json"))
    assert ELSEWHERE["torch_broken"].is_told_by(own), told
    assert "TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL" in own[0]["message"], told
    assert [(f["code"], f["where"]) for f in finished.findings()] == [("preflight.run.lost", {"rank": 1})], told
    assert finished.exit_codes == [1, 1] and finished.left_over == [], told
