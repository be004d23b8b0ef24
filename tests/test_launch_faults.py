"""Ranks that were started wrongly or not at all."""

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests import running
from tests.faults import ELSEWHERE
from tests.hosts import cluster, needs_hosts
from tests.running import Finished

DEADLINE_S = 120
ARRIVE = timedelta(seconds=60)
"""For one rank to come to the store. Ranks are forked from a process that has imported torch (tests/warm.py), which
could take longer than the roll call waits, and is not what these tests are about."""


def nodes_of(finished: Finished) -> list[str]:
    return [node["node"] for node in finished.report["job"]["nodes"]]


def where(finished: Finished, code: str) -> list[dict[str, object]]:
    return [f["where"] for f in finished.findings() if f["code"] == code]


def test_a_rank_that_never_starts_is_named_and_one_that_comes_late(tmp_path: Path) -> None:
    """Rank 2 comes while the first check runs. The others are tested without it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    begun, came = tmp_path / "begun", tmp_path / "came"
    deed = {"TEST_DEED": "wait_for_file", "TEST_BEGUN": str(begun), "TEST_AWAITED": str(came)}
    words = ["--only", "env.launch,plugin.alone,comm.all_reduce", "--plugin", "alone"]
    with running.store_server() as (port, _):
        more = {**deed, "TEST_CHECK_DEADLINE_S": "20", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        ranks = running.plain_ranks(4, port, **more)
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        run = running.Run(tmp_path)
        for rank in (0, 1):
            run.start_rank(rank, [*words, "--report", str(tmp_path), "--deadline", "30"], ranks[rank])
        running.await_file(begun)
        run.start_rank(2, [*words, "--deadline", "30"], ranks[2])
        store.wait(["preflight/arrivals/3"], ARRIVE)
        came.touch()
        finished = run.finish()
    told, found = finished.told(), finished.findings()
    lost = [finding for finding in found if finding["code"] == "preflight.run.lost"]
    assert [finding["where"]["rank"] for finding in lost] == [2, 3] and ELSEWHERE["rank_never_starts"].is_told_by(lost)
    assert ELSEWHERE["late"].is_told_by([finding for finding in found if finding not in lost]), told
    assert finished.report["job"]["missing_ranks"] == "2-3", told
    assert finished.check("comm.all_reduce")["status"] == "pass", told
    assert finished.exit_codes == [1, 1, 1] and finished.left_over == [], told


@pytest.mark.more
def test_rank_0_that_never_starts_is_named_by_each_node(tmp_path: Path) -> None:
    with running.store_server() as (port, _):
        ranks = running.plain_ranks(2, port, TORCHELASTIC_USE_AGENT_STORE="True")[1:]
        finished = running.run_ranks(tmp_path, ranks, "--only", "comm.init", deadline_s=20)
    report = finished.report_named("report.rank-1.json")
    found = finished.findings(report)
    assert ELSEWHERE["rank_0_never_starts"].is_told_by(found), finished.told()
    assert finished.exit_codes == [1], finished.told()


def run_after_arrivals(
    folder: Path, first: list[int], then: list[int], world: int, last: int | None = None
) -> Finished:
    """Starts the ranks in `then` when those in `first` have come to the store; the `last` one 5 s after these."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    with running.store_server() as (port, _):
        ranks = running.plain_ranks(world, port, TORCHELASTIC_USE_AGENT_STORE="True")
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        run = running.Run(folder, DEADLINE_S)
        words = ["--only", "comm.init", "--report", str(folder), "--deadline", str(DEADLINE_S)]
        for rank in first:
            run.start_rank(rank, words, ranks[rank])
        store.wait([f"preflight/arrivals/{index + 1}" for index in range(len(first))], ARRIVE)
        for rank in then:
            run.start_rank(rank, words, ranks[rank])
        if last is not None:
            store.wait([f"preflight/arrivals/{len(first) + len(then)}"], ARRIVE)
            time.sleep(5)  # the fault itself: a node that is slow, though all seem to be there
            run.start_rank(last, words, ranks[last])
        return run.finish()


@pytest.mark.more
def test_a_slow_rank_beside_a_duplicate_is_waited_for(tmp_path: Path) -> None:
    """As many processes have come as there are ranks, but one of them has no place."""
    finished = run_after_arrivals(tmp_path, [1, 1], [0], world=3, last=2)
    told = finished.told()
    assert ELSEWHERE["duplicate_rank"].is_told_by(finished.findings()), told
    assert len(finished.findings()) == 1 and finished.report["job"]["missing_ranks"] == "", told
    assert finished.exit_codes == [1] * 4 and finished.left_over == [], told


