"""Launchers that are started for real; the variables of those that are not stand in tests/engine/test_identity.py."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import running
from tests.hosts import Host, cluster, needs_hosts

pytestmark = pytest.mark.more
OURS = ("--level", "quick", "--only", "env.launch", "--deadline", "200")
OPEN_MPI = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
"""Unbound: Open MPI gives a rank of two one core, and these machines are busy."""
LAUNCHERS = {
    "openmpi": (*OPEN_MPI, "-np", "2", sys.executable),
    "hydra": ("mpiexec.hydra", "-n", "2", sys.executable),
    "accelerate": (sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
                   "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
    "deepspeed": (sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2"),
}  # fmt: skip
SEEN_AS = {"openmpi": "mpi", "hydra": "mpi", "accelerate": "torchrun", "deepspeed": "env"}
LIGHTNING = """
import pytorch_lightning as pl, sys, torch, preflight
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
class Preflight(pl.Callback):
    def setup(self, trainer, module, stage):
        verdict = preflight.run(only=["env.launch", "comm.init"], report=sys.argv[1], deadline_s=200)
        print(trainer.global_rank, verdict.sentence, flush=True)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=2, callbacks=[Preflight()], **quiet)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2))
"""


def job(folder: Path, words: list[str], **environ: str) -> dict[str, Any]:
    """As the report has it, of a launch in which nothing is found."""
    env = running.environment(RES_OPTIONS="timeout:1 attempts:1", **environ)  # see running.plain_ranks
    done = running.run_to_end([*words, "--report", str(folder)], env=env, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((folder / "report.json").read_text())
    assert [finding for check in report["checks"] for finding in check["findings"]] == [], done.stdout
    found: dict[str, Any] = report["job"]
    return found


@pytest.mark.parametrize("name", LAUNCHERS)
def test_two_ranks_on_one_host(name: str, tmp_path: Path) -> None:
    if not shutil.which(LAUNCHERS[name][0]):
        pytest.skip(f"needs {LAUNCHERS[name][0]}")
    if name == "deepspeed":
        pytest.importorskip("deepspeed", reason="no dependency: pip install deepspeed")
    paths = (str(running.ROOT), str(running.ROOT / ".venv" / "wrappers"))
    path = os.pathsep.join(paths if name == "accelerate" else paths[:1])
    module = "--module" if name == "deepspeed" else "-m"
    found = job(tmp_path, [*LAUNCHERS[name], module, "preflight", *OURS], PYTHONPATH=path)
    assert (found["launcher"], found["world_size"], len(found["nodes"])) == (SEEN_AS[name], 2, 1)


def test_lightnings_own_launcher(tmp_path: Path) -> None:
    """It starts the second rank itself, and sets no RANK."""
    (tmp_path / "fit.py").write_text(LIGHTNING)
    paths = (running.ROOT, running.ROOT / ".venv" / "wrappers")
    env = running.environment(PYTHONPATH=os.pathsep.join(map(str, paths)))
    done = running.run_to_end([sys.executable, "fit.py", "report"], env=env, cwd=tmp_path)
    lines = [line for line in done.stdout.splitlines() if line.endswith("preflight: PASS")]
    assert sorted(lines) == ["0 preflight: PASS", "1 preflight: PASS"], done.stdout + done.stderr
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (done.returncode, report["job"]["world_size"]) == (0, 2), done.stderr


def agent(folder: Path, hosts: list[Host]) -> str:
    """In place of ssh: runs a command on the host of this name."""
    lines = []
    for host in hosts:
        enter = f"ip netns exec {host.namespace} unshare --uts sh -c"
        lines.append(f'{host.name}|{host.address}) exec {enter} "hostname {host.name}; $*" ;;')
    path = folder / "agent.sh"
    path.write_text("#!/bin/bash\nhost=$1\nshift\ncase $host in\n" + "\n".join(lines) + "\nesac\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.hosts
@needs_hosts
@pytest.mark.skipif(not shutil.which("mpirun.openmpi"), reason="needs Debian's openmpi-bin")
def test_open_mpi_over_two_hosts(tmp_path: Path) -> None:
    with cluster(2) as hosts:
        mca = ["--mca", "plm_rsh_agent", agent(tmp_path, hosts), "--mca", "oob_tcp_if_include", "eth0"]
        where = ["--host", ",".join(f"{host.name}:1" for host in hosts), "-np", "2", "-x", "PYTHONPATH"]
        master = ["-x", "MASTER_ADDR=host-a", "-x", "MASTER_PORT=29531"]
        words = [*OPEN_MPI, *mca, *where, *master, sys.executable, "-m", "preflight", *OURS]
        found = job(tmp_path, hosts[0].command(words))
    assert (found["launcher"], found["world_size"]) == ("mpi", 2)
    assert [(node["node"], node["ranks"]) for node in found["nodes"]] == [("host-a", "0"), ("host-b", "1")]
