"""What a shell, a container or a launcher may do to a process before it starts."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import running
from tests.faults import ELSEWHERE
from tests.hosts import needs_hosts
from tests.running import Run

FULL = "python -m preflight --only env --report {folder} --deadline 30"


def command(folder: Path) -> str:
    return FULL.format(folder=folder).replace("python", sys.executable)


SINGLY = [pytest.param(closed, marks=pytest.mark.more) for closed in ("<&-", ">&-", "2>&-")]


@pytest.mark.parametrize("closed", [*SINGLY, "<&- >&- 2>&-"])
def test_closed_descriptors(closed: str, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start(["sh", "-c", f"exec {command(tmp_path)} {closed}"], running.plain_ranks(1)[0])
    finished = run.finish()
    assert finished.exit_codes == [0] and finished.report["verdict"] == "pass", finished.told()


@pytest.mark.parametrize("arguments", ["", "--json /proc/nowhere/x"], ids=["sound", "mistake"])
@pytest.mark.more
def test_a_full_pipe_that_nobody_reads(arguments: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"x" * 4096)
    process = subprocess.Popen(
        f"exec {command(tmp_path)} {arguments}", shell=True, env=running.plain_ranks(1)[0], stdout=writing,
        stderr=writing,
    )  # fmt: skip
    try:
        assert process.wait(timeout=30 + running.PATIENCE_S) == (2 if arguments else 0)
    finally:
        process.kill()
        process.wait()
        os.close(reading)
        os.close(writing)


def test_children_of_the_shell_before_us_are_left_alone(tmp_path: Path) -> None:
    run = Run(tmp_path)
    script = f"sleep 1000 & echo $! >{tmp_path}/pid; exec {command(tmp_path)}"
    run.start(["sh", "-c", script], running.plain_ranks(1)[0])
    finished = run.finish_but_for(lambda: int((tmp_path / "pid").read_text()))
    assert finished.exit_codes == [0] and finished.left_over == [], finished.told()


def test_sigchld_ignored_by_the_parent(tmp_path: Path) -> None:
    run = Run(tmp_path)
    ignore = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    words = ["--only", "plugin", "--plugin", "alone", "--set", "plugin.alone.deed=segfault"]
    words += ["--report", str(tmp_path), "--deadline", "60"]
    first, second = running.plain_ranks(2)
    run.start_rank(0, words, first)
    run.start_rank(1, words, second, wrap=[sys.executable, "-c", ignore])
    finished = run.finish()
    (found,) = finished.findings()
    assert found["code"] == "plugin.alone.crashed" and "SIGSEGV" in found["message"], finished.told()
    assert [outcome["signal"] for outcome in finished.check("plugin.alone")["outcomes"]] == ["SIGSEGV"]


def test_nohup_is_heeded(tmp_path: Path) -> None:
    """The hang-up comes from a check, in the middle of the run."""
    run = Run(tmp_path)
    words = ["--only", "plugin", "--plugin", "alone", "--set", "plugin.alone.deed=hang_up_supervisor"]
    words += ["--report", str(tmp_path), "--deadline", "60"]
    first, second = running.plain_ranks(2)
    run.start_rank(0, words, first)
    run.start_rank(1, words, second, wrap=["nohup"])
    finished = run.finish()
    assert finished.exit_codes == [0, 0], finished.told()


@needs_hosts
def test_ranks_in_process_namespaces_of_their_own(tmp_path: Path) -> None:
    """As in containers with host network: one's process numbers mean nothing to the other."""
    run = Run(tmp_path)
    words = ["--only", "plugin", "--plugin", "alone", "--set", "plugin.alone.deed=pause"]
    words += ["--report", str(tmp_path), "--deadline", "60"]
    first, second = running.plain_ranks(2)
    run.start_rank(0, words, first, wrap=["unshare", "--pid", "--fork", "--mount-proc"])
    run.start_rank(1, words, second)
    finished = run.finish()
    assert finished.exit_codes == [0, 0] and finished.findings() == [], finished.told()


@needs_hosts
def test_a_host_without_loopback_is_told_so(tmp_path: Path) -> None:
    run = Run(tmp_path, deadline_s=30)
    line = running.preflight("run", "--only", "env", "--deadline", "30")
    run.start(["unshare", "--net", *line], running.environment())
    finished = run.finish()
    assert finished.exit_codes == [3] and "ip link set lo up" in finished.output, finished.told()


@pytest.mark.more
def test_a_restart_after_a_pass_measures_again(tmp_path: Path) -> None:
    """What failed then may be the machine."""
    run = Run(tmp_path)
    job = f"{command(tmp_path)} && exit 1"
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--max-restarts",
        "1",
        "--nproc-per-node",
    ]
    run.start([*launcher, "1", "--no-python", "sh", "-c", job], running.environment())
    finished = run.finish()
    assert finished.output.count("PASS  env.launch") == 2, finished.told()


def test_what_there_was_no_time_for_has_not_passed(tmp_path: Path) -> None:
    finished = running.run_ranks(tmp_path, running.plain_ranks(1), "--only", "env,plugin", "--plugin", "too_long")
    (found,) = finished.findings()
    assert ELSEWHERE["no_time"].is_told_by([found]) and "plugin.too_long" in found["message"], finished.told()
    assert finished.exit_codes == [3], finished.told()


@pytest.mark.more
def test_a_world_size_that_is_nonsense_ends_in_time(tmp_path: Path) -> None:
    (env,) = running.plain_ranks(1)
    finished = running.run_ranks(tmp_path, [{**env, "WORLD_SIZE": "1000000"}], "--only", "env", deadline_s=15)
    lost = [f for f in finished.findings() if f["code"] == "preflight.run.lost"]
    assert [f["ranks"] for f in lost] == ["1-999999"], finished.told()


def test_a_master_that_does_not_resolve_is_said_at_once(tmp_path: Path) -> None:
    (env,) = running.plain_ranks(1)
    finished = running.run_ranks(tmp_path, [{**env, "MASTER_ADDR": "no-such-host.invalid"}], "--only", "env")
    assert ELSEWHERE["unresolvable"].is_told_by(finished.findings(finished.report_named("report.rank-0.json")))
    assert finished.exit_codes == [1], finished.told()
    assert "no-such-host.invalid does not resolve" in " ".join(finished.output.split()), finished.told()


def test_ctrl_c_for_all_of_torchrun_leaves_nothing(tmp_path: Path) -> None:
    """A check sends it to torchrun's whole group, as a terminal does."""
    finished = running.run_torchrun(
        tmp_path, 2, "--only", "plugin", "--plugin", "alone", "--set", "plugin.alone.deed=interrupt_group"
    )
    assert ELSEWHERE["interrupted_torchrun"].is_told_by(finished.findings()), finished.told()
    assert finished.left_over == [] and signal.SIGKILL not in map(abs, finished.exit_codes), finished.told()
