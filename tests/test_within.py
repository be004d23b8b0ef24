"""`preflight.run()` from within a training script: real ranks, a real process group before, beside and after it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import running

SCRIPT = str(running.ROOT / "tests" / "scripts" / "training.py")


def told_by(folder: Path, run: running.Run, world: int) -> list[dict[str, Any]]:
    finished = run.finish()
    assert finished.exit_codes == [0] * len(finished.exit_codes) and finished.left_over == [], finished.told()
    return [json.loads((folder / f"told-{rank}").read_text()) for rank in range(world)]


def holds(told: list[dict[str, Any]]) -> None:
    for rank, one in enumerate(told):
        assert one["first"] == ["pass", 0, "preflight: PASS"]
        assert one["checks"] == (["env.launch", "env.variables", "env.software", "comm.init"] if rank == 0 else None)
        assert (one["same_environment"], one["children"], one["group"]) == (True, [], False)
        assert one["total"] == len(told) * len(told), "the job's own group works before and after"
        assert one["second"][:2] == ["error", 3] and "plugin.alone.raised" in one["second"][2]
        assert one["usage"].startswith("--only env.lunch: there is no such check or family")


@pytest.mark.parametrize("world", [1, 3])
def test_with_plain_variables_the_jobs_store_takes_the_port_after_ours(world: int, tmp_path: Path) -> None:
    run = running.Run(tmp_path)
    for env in running.plain_ranks(world, TEST_TOLD=str(tmp_path / "told-")):
        run.start([sys.executable, SCRIPT], env)
    holds(told_by(tmp_path, run, world))


def test_under_torchrun_nothing_of_it_reaches_the_launcher(tmp_path: Path) -> None:
    run = running.Run(tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT]
    run.start(command, running.environment(TEST_TOLD=str(tmp_path / "told-")))
    holds(told_by(tmp_path, run, 2))


def test_without_a_launcher_it_is_a_job_of_one_rank(tmp_path: Path) -> None:
    code = "import preflight; v = preflight.run(only=['env.launch']); print(v.exit_code, v.report['job']['world_size'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=running.environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "0 1", done.stdout + done.stderr


HANGS = """
import preflight
print("begins", flush=True)
preflight.run(only=["plugin"], plugins=["alone"], settings={"plugin.alone.deed": "hang_python", "plugin.alone.by": 0})
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_process_that_is_ended_takes_it_along(number: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HANGS], env=running.environment(TEST_CHECK_DEADLINE_S="60"), cwd=tmp_path,
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert any("waiting" in line or "begins" in line for line in process.stdout)
        ours = psutil.Process(process.pid)
        while not ours.children(recursive=True):
            assert process.poll() is None
        family = ours.children(recursive=True)
        os.kill(process.pid, number)
        process.wait(40)
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive
