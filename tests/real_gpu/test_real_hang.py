"""On a machine with a GPU, by `make test-gpu`: a real hang in NCCL, told by torch's flight recorder and NCCL's RAS.

Several ranks share the first GPU; each has an NCCL_HOSTID of its own, so that NCCL takes them for nodes.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from preflight.nccl import ras_snapshot
from tests import running
from tests.running import Finished

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not shutil.which("nvidia-smi"), reason="there is no nvidia-smi here"),
]
WORLD, DEADLINE_S = 3, 30
"""The check's deadline: NCCL's start takes seconds, and a call is looked at when 55% and 65% of it are over."""


def nccl_version() -> tuple[int, ...]:
    """Of torch's; () where torch has none."""
    code = "import torch; print(*torch.cuda.nccl.version() if torch.cuda.is_available() else ())"
    said = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return tuple(map(int, said.stdout.split()))


def hang(folder: Path, deed: str) -> Finished:
    if not nccl_version():
        pytest.skip("torch sees no GPU, or has no NCCL")
    ras = f"localhost:{running.free_port()}"  # another job of this machine may have NCCL's own port
    more: dict[str, Any] = {"TEST_CHECK_DEADLINE_S": str(DEADLINE_S), "NCCL_SOCKET_IFNAME": "lo", "NCCL_RAS_ADDR": ras}
    ranks = [{**env, **more, "NCCL_HOSTID": f"host-{env['RANK']}"} for env in running.plain_ranks(WORLD)]
    for rank in ranks:
        rank["LOCAL_RANK"], rank["CUDA_VISIBLE_DEVICES"] = "0", "0"
    ranks[1][f"TEST_STEPS_{deed.upper()}"] = "1"
    words = ["--only", "plugin", "--plugin", f"steps_{deed}", "--backend", "nccl"]
    return running.run_ranks(folder, ranks, *words, deadline_s=4 * DEADLINE_S)


def test_a_rank_that_leaves_an_all_reduce_out_is_named_on_nccl(tmp_path: Path) -> None:
    finished = hang(tmp_path, "omit_last")
    (found,) = finished.findings()
    assert (found["code"], found["where"].get("rank")) == ("plugin.steps_omit_last.desync", 1), finished.told()
    assert "without entering all_reduce of 8 float32 #5" in found["message"], finished.told()
    assert found["noticed_by"] == "0,2", finished.told()
    hung = [
        outcome for outcome in finished.check("plugin.steps_omit_last")["outcomes"] if outcome["kind"] != "measured"
    ]
    assert hung and all("NCCL INFO" in (outcome["nccl_log"] or "") for outcome in hung), finished.told()
    if nccl_version() >= (2, 24):
        assert any(outcome["ras"] for outcome in hung), finished.told()
    if nccl_version() >= (2, 28, 7):
        (view,) = {outcome["ras"] for outcome in hung if outcome["ras"]}
        snapshot = ras_snapshot.read(view)
        assert snapshot and snapshot["still"], view
        assert snapshot["communicators"][0]["size"] == WORLD and snapshot["communicators"][0]["counts"], view
        assert "AllReduce" in found["evidence"]["ras"] and "does not agree" not in found["message"], finished.told()


def test_a_rank_in_another_collective_is_named_on_nccl(tmp_path: Path) -> None:
    finished = hang(tmp_path, "other")
    (found,) = finished.findings()
    assert (found["code"], found["where"].get("rank")) == ("plugin.steps_other.desync", 1), finished.told()
    assert "broadcast of 8 float32 #2" in found["message"], finished.told()


def test_nccl_itself_says_its_parameters() -> None:
    """Those of the job, and not of this process. 2.30 registers those of its log."""
    if nccl_version() < (2, 30):
        pytest.skip("torch sees no GPU, or its NCCL has no such call")
    code = "import torch; from preflight.nccl import parameters; print(parameters.ask({'NCCL_DEBUG': 'VERSION'}))"
    said = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert "'NCCL_DEBUG': 'VERSION'" in said.stdout, said.stdout + said.stderr
