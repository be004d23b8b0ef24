"""Sound worlds of every kind: verdict pass, exit code 0, nothing said, nothing left."""

import os
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from preflight.check import Level
from preflight.planning import built_in, registry
from tests import running
from tests.running import Finished

NEED_A_GPU = ("gpu.health", "gpu.pcie", "gpu.nvlink", "gpu.topology", "gpu.released")
NEED_MORE = (
    *NEED_A_GPU, "node.storage", "node.leftovers", "net.rdma", "net.efa", "net.rdma_errors", "comm.transports",
    "comm.nodes", "comm.pairs", "comm.paths", "data.seeds", "data.resume", "train.model",
)  # fmt: skip
"""What these do not find on a sound machine of the tests: a GPU, a path to look at, an HCA, NCCL, a slow link, a loader
or a model of the user's, an ended job of Slurm. They are left out of the report."""

DRAW = {"env.software", "gpu.compute", "comm.all_reduce", "train.ddp"}
"""Some of those that always have something to plot."""


def is_silent(finished: Finished, world: int, checks: Collection[str] = ()) -> None:
    """But for what the kernel of this machine says in its log, if it may be read, and for a rank that waits for a core:
    the other tests of this moment may well have it."""
    told = finished.told()
    report = finished.report
    others = [check for check in report["checks"] if check["check"] != running.KERNEL]
    found = [(check["check"], finding) for check in others for finding in check["findings"]]
    starved = {id_ for id_, finding in found if finding["evidence"].get("starved")}
    assert [finding for _, finding in found if not finding["evidence"].get("starved")] == [], told
    needs_nodes = ("net.mesh", "net.interface_errors", "comm.rails") if len(report["job"]["nodes"]) == 1 else ()
    needs_ranks = ("comm.send_recv",) if world == 1 else ()
    expected = set(checks or registry.BUILT_IN) - {running.KERNEL, *NEED_MORE, *needs_nodes, *needs_ranks}
    statuses = {id_: "warn" if id_ in starved else "pass" for id_ in expected}
    assert {check["check"]: check["status"] for check in others} == statuses, told
    drawn = {check["check"]: [plot["title"] for plot in check.get("plots", ())] for check in others}
    assert not [title for titles in drawn.values() for title in titles if "raised" in title], drawn
    assert all(drawn[id_] for id_ in expected & DRAW), drawn
    assert report["verdict"] in ("pass", "warn") and report["exit_code"] == 0, told
    assert report["job"]["world_size"] == world and report["job"]["missing_ranks"] == "", told
    assert set(finished.exit_codes) == {0}, told
    assert finished.left_over == [], told


LAUNCHED = (*(id_ for id_ in registry.BUILT_IN if id_.startswith("env.")), "node.clock", "comm.init")
LAUNCH = ("--only", ",".join(LAUNCHED))
"""What shows whether ranks know who they are, and meet; the rest of the plan does not ask who started them."""


@pytest.mark.parametrize(("world", "cold"), [(1, True), pytest.param(5, False, marks=pytest.mark.more)])
@pytest.mark.more
def test_plain_world_is_sound(world: int, cold: bool, tmp_path: Path) -> None:
    """Two ranks are below, with messages of all sizes, on a machine under load."""
    ranks = running.plain_ranks(world)
    finished = running.run_ranks(tmp_path, ranks, "--all", *running.SMALL, cold=cold, deadline_s=120)
    is_silent(finished, world)


@pytest.mark.parametrize(
    "options",
    [["--standalone"], pytest.param(["--master-port", "{port}", "--nnodes", "1"], marks=pytest.mark.more)],
    ids=str,
)
def test_torchrun_is_sound(options: list[str], tmp_path: Path) -> None:
    filled = [option.format(port=running.free_port()) for option in options]
    is_silent(running.run_torchrun(tmp_path, 2, *LAUNCH, options=filled), 2, LAUNCHED)


def _srun(rank: int, world: int) -> dict[str, str]:
    return running.environment(
        SLURM_JOB_ID="77", SLURM_STEP_ID="0", SLURM_PROCID=str(rank), SLURM_STEP_NUM_TASKS=str(world),
        SLURM_LOCALID=str(rank), SLURM_NODEID="0", SLURM_STEP_NODELIST="localhost", SLURMD_NODENAME="gpu-7",
        MASTER_PORT=os.environ["TEST_PORT"],
    )  # fmt: skip


def _mpirun(rank: int, world: int) -> dict[str, str]:
    return running.environment(
        OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE=str(world), OMPI_COMM_WORLD_LOCAL_RANK=str(rank),
        OMPI_COMM_WORLD_LOCAL_SIZE=str(world), MASTER_PORT=os.environ["TEST_PORT"],
    )  # fmt: skip


