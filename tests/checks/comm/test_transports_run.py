"""Real ranks, whose NCCL is a stand-in (tests/nccl_at_work), on made-up machines: NCCL's log is made up, all that reads
it is not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from preflight.check import NotApplicable, Skip
from preflight.checks.comm import transports
from tests.checks.comm import at_work, made_nccl
from tests.checks.comm.made_nccl import Machine
from tests.checks.gpu.in_machine import needs_machines
from tests.checks.net import made_hcas
from tests.faults import comm_init
from tests.faults.row import Fault
from tests.running import Finished
from tests.standin import machines

CHECK = "comm.transports"
GPUS = 8
ALONE = Machine(gpus=1, nodes=7, inside="")
PAIRS = Machine(gpus=2, nodes=4)


def run(folder: Path, usual: Machine, odd: Mapping[int, Machine]) -> Finished:
    """`odd`: nodes whose NCCL does otherwise. All are DGX H100, whatever NCCL says."""
    of = {rank: odd.get(rank // usual.gpus, usual) for rank in range(usual.gpus * usual.nodes)}
    logs = {rank: made_nccl.log(machine, rank) for rank, machine in of.items()}
    untold = {
        rank: {name: value for name, value in machine.settings.items() if name in transports.UNTOLD}
        for rank, machine in of.items()
    }
    nodes = [machines.load("h100_nvswitch", folder, _named(node)) for node in range(usual.nodes)]
    return at_work.run(folder, CHECK, logs, world=len(of), per_node=usual.gpus, machines=nodes, own=untold)


def _named(node: int) -> dict[str, object]:
    return {f"gpu.{gpu}.uuid": f"GPU-{node:08}-0000-0000-0000-{gpu:012}" for gpu in range(GPUS)}


def told_as(finished: Finished, rows: Sequence[Fault]) -> None:
    """Each finding is that of one row, and there is one for each."""
    told, found = finished.told(), finished.findings()
    assert len(found) == len(rows) and finished.left_over == [], told
    for row in rows:
        mine = [finding for finding in found if f"{finding['severity']} {finding['code']}" in row.finds]
        assert row.is_told_by(mine) and "{" not in mine[0]["fix"], told
    assert finished.report["exit_code"] == max(row.exit_code for row in rows), told


@needs_machines
def test_a_sound_cluster(tmp_path: Path) -> None:
    """Each rank sends to the next, and to its like on the other node."""
    finished = run(tmp_path, replace(PAIRS, nodes=2), {})
    assert finished.findings() == [], finished.told()
    check = finished.check(CHECK)
    assert check["status"] == "pass", finished.told()
    summary = "NCCL 2.27.5: P2P/CUMEM in the node, IB with GPUDirect between nodes, NVLS, 16 channels"
    assert check["summary"] == summary, finished.told()


@needs_machines
def test_what_nccl_chose_between_nodes(tmp_path: Path) -> None:
    odd = {
        1: replace(ALONE, across="Socket", settings={"NCCL_IB_DISABLE": "1"}),
        2: replace(ALONE, gdr=False, supported=False),
        3: replace(ALONE, nvls=False),
        4: replace(ALONE, version="2.26.2"),
        5: replace(ALONE, plugin="IBext", across="IBext"),
        6: replace(ALONE, hcas=ALONE.hcas[:7], settings={"NCCL_IB_HCA": "^mlx5_7"}),
    }
    told_as(run(tmp_path, ALONE, odd), comm_init.BETWEEN)


@needs_machines
def test_what_nccl_chose_inside_of_nodes(tmp_path: Path) -> None:
    no_p2p = {"NCCL_P2P_DISABLE": "1"}
    odd = {
        1: replace(PAIRS, inside="SHM", settings=no_p2p),
        2: replace(PAIRS, inside="", settings={**no_p2p, "NCCL_SHM_DISABLE": "1"}),
        3: replace(PAIRS, inside="", split=True),
    }
    told_as(run(tmp_path, PAIRS, odd), comm_init.INSIDE)


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
    log = made_nccl.log(ALONE, 1)
    context = replace(made_hcas.context("comm.transports", own), members=(0,), read_nccl_log=lambda: log)
    assert transports.read(context)["settings"] == {"NCCL_NET": "Socket", "NCCL_P2P_DISABLE": "1"}


def test_gloo_has_no_transports() -> None:
    with pytest.raises(NotApplicable, match="gloo"):
        transports.measure(made_hcas.context("comm.transports"))
