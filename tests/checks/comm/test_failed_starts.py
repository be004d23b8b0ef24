"""Real ranks whose start of NCCL fails, with recorded logs: each cause is found, and its rank named."""

from pathlib import Path

import pytest

from tests.checks.comm import at_work, recorded_starts
from tests.checks.comm.recorded_starts import LOST, STARTS, Start, mismatch, twins
from tests.faults import comm_init
from tests.faults.row import Fault
from tests.hosts import cluster, needs_hosts
from tests.on_hosts import ranks_on
from tests.running import Finished

FIRST = "comm.init"


def started(folder: Path, *starts: Start, per_node: int = 1) -> Finished:
    logs = {rank: start.log for rank, start in enumerate(starts)}
    errors = {rank: start.error for rank, start in enumerate(starts)}
    return at_work.run(folder, FIRST, logs, errors, world=len(starts), per_node=per_node)


def told_as(finished: Finished, *rows: Fault) -> None:
    """Each finding is that of one row, and there is one for each."""
    told, found = finished.told(), finished.findings()
    assert len(found) == len(rows) and finished.left_over == [], told
    for row in rows:
        mine = [finding for finding in found if f"{finding['severity']} {finding['code']}" in row.finds]
        assert row.is_told_by(mine) and [finding["noticed_by"] for finding in mine] == [row.noticed_by], told
        assert row.says in mine[0]["message"] and "{" not in mine[0]["fix"], told
    assert finished.report["exit_code"] == 1, told


def test_each_cause_is_found_on_its_rank(tmp_path: Path) -> None:
    told_as(started(tmp_path, LOST, *STARTS.values()), *comm_init.FAILED_STARTS)


def test_two_ranks_on_one_gpu(tmp_path: Path) -> None:
    told_as(started(tmp_path, twins(0, 1), twins(1, 0), LOST, LOST, per_node=2), comm_init.TWINS)


def test_a_node_with_another_nccl(tmp_path: Path) -> None:
    usual, odd = "2.27.5", "2.26.2"
    starts = mismatch(0, usual, 1, odd), mismatch(1, odd, 0, usual), mismatch(2, usual, 1, odd)
    told_as(started(tmp_path, *starts), comm_init.MISMATCH)


@pytest.mark.hosts
@needs_hosts
def test_a_host_that_lets_no_one_in(tmp_path: Path) -> None:
    """But on the master port, which the run itself needs."""
    with cluster(3) as hosts:
        for peer in hosts[1:]:
            hosts[0].refuse(peer, "32768:60999", "icmp-host-unreachable")
        environ = at_work.written(tmp_path, {}, {})
        own = [{**environ, "PREFLIGHT_TEST_BOOTSTRAP": host.address} for host in hosts]
        told_as(ranks_on(tmp_path, hosts, "--only", FIRST, environ=own), comm_init.UNREACHABLE)


def test_a_sound_start_says_nothing(tmp_path: Path) -> None:
    """The same meeting without the firewall; a log with warnings that are harmless."""
    harmless = recorded_starts.warn("misc/ibvwrap.cc:60", "Failed to open libibverbs.so[.1]")
    logs = dict.fromkeys(range(3), harmless + recorded_starts.info("NET/IB : No device found."))
    own = {rank: {"PREFLIGHT_TEST_BOOTSTRAP": "127.0.0.1"} for rank in range(3)}
    finished = at_work.run(tmp_path, FIRST, logs, world=3, own=own)
    assert finished.findings() == [] and finished.check(FIRST)["status"] == "pass", finished.told()
