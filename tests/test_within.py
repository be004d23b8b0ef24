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

import preflight
from preflight.errors import UsageError
from tests import running

SCRIPT = str(running.ROOT / "tests" / "scripts" / "training.py")


def told_by(folder: Path, run: running.Run, world: int) -> list[dict[str, Any]]:
    finished = run.finish()
    assert finished.exit_codes == [0] * len(finished.exit_codes) and finished.left_over == [], finished.told()
    return [json.loads((folder / f"told-{rank}").read_text()) for rank in range(world)]


def holds(told: list[dict[str, Any]]) -> None:
    for rank, record in enumerate(told):
        assert record["first"] == ["pass", 0, "preflight: PASS"]
        assert record["checks"] == (["env.launch", "env.variables", "env.software", "comm.init"] if rank == 0 else None)
        assert (record["same_environment"], record["children"], record["group"]) == (True, [], False)
        assert record["total"] == len(told) * len(told), "the job's own group works before and after"
        assert record["second"][:2] == ["error", 3] and "plugin.alone.raised" in record["second"][2]
        assert record["usage"].startswith("--only env.lunch: there is no such check or family")


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.more), 2])
@pytest.mark.more
def test_with_plain_variables_the_jobs_store_takes_the_port_after_ours(world: int, tmp_path: Path) -> None:
    run = running.Run(tmp_path)
    for env in running.plain_ranks(world, TEST_TOLD=str(tmp_path / "told-")):
        run.start([sys.executable, SCRIPT], env)
    holds(told_by(tmp_path, run, world))


@pytest.mark.more
def test_under_torchrun_nothing_of_it_reaches_the_launcher(tmp_path: Path) -> None:
    run = running.Run(tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT]
    run.start(command, running.environment(TEST_TOLD=str(tmp_path / "told-")))
    holds(told_by(tmp_path, run, 2))


def test_without_a_launcher_it_is_a_job_of_one_rank(tmp_path: Path) -> None:
    sinks = "baseline='auto', history='history', keep_days=30, textfile='.'"
    run = f"v = preflight.run(only=['env.launch'], {sinks}); print(v.exit_code, v.report['job']['world_size'])"
    code = f"import preflight; {run}"
    done = running.run_to_end([sys.executable, "-c", code], cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "0 1", done.stdout + done.stderr
    assert {"history", "preflight.prom"} <= {path.name for path in tmp_path.iterdir()}


HANGS = """
import preflight
print("begins", flush=True)
preflight.run(only=["plugin"], plugins=["alone"], settings={"plugin.alone.deed": "hang_python", "plugin.alone.by": 0})
"""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.more)])
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
        process.wait(running.HUNG_S)
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive


SPAWNED = """
import os, sys
import torch.multiprocessing as mp

def rank(index, when):
    import torch.distributed as dist
    import preflight
    if when == "after":
        place = "tcp://127.0.0.1:" + os.environ["TEST_PORT"]
        dist.init_process_group("gloo", init_method=place, rank=index, world_size=2)
    if when == "lightning":  # what its own launcher sets, and what it leaves out
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["TEST_PORT"], "WORLD_SIZE": "2",
                       "NODE_RANK": "0", "LOCAL_RANK": str(index)}
        dist.init_process_group("gloo", rank=index, world_size=2)
    try:
        verdict = preflight.run(only=["env.launch", "comm.init"], quiet=True, deadline_s=40)
        said = [index, verdict.verdict, verdict.report["job"]["world_size"] if verdict.report else None]
        os.write(1, (" ".join(map(str, said)) + "\\n").encode())  # at once: the other rank writes, too
    except preflight.planning.registry.UsageError as error:
        os.write(1, f"{index} {error}\\n".encode())

if __name__ == "__main__":
    mp.spawn(rank, args=(sys.argv[1],), nprocs=2)
"""


@pytest.mark.parametrize("when", ["before", "after", "lightning"])
@pytest.mark.more
def test_spawned_ranks_are_known_by_their_process_group_or_refused(when: str, tmp_path: Path) -> None:
    """A run of each rank for itself would pass, and have tested nothing between them."""
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    env = running.environment(TEST_PORT=str(running.free_port()))
    command = [sys.executable, "-W", "ignore", str(script), when]
    done = running.run_to_end(command, env, tmp_path)
    lines = sorted(done.stdout.splitlines())
    if when != "before":
        assert lines == ["0 pass 2", "1 pass None"], done.stdout + done.stderr
    else:
        assert [line[0] for line in lines] == ["0", "1"], done.stdout + done.stderr
        assert all("set RANK and WORLD_SIZE, or call it after init_process_group" in line for line in lines), lines


def test_a_rank_of_lightnings_launcher_is_told_where_to_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has come by already, alone: this one would wait for it until the deadline."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2", "NODE_RANK": "0", "LOCAL_RANK": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError, match=r"RANK is not set, as where Lightning.*setup\(\), or after fabric.launch\(\)"):
        preflight.run(only=["env.launch"], quiet=True, deadline_s=5)


@pytest.mark.more
def test_it_needs_no_disk_and_leaves_nothing_there(tmp_path: Path) -> None:
    code = "import preflight; print(preflight.run(level='quick', quiet=True).verdict)"
    env = running.environment(TMPDIR=str(tmp_path / "none"))
    done = running.run_to_end([sys.executable, "-c", code], env, "/")
    assert done.stdout.strip() in ("pass", "warn"), done.stdout + done.stderr


def test_other_ranks_print_nothing_while_the_store_goes(tmp_path: Path) -> None:
    run = running.Run(tmp_path)
    for env in running.plain_ranks(2):
        code = "import preflight; preflight.run(only=['env.launch'], quiet=True)"
        run.start([sys.executable, "-c", code], env)
    finished = run.finish()
    assert finished.output == "" and finished.exit_codes == [0, 0], finished.output


@pytest.mark.process
def test_a_model_is_named_as_on_the_command_line() -> None:
    with pytest.raises(UsageError, match=r"--model: model\.build: expected MODULE:FUNCTION or FILE\.py:FUNCTION"):
        preflight.run(model="model.build")