def _pmi(rank: int, world: int) -> dict[str, str]:
    return running.environment(
        PMI_RANK=str(rank), PMI_SIZE=str(world), MPI_LOCALRANKID=str(rank), MPI_LOCALNRANKS=str(world),
        MASTER_PORT=os.environ["TEST_PORT"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("launch", "launcher"),
    [(_srun, "slurm"), *(pytest.param(launch, "mpi", marks=pytest.mark.more) for launch in (_mpirun, _pmi))],
)
def test_cluster_launchers_are_sound(
    launch: Callable[[int, int], dict[str, str]], launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_PORT", str(running.free_port()))
    finished = running.run_ranks(tmp_path, [launch(rank, 2) for rank in range(2)], *LAUNCH, cold=True)
    is_silent(finished, 2, LAUNCHED)
    assert finished.report["job"]["launcher"] == launcher
    if launcher == "slurm":
        assert finished.report["job"]["nodes"][0]["node"] == "gpu-7"


def test_without_a_launcher_it_starts_its_own_ranks(tmp_path: Path) -> None:
    run = running.Run(tmp_path)
    run.start(running.preflight("run", "--report", str(tmp_path), "--deadline", "60"), running.environment())
    listed = [id_ for id_, entry in built_in.listed().items() if Level.STANDARD.includes(Level(entry.level))]
    is_silent(run.finish(), 2, listed)


def test_quick_without_a_launcher_is_one_process_without_torch(tmp_path: Path) -> None:
    poison = tmp_path / "poison" / "torch"
    poison.mkdir(parents=True)
    (poison / "__init__.py").write_text("raise ImportError('quick must not import torch')")
    env = running.environment()
    env["PYTHONPATH"] = f"{poison.parent}{os.pathsep}{env['PYTHONPATH']}"
    run = running.Run(tmp_path)
    run.start(running.preflight("run", "--level", "quick", "--report", str(tmp_path)), env)
    finished = run.finish()
    assert finished.exit_codes == [0], finished.told()
    statuses = {check["check"]: check["status"] for check in finished.report["checks"]}
    quick = {id_ for id_ in registry.BUILT_IN if registry.load(registry.sources()[id_]).plan.level is Level.QUICK}
    passes = dict.fromkeys(quick - set(NEED_MORE), "pass")
    kernel = {running.KERNEL: statuses[running.KERNEL]}
    assert statuses == {**passes, **kernel, "net.rendezvous": "skip"}, finished.told()
    assert finished.report["job"]["world_size"] == 1


def test_ranks_without_local_rank_are_counted_off(tmp_path: Path) -> None:
    ranks = running.plain_ranks(2)
    for env in ranks:
        del env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]
    is_silent(running.run_ranks(tmp_path, ranks, *LAUNCH), 2, LAUNCHED)


@pytest.mark.more
def test_a_restart_says_the_verdict_again(tmp_path: Path) -> None:
    """With a failure torchrun restarts all ranks: the checks run once."""
    finished = running.run_torchrun(
        tmp_path, 2, "--only", "plugin", "--plugin", "alone", "--set", "plugin.alone.deed=raise",
        options=["--standalone", "--max-restarts", "1"],
    )  # fmt: skip
    told = finished.told()
    assert finished.output.count("ERROR plugin.alone ") == 1, told
    assert finished.output.count("restarted after its verdict") == 1, told
    assert finished.exit_codes == [1] and finished.left_over == [], told
    assert "error_file: <N/A>" not in finished.output, told
    assert "preflight: ERROR:" in finished.output.partition("Root Cause")[2], "torchrun ends with our sentence"


def _sound_under_load(folder: Path, *chosen: str, checks: Collection[str] = ()) -> None:
    """Two busy loops a core beside two ranks: slow, and sound."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        finished = running.run_ranks(folder, running.plain_ranks(2), "--all", *chosen, deadline_s=120)
        is_silent(finished, 2, checks)
    finally:
        for process in busy:
            process.kill()
            process.wait()


TIMED = ("env.launch", "node.clock", "gpu.inventory", "comm.init", "comm.all_reduce", "comm.all_gather")
"""What judges a time, in the order of the plan, and what it needs: with all others by `make soak`."""


def test_a_machine_under_load_is_sound(tmp_path: Path) -> None:
    _sound_under_load(tmp_path, "--only", ",".join(TIMED), checks=TIMED)


@pytest.mark.soak
@pytest.mark.parametrize("time", range(50))
def test_fifty_runs_under_load_are_sound(time: int, tmp_path: Path) -> None:
    _sound_under_load(tmp_path, *running.ONE_VARIANT)
