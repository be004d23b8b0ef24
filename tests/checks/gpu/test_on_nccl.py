"""Several ranks or nodes on made-up machines. Their driver has device files, so that a run of level quick chooses nccl,
and each rank is to have a GPU."""

from pathlib import Path

import pytest

from preflight.check import Run
from preflight.checks.gpu import nvlink
from preflight.results import report_files
from tests.checks.gpu import in_machine
from tests.checks.gpu.in_machine import needs_machines
from tests.faults import ELSEWHERE
from tests.running import Finished
from tests.standin import machines
from tests.standin.machines import Machine

pytestmark = needs_machines
QUICK = ("--level", "quick", "--only")
RANKS = ("gpu_of_two_ranks", "gpu_for_no_rank", "gpu_prohibited", "gpu_in_instances")


def are_told(finished: Finished, *names: str) -> None:
    """Each by the one finding of its code, and nothing else above info."""
    rows = [ELSEWHERE[name] for name in names]
    found = finished.findings(finds=[find for row in rows for find in row.finds])
    for row in rows:
        (mine,) = [finding for finding in found if f"{finding['severity']} {finding['code']}" in row.finds]
        assert row.is_told_by([mine]), f"{row.name}: {finished.told()}"
        assert row.says in mine["message"] and "{" not in mine["fix"], f"{row.name}: {mine}"
    above = [
        finding for finding in found if f"info {finding['code']}" not in {find for row in rows for find in row.finds}
    ]
    assert len(above) == sum(row.exit_code for row in rows), finished.told()
    assert finished.report["exit_code"] == max(row.exit_code for row in rows), finished.told()
    assert finished.report["job"]["backend"] == "nccl" and finished.left_over == [], finished.told()


@pytest.mark.more
def test_ranks_without_a_whole_gpu_of_their_own(tmp_path: Path) -> None:
    """Rank 0 is sound."""
    changes = {"gpu.3.compute_mode": 2, "gpu.4.mig.mode": 1, "gpu.4.mig.pending": 1}
    machine = machines.load("h100_nvswitch", tmp_path, changes)
    own = {rank: {"CUDA_VISIBLE_DEVICES": which} for rank, which in enumerate(("0", "0", "-1", "3", "4"))}
    are_told(in_machine.run_ranks(machine, tmp_path, 5, *QUICK, "gpu.inventory", own=own), *RANKS)


def test_three_nodes_of_two_nvlink_domains(tmp_path: Path) -> None:
    """The second has no IMEX channel, and one GPU less than the others: driver and bus have lost it."""
    gone: dict[str, str | None] = {"/sys/bus/pci/devices/0000:df:00.0": None}
    nodes = [_node(tmp_path, 0, 1), _node(tmp_path, 1, 1, gone, count=7), _node(tmp_path, 2, 2)]
    finished = in_machine.run_nodes(nodes, tmp_path, *QUICK, "gpu.nvlink")
    are_told(finished, "nvlink_domains", "imex_of_two_nodes", "gpu_fewer")
    saved, path = report_files.load(str(tmp_path))
    book, job = report_files.facts_beside(path), saved.job
    known = nvlink.groups(book.of("gpu.nvlink"), Run(job, (0, 1, 2), {}, facts_of=book.of))
    both, last = ("node-0", "node-1"), ("node-2",)
    assert [(group.name.partition(" of ")[0], group.nodes) for group in known] == [
        ("NVLink domain 11111111...", both), ("NVLink domain 22222222...", last),
        ("clique 0", both), ("clique 0", last),
    ]  # fmt: skip


def _node(folder: Path, number: int, domain: int, less: dict[str, str | None] | None = None, **more: object) -> Machine:
    """In the NVLink domain of this number, with IMEX unless it has something less."""
    own = in_machine.own_uuids(number) | {f"gpu.{gpu}.fabric.cluster": 32 * str(domain) for gpu in range(8)}
    channel = {} if less else {"/dev/nvidia-caps-imex-channels/channel0": ""}
    files = {**(less or {}), **channel}
    return machines.load("b200_nvswitch", folder, {**own, **more}, files=files, services=("nvidia-imex",))