def test_two_processes_with_rank_0(tmp_path: Path) -> None:
    """Both would lead: the later one finds that the first one does. Rank 1 comes last: with it the job could end before
    the second rank 0 had come, which then is the first of another attempt."""
    finished = run_after_arrivals(tmp_path, [0, 0], [1], world=2)
    assert ELSEWHERE["duplicate_rank_0"].is_told_by(finished.findings()), finished.told()
    assert len(finished.findings()) == 1, finished.told()
    assert finished.exit_codes == [1] * 3, finished.told()


@pytest.mark.more
def test_two_processes_with_rank_0_and_none_with_rank_1(tmp_path: Path) -> None:
    """Each would serve the store: the later one finds that the first one does, and comes to it. One process has started
    both (`cold`): else they would be two launches."""
    ranks = running.plain_ranks(2)[:1] * 2
    finished = running.run_ranks(tmp_path, ranks, "--only", "env.launch", deadline_s=30, cold=True)
    told = finished.told()
    assert ELSEWHERE["rank_0_twice"].is_told_by(finished.findings()), told
    lost, twice = sorted(finished.findings(), key=lambda finding: "duplicate" in finding["code"])
    assert "calls itself rank 0, too" in lost["message"] and "joined with RANK 0, which" in twice["message"], told
    assert finished.exit_codes == [1, 1] and finished.left_over == [], told


def test_a_rank_0_whose_store_does_not_start_sees_another_one(tmp_path: Path) -> None:
    """As on a machine so busy that neither of them gets to serve it: the first one has the port, and says nothing."""
    ranks = running.plain_ranks(2)[:1]
    port = ranks[0]["MASTER_PORT"]
    serve = (
        "import socket\n"
        f"taken = socket.create_server(('127.0.0.1', {port}))\nprint(flush=True)\n"
        "taken.accept(); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", serve], env=ranks[0], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout and other.stdin
        other.stdout.readline()
        finished = running.run_ranks(tmp_path, ranks, "--only", "comm.init", deadline_s=30, cold=True)
        other.kill()
    (found,) = finished.findings(finished.report_named("report.rank-0.json"))
    assert ELSEWHERE["rank_0_twice_and_silent"].is_told_by([found]), finished.told()
    assert f"process {other.pid} on this node and this one both call themselves rank 0 of 2" in found["message"]
    assert finished.exit_codes == [1] and finished.left_over == [], finished.told()


def test_a_duplicate_instead_of_a_rank_and_a_rank_beyond_the_world(tmp_path: Path) -> None:
    ranks = running.plain_ranks(3)
    came = [ranks[0], ranks[1], ranks[1], {**ranks[2], "RANK": "3"}]
    finished = running.run_ranks(tmp_path, came, "--only", "comm.init", deadline_s=30)
    outside = [finding for finding in finished.findings() if finding["code"] == "env.launch.rank_out_of_range"]
    others = [finding for finding in finished.findings() if finding not in outside]
    assert ELSEWHERE["rank_outside"].is_told_by(outside), finished.told()
    assert ELSEWHERE["duplicate_instead"].is_told_by(others), finished.told()


def test_a_variable_that_is_no_number_or_missing(tmp_path: Path) -> None:
    """Each on a rank of its own."""
    wrong = [("RANK", "one"), ("WORLD_SIZE", "0"), ("LOCAL_RANK", "x"), ("RANK", None)]
    ranks = running.plain_ranks(len(wrong) + 2)
    for env, (variable, value) in zip(ranks[2:], wrong, strict=True):
        del env[variable]
        env |= {} if value is None else {variable: value}
    finished = running.run_ranks(tmp_path, ranks, "--only", "comm.init", deadline_s=30)
    told = finished.told()
    assert ELSEWHERE["no_number"].is_told_by(finished.findings()), told
    told_of = sorted(str(place["variable"]) for place in where(finished, "env.launch.invalid"))
    assert told_of == sorted(variable for variable, _ in wrong), told
    assert {place["node"] for place in where(finished, "env.launch.invalid")} == {nodes_of(finished)[0]}, told
    assert finished.exit_codes == [1] * len(ranks), told


