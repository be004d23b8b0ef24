"""Real ranks, whose NCCL is a stand-in (tests/nccl_at_work): the log is made up, all that reads it is not."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.check import NotApplicable, Skip
from preflight.checks.comm import transports
from tests import running
from tests.checks.comm import made_nccl
from tests.checks.comm.made_nccl import ONE_GPU, Machine
from tests.checks.net import made_hcas
from tests.checks.net.made_hcas import needs_mounts
from tests.faults import ELSEWHERE
from tests.nodes import run_nodes
from tests.running import Finished

AT_WORK = os.pathsep.join(map(str, (running.ROOT / "tests" / "nccl_at_work", running.ROOT, running.PLUGINS)))
ALONE = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
CLUSTER = replace(ONE_GPU, nodes=3, version="2.27.5")


def run(
    folder: Path, only: str, logs: Mapping[int, str], errors: Mapping[int, str] | None = None, world: int = 3,
    before: Mapping[int, str] | None = None,
) -> Finished:  # fmt: skip
    """A rank a node. `logs`, `errors`: by rank."""
    environ = {**written(folder, logs, errors or {}), **ALONE}
    return run_nodes(folder, world, "--only", only, environ=environ, before=before)


def written(folder: Path, logs: Mapping[int, str], errors: Mapping[int, str]) -> dict[str, str]:
    """The environment in which the stand-in finds them."""
    nccl = folder / "nccl"
    nccl.mkdir()
    for rank, text in logs.items():
        (nccl / f"{rank}.log").write_text(text)
    for rank, text in errors.items():
        (nccl / f"{rank}.error").write_text(text)
    return {"PYTHONPATH": AT_WORK, "PREFLIGHT_TEST_NCCL": str(nccl), "NCCL_CONF_FILE": "/dev/null"}


def logs(machine: Machine, odd: Machine | None = None) -> dict[int, str]:
    """`odd`: of the second node."""
    return {rank: made_nccl.log(odd if odd and rank == 1 else machine, rank) for rank in range(machine.nodes)}


def of_comm(finished: Finished) -> list[dict[str, Any]]:
    """gpu.inventory tells that there is no GPU."""
    return [one for one in finished.findings() if one["code"].startswith("comm.")]


def test_a_sound_cluster(tmp_path: Path) -> None:
    """Two nodes of two ranks: each sends to the next, and to its like on the other node."""
    machine = Machine(gpus=2, nodes=2)
    nccl = written(tmp_path, {rank: made_nccl.log(machine, rank) for rank in range(4)}, {})
    started = running.Run(tmp_path)
    words = ["--only", "comm.transports", "--report", str(tmp_path), "--deadline", "60"]
    for rank, place in enumerate(running.plain_ranks(4)):
        node = {"NODE_RANK": str(rank // 2), "SLURMD_NODENAME": f"node-{rank // 2}", "LOCAL_WORLD_SIZE": "2"}
        started.start_rank(rank, words, {**place, **node, "LOCAL_RANK": str(rank % 2), **nccl})
    finished = started.finish()
    assert of_comm(finished) == [], finished.told()
    check = finished.check("comm.transports")
    assert check["status"] == "pass", finished.told()
    summary = "NCCL 2.27.5: P2P/CUMEM in the node, IB with GPUDirect between nodes, NVLS, 16 channels"
    assert check["summary"] == summary, finished.told()


@needs_mounts
def test_a_node_goes_over_sockets(tmp_path: Path) -> None:
    cards = made_hcas.cards(1, verbs="unknown")
    trees = [made_hcas.write(tmp_path / f"tree-{rank}", cards) for rank in range(3)]
    before = {rank: f"mount --bind {tree}/sys/class /sys/class" for rank, tree in enumerate(trees)}
    odd = replace(CLUSTER, across="Socket", settings={"NCCL_IB_DISABLE": "1"})
    finished = run(tmp_path, "comm.transports", logs(CLUSTER, odd), before=before)
    (one,) = of_comm(finished)
    assert ELSEWHERE["nccl_socket"].is_told_by([one]), finished.told()
    assert one["message"].endswith("expected RDMA: mlx5_0 is active: NCCL_IB_DISABLE=1"), finished.told()


@pytest.mark.parametrize(
    ("log", "words"),
    [("", "written no log"), ("of another kind\n", "NCCL 9.9.9's log does not say how its ranks are connected")],
)
def test_a_log_that_says_nothing_is_a_skip(log: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "_loaded", lambda: "9.9.9")
    context = replace(made_hcas.context("comm.transports"), members=(0, 1), read_nccl_log=lambda: log)
    with pytest.raises(Skip, match=words):
        transports.read(context)


def test_what_nccl_reads_without_a_word() -> None:
    own = {"NCCL_NET": "Socket", "NCCL_P2P_DISABLE": "1", "NCCL_IB_HCA": "of the log", "AWS_SECRET": "x"}
    log = made_nccl.log(CLUSTER, 1)
    context = replace(made_hcas.context("comm.transports", own), members=(0,), read_nccl_log=lambda: log)
    assert transports.read(context)["settings"] == {"NCCL_NET": "Socket", "NCCL_P2P_DISABLE": "1"}


def test_gloo_has_no_transports() -> None:
    with pytest.raises(NotApplicable, match="gloo"):
        transports.measure(made_hcas.context("comm.transports"))


def test_a_failed_start(tmp_path: Path) -> None:
    """The second rank tells of a full /dev/shm, the others of a peer that they lost."""
    full = "\ngpu-1:1:1 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-KWfVyt to 4096 bytes\n"
    lost = "\ngpu-0:1:1 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer gpu-1<4123>\n"
    text = "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system error, NCCL version 2.27.5"
    errors = dict.fromkeys(range(3), f"{text}\nncclRemoteError: remote process exited or there was a network error\n")
    finished = run(tmp_path, "comm.init", {0: lost, 1: full, 2: lost}, errors)
    assert ELSEWHERE["nccl_shared_memory"].is_told_by(of_comm(finished)), finished.told()
    (one,) = [found for found in of_comm(finished) if found["code"] == "comm.init.shared_memory"]
    assert (one["where"], one["noticed_by"]) == ({"node": "node-1", "rank": 1}, "0,2"), finished.told()
