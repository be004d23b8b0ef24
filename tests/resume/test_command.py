"""The command itself, on a script in processes of its own."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running import preflight, run_to_end

pytestmark = pytest.mark.process

SCRIPT = """
import os, signal, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder, fault = sys.argv[1], sys.argv[2]
path, asked = os.path.join(folder, "last.pt"), []
if fault == "fails" and os.path.exists(path):
    raise RuntimeError("size mismatch for 0.weight")
if fault == "on SIGTERM":
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(3 + rank))
start = 0
if os.path.exists(path):
    saved = torch.load(path)
    net.load_state_dict(saved["net"])
    start = saved["step"]
    if fault != "moments" or rank == 0:
        optimizer.load_state_dict(saved["optimizer"])
for step in range(start, 30):
    optimizer.zero_grad()
    net(rows[step * 2 : step * 2 + 2]).square().mean().backward()
    optimizer.step()
    if bool(asked) if fault == "on SIGTERM" else step == 2:
        if rank == 0:
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, path)
        if asked:
            sys.exit(0)
"""


def resume(folder: Path, fault: str, *options: str, ranks: int = 2) -> dict[str, Any]:
    """Its report."""
    (folder / "train.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = ["resume", "--json", "report.json", *options, "--", *torchrun, "train.py", "{dir}", fault]
    done = run_to_end(preflight(*command), cwd=folder)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert report["exit_code"] == done.returncode, done.stderr
    return report


def found(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(f["code"].rpartition(".")[2], f["message"]) for f in report["checks"][0]["findings"]]


def test_a_rank_whose_moments_are_not_loaded_is_named(tmp_path: Path) -> None:
    ((slug, message),) = found(resume(tmp_path, "moments"))
    assert slug == "moments_lost" and message.startswith("rank 1: AdamW has no")


def test_a_script_that_saves_when_it_is_stopped(tmp_path: Path) -> None:
    report = resume(tmp_path, "on SIGTERM", "--at", "5")
    assert found(report) == [] and report["verdict"] == "pass"
    assert "4 steps on 2 ranks after step 5 compared" in report["checks"][0]["summary"]


def test_a_resume_that_fails_says_why(tmp_path: Path) -> None:
    ((slug, message),) = found(resume(tmp_path, "fails", ranks=1))
    assert slug == "resume_failed" and message.endswith(": RuntimeError: size mismatch for 0.weight")