def test_numbers_that_do_not_go_together(tmp_path: Path) -> None:
    """Each on a rank of its own."""
    ranks = running.plain_ranks(4)
    ranks[1]["LOCAL_WORLD_SIZE"] = "8"
    ranks[2]["WORLD_SIZE"] = "8"
    ranks[3]["LOCAL_RANK"] = "0"
    finished = running.run_ranks(tmp_path, ranks, "--only", "comm.init")
    found = finished.findings()
    for name in ("world_size_differs", "local_rank_taken", "local_world_size"):
        row = ELSEWHERE[name]
        assert row.is_told_by([each for each in found if f"{each['severity']} {each['code']}" in row.finds]), name
    assert len(found) == 3, finished.told()


@pytest.mark.more
def test_a_port_that_is_taken_is_said_by_rank_0(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        finished = running.run_ranks(
            tmp_path, running.plain_ranks(1, taken.getsockname()[1]), "--only", "comm.init", deadline_s=20
        )
    report = finished.report_named("report.rank-0.json")
    assert ELSEWHERE["port_taken"].is_told_by(finished.findings(report)), finished.told()
    assert "is taken by another process" in " ".join(finished.output.split()), finished.told()
    assert finished.exit_codes == [1], finished.told()


@pytest.mark.more
def test_a_store_that_is_frozen_from_the_start(tmp_path: Path) -> None:
    with running.store_server() as (port, pid):
        os.kill(pid, signal.SIGSTOP)
        ranks = running.plain_ranks(2, port, TORCHELASTIC_USE_AGENT_STORE="True")
        finished = running.run_ranks(tmp_path, ranks, "--only", "comm.init", deadline_s=20)
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


@needs_hosts
def test_a_slurm_task_that_never_comes_is_named_with_its_node(tmp_path: Path) -> None:
    """So that a job can be requeued without it. As a node's slurmd that starts no process."""
    step = {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "node-[0-2]",
        "SLURM_STEP_NODELIST": "node-[0-2]", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
        "MASTER_ADDR": "host-a", "MASTER_PORT": str(running.free_port()),
    }  # fmt: skip
    run = running.Run(tmp_path, 30)
    with cluster(1) as (host,):
        for rank in (0, 1, 2, 3, 4):
            place = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank // 2), "SLURM_LOCALID": str(rank % 2)}
            env = running.environment(**step, **place, SLURMD_NODENAME=f"node-{rank // 2}")
            words = ["--only", "env.launch", "--report", str(tmp_path), "--deadline", "30"]
            if rank != 3:
                run.start_rank(rank, words, env, host=host)
        finished = run.finish()
    found = finished.findings()
    assert ELSEWHERE["task_never_starts"].is_told_by(found), finished.told()
    assert sorted((f["where"]["node"], f["where"]["rank"]) for f in found) == [("node-1", 3), ("node-2", 5)]
    bad = running.run_to_end(running.preflight("nodes", str(tmp_path), "--bad", "--format", "slurm"))
    assert bad.stdout == "node-[1-2]\n" and (tmp_path / "bad_nodes.txt").read_text() == "node-1\nnode-2\n"


@needs_hosts
def test_a_whole_node_that_never_comes_is_named_by_slurms_list(tmp_path: Path) -> None:
    """Agents of torchrun, one a node. With most nodes missing none is: rank 0 or the network may be at fault."""
    came_of_three, came_of_four = (0, 1), (0,)
    for came, world, bad in ((came_of_three, 3, "node-2\n"), (came_of_four, 4, "")):
        folder = tmp_path / str(world)
        folder.mkdir()
        run = running.Run(folder, 30)
        common = {
            "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "host-a",
            "MASTER_PORT": str(running.free_port()), "TORCHELASTIC_RUN_ID": "none",
            "SLURM_JOB_NODELIST": f"node-[0-{world - 1}]",
        }  # fmt: skip
        with cluster(1) as (host,):
            for rank in came:
                place = {"RANK": str(rank), "GROUP_RANK": str(rank), "SLURMD_NODENAME": f"node-{rank}"}
                words = ["--only", "env.launch", "--report", str(folder), "--deadline", "20"]
                run.start_rank(rank, words, running.environment(**common, **place), host=host)
            finished = run.finish()
        assert {f["code"] for f in finished.findings()} == {"preflight.run.lost"}, finished.told()
        assert (folder / "bad_nodes.txt").read_text() == bad, finished.told()
