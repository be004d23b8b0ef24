"""env.launch: the cores that ranks are bound to. Really bound ones, and made-up nodes."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.check import Job, Node, Run, ranges
from preflight.checks.env import launch
from preflight.checks.env.launch import cores
from preflight.checks.env.launch.cores import Cores
from tests import running
from tests.checks.net.made_hcas import context
from tests.faults import ELSEWHERE
from tests.nodes import run_nodes
from tests.running import Finished

ONLY = ("--only", "env.launch")
needs_taskset = pytest.mark.skipif(
    not shutil.which("taskset") or len(os.sched_getaffinity(0)) < 2, reason="taskset binds a rank to one of two CPUs"
)
CPU = min(os.sched_getaffinity(0))
BOUND = f"taskset -cp {CPU} $PPID >/dev/null"


def is_told(name: str, finished: Finished) -> None:
    (found,) = finished.findings()
    assert ELSEWHERE[name].is_told_by([found]) and ELSEWHERE[name].says in found["message"], finished.told()
    assert finished.report["exit_code"] == 0 and "{" not in found["fix"], finished.told()


@needs_taskset
def test_two_ranks_that_are_bound_to_one_core(tmp_path: Path) -> None:
    run = running.Run(tmp_path)
    for rank, env in enumerate(running.plain_ranks(2)):
        run.start_rank(rank, [*ONLY, "--report", str(tmp_path)], env, before=BOUND)
    finished = run.finish()
    is_told("launch_shared_core", finished)
    assert finished.findings()[0]["noticed_by"] == "0-1", finished.told()


@needs_taskset
def test_a_rank_with_fewer_cores_than_the_others(tmp_path: Path) -> None:
    alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    finished = run_nodes(tmp_path, 3, *ONLY, before={1: BOUND}, own=dict.fromkeys(range(3), alone))
    is_told("launch_few_cores", finished)


def test_ranks_that_share_what_there_is_are_sound(tmp_path: Path) -> None:
    finished = running.run_ranks(tmp_path, running.plain_ranks(3), *ONLY)
    assert finished.check("env.launch")["findings"] == [], finished.told()


# Made-up nodes


def node(of_node: str, *own: str, bound_by: str = "") -> list[Cores]:
    """A rank for each of `own`."""
    return [{"own": each, "node": of_node, "bound_by": bound_by} for each in own]


def judged(*nodes: list[Cores]) -> list[dict[str, Any]]:
    facts: dict[int, Any] = {}
    places: dict[str, list[int]] = {}
    for number, each in enumerate(nodes):
        places[f"node-{number}"] = list(range(len(facts), len(facts) + len(each)))
        for reading in each:
            facts[len(facts)] = {"environ": {}, "local_rank": 0, "cores": reading}
    found = testing.judge(launch, facts, nodes=places)
    return [one for one in found if one["code"].endswith("_cores")]


EIGHT = ("0-7", "8-15", "16-23", "24-31", "32-39", "40-47", "48-55", "56-63")


@pytest.mark.parametrize(
    "nodes",
    [
        [node("0-1", *["0-1"] * 8)],  # a laptop
        [node("0-63", *["0-63"] * 8)] * 4,  # torchrun: nobody is bound
        [node("0-63", *EIGHT)] * 4,
        [node("0-63", *["0-31"] * 4, *["32-63"] * 4)] * 2,  # by NUMA node
        [node("0-63", *["0-15"] * 8)],  # all share a part, on purpose
        [node("0-63", *(str(core) for core in range(8)))],  # mpirun --bind-to core
        [node("0-4", "0-1", "2-3", "4")],
        [node("0-63", *["0-63"] * 8), node("0-31", *["0-31"] * 8)],  # another kind of machine
        [node("0-63", *EIGHT[:2]), node("0-63", "0-6", "8-15"), node("0-63", "0-7", "8-14")],
        [node("0", "0", "0")],  # a cgroup of one core: node.limits tells that
        [node("0-63", "0-7"), node("0-63", "0-3")],  # two ranks: either may be meant
        [],
    ],
    ids=lambda nodes: f"{len(nodes)} nodes",
)
def test_ranks_that_are_bound_in_sound_ways(nodes: list[list[Cores]]) -> None:
    assert judged(*nodes) == []


@pytest.mark.parametrize(
    ("own", "told", "where"),
    [
        (["0", "0", "1", "2"], "ranks 0-1 share core 0, while no rank of this job uses 61 cores (3-63)", {}),
        (["0-1"] * 4, "ranks 0-3 share 2 cores (0-1), while no rank of this job uses 62 cores (2-63)", {}),
        (
            ["0-7", "0-7", *EIGHT[1:4]],
            "ranks 0-1 share 8 cores (0-7), while no rank of this job uses 32 cores (32-63)",
            {},
        ),
        (["0-62"] * 3 + ["0"], "the rank may use core 0, expected 63 cores as on 3 of 4 ranks", {"rank": 3}),
        ([*EIGHT[:7], "56"], "the rank may use core 56, expected 8 cores as on 7 of 8 ranks", {"rank": 7}),
        ([*EIGHT[:7], "56-59"], "the rank may use 4 cores (56-59), expected 8 cores as on 7 of 8 ranks", {"rank": 7}),
    ],
)
def test_who_shares_or_has_few_is_told(own: list[str], told: str, where: dict[str, int]) -> None:
    (found,) = judged(node("0-63", *own, bound_by="OMP_PROC_BIND=close"))
    assert found["severity"] == "warn" and found["message"].startswith(told), found
    assert found["where"] == {"node": "node-0", **where} and found["evidence"]["set"] == "OMP_PROC_BIND=close"
    assert "unset OMP_PROC_BIND" in found["fix"]


@pytest.mark.parametrize(("launcher", "fix"), [("slurm", "srun --cpu-bind=cores"), ("mpi", "mpirun --bind-to none")])
def test_the_fix_is_that_of_the_launcher(launcher: str, fix: str) -> None:
    job = Job(launcher, 2, "gloo", (Node("node-0", 0, (0, 1)),))
    (found,) = cores.findings(dict(enumerate(node("0-3", "2", "2"))), Run(job, (0, 1), {}))
    assert found.fix.startswith(fix)


def test_of_three_nodes_the_rank_with_few_is_named() -> None:
    (found,) = judged(node("0-63", "0-31", "32-63"), node("0-63", "0-31", "32-63"), node("0-63", "0-31", "32-39"))
    assert found["where"] == {"node": "node-2", "rank": 5}, found


def test_where_a_rank_of_the_node_is_not_known_nothing_is_said() -> None:
    bound = enumerate(node("0-7", "0", "0"))
    facts: dict[int, Any] = {rank: {"environ": {}, "local_rank": rank, "cores": reading} for rank, reading in bound}
    found = testing.judge(launch, facts, nodes={"node-0": [0, 1, 2]})
    assert not [one for one in found if one["code"].endswith("_cores")]


def test_two_hardware_threads_are_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine of two cores with two threads each; the rank is bound to the second thread of the first core."""
    for cpu in range(4):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-3\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2})
    seen = cores.measure(context("env.launch"), str(tmp_path))
    assert seen and (seen["own"], seen["node"]) == ("0", "0-1") and ranges.from_text(seen["node"]) == (0, 1)
