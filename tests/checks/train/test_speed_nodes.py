"""train.speed on nodes of which one has less memory, fewer cores or a slow link."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import running
from tests.faults.train_speed import WIDE
from tests.hosts import Host, needs_hosts
from tests.nodes import DEADLINE_S, run_nodes
from tests.on_hosts import found_as, ranks_on

ONLY = ("--only", "train.speed")
ONE_A_NODE = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def _set(**settings: str) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"train.speed.{name}={value}")]


def test_a_batch_that_does_not_fit_into_a_container(cgroups: Callable[..., str], tmp_path: Path) -> None:
    limit = str(2**30)
    before = {1: cgroups("memory", ("memory.limit_in_bytes", limit), ("memory.max", limit))}
    finished = run_nodes(tmp_path, 2, *ONLY, *_set(model=WIDE, batch="5000"), before=before, environ=ONE_A_NODE)
    found_as("speed_wont_fit_cgroup", finished)


@pytest.mark.more
def test_ranks_of_a_node_with_a_cgroup_each_share_none(cgroups: Callable[..., str], tmp_path: Path) -> None:
    """1.0 to 1.6 GiB a rank fit into 2 GiB for each, and would not into half of it."""
    limit = str(2**31)
    run = running.Run(tmp_path, DEADLINE_S)
    words = [*ONLY, *_set(model=WIDE, batch="2600"), "--report", str(tmp_path), "--deadline", str(DEADLINE_S)]
    for rank, env in enumerate(running.plain_ranks(2)):
        before = cgroups("memory", ("memory.limit_in_bytes", limit), ("memory.max", limit))
        run.start_rank(rank, words, env, before=before)
    finished = run.finish()
    assert finished.findings() == [], finished.told()
    assert "peak at 2,600" in finished.check("train.speed")["plots"][-1]["heads"]


@pytest.mark.skipif(os.geteuid() != 0, reason="ranks that other work does not slow down need root")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a node with half the cores of another one's needs two")
def test_a_node_with_half_its_cores(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0))
    # Of the real-time class: where sessions are scheduled as groups, a nicer value counts within a session only.
    begins = ("chrt -r -p 1 $PPID", f"taskset -pc {first} $PPID")
    nodes = {
        rank: {"NODE_RANK": f"{rank // 2}", "SLURMD_NODENAME": f"node-{rank // 2}", "LOCAL_RANK": f"{rank % 2}"}
        for rank in range(4)
    }
    before = {rank: begins[rank // 2] for rank in range(4)}
    words = [*ONLY, *_set(strategies="ddp/plain")]
    finished = run_nodes(tmp_path, 4, *words, own=nodes, before=before, environ={"LOCAL_WORLD_SIZE": "2"})
    print(finished.told())
    found_as("speed_half_cores", finished)


@pytest.mark.skipif(os.geteuid() != 0, reason="ranks that other work does not slow down need root")
def test_a_rank_whose_cgroup_has_a_quarter_of_a_core(cgroups: Callable[..., str], tmp_path: Path) -> None:
    quota = ("cpu.cfs_quota_us", "25000"), ("cpu.max", "25000 100000")
    before = cgroups("cpu", *quota, ("cpu.shares", "262144"), ("cpu.weight", "10000"))  # other work takes none of it
    begins = ("chrt -r -p 1 $PPID", before)
    run = running.Run(tmp_path, DEADLINE_S)
    words = [*ONLY, *_set(strategies="ddp/plain"), "--report", str(tmp_path), "--deadline", str(DEADLINE_S)]
    for rank, env in enumerate(running.plain_ranks(2)):
        run.start_rank(rank, words, env, before=begins[rank])
    finished = run.finish()
    print(finished.told())
    assert "throttled in " in found_as("speed_throttled", finished)
    (found,) = finished.findings()
    assert found["evidence"]["cause"] == "quota" and found["fix"].startswith("Raise its CPU quota: cpu.max")


@pytest.mark.more
@needs_hosts
def test_a_slow_link_between_nodes_is_told_with_its_rate_and_blames_no_rank(two: list[Host], tmp_path: Path) -> None:
    """60 Mbit/s are 7.5 MB/s."""
    for host in two:
        host.slow_down("60mbit")
    finished = ranks_on(tmp_path, two, *ONLY, *_set(strategies="ddp/plain"), deadline_s=120)
    found_as("speed_slower_than_one", finished)
    line = finished.check("train.speed")["summary"]
    found = re.search(r"gradients travel at ([0-9.]+) MB/s between 2 nodes \(no other link to compare", line)
    assert found and 1.0 < float(found[1]) < 8.5, line


@needs_hosts
def test_a_node_with_a_slow_link_is_named_with_what_it_costs(three: list[Host], tmp_path: Path) -> None:
    three[2].slow_down("60mbit")
    finished = ranks_on(tmp_path, three, *ONLY, *_set(strategies="ddp/plain"), deadline_s=120)
    found_as("speed_slow_link", finished)
    assert "gradients travel at " in finished.check("train.speed")["summary"]


@needs_hosts
def test_three_nodes_with_equal_links_are_sound(three: list[Host], tmp_path: Path) -> None:
    """Slow ones, so that their links are compared: nobody is slower than the others. All may be slower than one."""
    for host in three:
        host.slow_down("100mbit")
    finished = ranks_on(tmp_path, three, *ONLY, *_set(strategies="ddp/plain"), deadline_s=120)
    assert {found["code"] for found in finished.findings()} <= {"train.speed.slower_than_one"}, finished.told()
    assert "between 3 nodes (two of them exchange " in finished.check("train.speed")["summary"]


@pytest.mark.more
@needs_hosts
def test_a_slow_path_between_two_nodes_names_neither(three: list[Host], tmp_path: Path) -> None:
    three[1].slow_down_to(three[0].address, "60mbit")
    found_as("speed_slow_path", ranks_on(tmp_path, three, *ONLY, *_set(strategies="ddp/plain"), deadline_s=120))
