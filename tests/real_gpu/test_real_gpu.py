"""On a machine with GPUs, by `make test-gpu`: the family gpu against nvidia-smi, field by field; and NCCL.

With PREFLIGHT_TEST_KEEP=FOLDER the facts of these cards are left there, for tests/real_gpu/fixtures.
"""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from preflight.engine import local_launch
from tests import running
from tests.real_gpu import nvidia_smi
from tests.running import Finished

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not shutil.which("nvidia-smi"), reason="there is no nvidia-smi here"),
]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("quick")
    run = running.Run(folder)
    words = running.preflight("run", "--level", "quick", "--only", "gpu,node", "--report", str(folder))
    run.start(words, running.environment())
    return run.finish()


@pytest.fixture(scope="module")
def facts(quick: Finished) -> dict[str, Any]:
    """By check."""
    with gzip.open(quick.folder / "facts.jsonl.gz", "rt") as lines:
        found = {entry["check"]: entry["facts"] for entry in map(json.loads, lines)}
    if keep := os.environ.get("PREFLIGHT_TEST_KEEP"):
        (Path(keep) / "facts.json").write_text(json.dumps(found, indent=1))
        shutil.copy(quick.folder / "report.json", keep)
        (Path(keep) / "topology.txt").write_text(nvidia_smi.topology())
    return found


def test_this_machine_is_healthy(quick: Finished) -> None:
    assert [finding for finding in quick.findings() if finding["severity"] == "fail"] == [], quick.told()
    statuses = {check["check"]: check["status"] for check in quick.report["checks"]}
    assert "skip" not in {statuses[id_] for id_ in statuses if id_.startswith("gpu.")}, quick.told()


def test_every_gpu_is_as_nvidia_smi_says(facts: dict[str, Any]) -> None:
    handles = list(facts["gpu.inventory"]["seen"]["gpus"].values())
    there = nvidia_smi.gpus()
    assert len(handles) == len(there)
    unlike = []
    for handle, theirs in zip(handles, there, strict=True):
        unlike += nvidia_smi.unlike(handle, theirs, nvidia_smi.HANDLE)
        for check, readings in (
            ("gpu.inventory", nvidia_smi.IDENTITY), ("gpu.health", nvidia_smi.HEALTH), ("gpu.pcie", nvidia_smi.PCIE),
        ):  # fmt: skip
            unlike += nvidia_smi.unlike(facts[check]["look"]["gpus"][handle["uuid"]], theirs, readings)
    assert unlike == []


def test_every_nvlink_is_as_nvidia_smi_says(facts: dict[str, Any]) -> None:
    for number, look in enumerate(facts["gpu.nvlink"]["look"]["gpus"].values()):
        said = nvidia_smi._said("nvlink", "-s", "-i", str(number))
        active = sum("GB/s" in line for line in said.splitlines())
        assert active == sum(link["active"] is True for link in look["links"]), said


def test_the_matrix_is_nvidia_smis(quick: Finished) -> None:
    ours = nvidia_smi.cells("\n".join(quick.check("gpu.topology").get("picture", ["     GPU0", "GPU0  X"])))
    theirs = nvidia_smi.cells(nvidia_smi.topology())
    assert {row: dict(cells) for row, cells in ours.items()} == {row: dict(theirs[row]) for row in ours}


def test_two_looks_leave_nothing_on_the_gpus(quick: Finished) -> None:
    assert quick.left_over == []


def test_the_whole_plan_runs_on_nccl(tmp_path: Path) -> None:
    finished = running.run_torchrun(tmp_path, local_launch.ranks_here(), "--all", deadline_s=240)
    assert finished.report["job"]["backend"] == "nccl", finished.told()
    assert [finding for finding in finished.findings() if finding["severity"] in ("fail", "error")] == [], (
        finished.told()
    )
    assert finished.exit_codes == [0], finished.told()
    if keep := os.environ.get("PREFLIGHT_TEST_KEEP"):
        shutil.copytree(tmp_path, Path(keep) / "all", dirs_exist_ok=True)


def test_memory_that_another_process_takes_is_found(tmp_path: Path) -> None:
    code = "import torch, sys; x = torch.ones(2**30, device='cuda:0'); print('taken', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=running.environment()
    ) as holder:
        assert holder.stdout and holder.stdout.readline() == b"taken\n"
        run = running.Run(tmp_path)
        words = running.preflight("run", "--level", "quick", "--only", "gpu.health", "--report", str(tmp_path))
        run.start(words, running.environment())
        finished = run.finish()
        holder.kill()
    assert str(holder.pid) in finished.output, finished.told()
