"""What a machine's own logs say counts in a job's time only, and where the job did not go on; a lost node is named."""

from pathlib import Path

import pytest

from preflight.explain.command import explain_paths
from preflight.results.report import Report

XID = "node-a kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.\n"
OTHERS = "node-a kernel: Memory cgroup out of memory: Killed process 999 (jupyter-lab) total-vm:9kB, anon-rss:8kB\n"
PANIC = "node-a kernel: Kernel panic - not syncing: Fatal exception\n"
CRASH = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 31, in <module>\n    go()\n'
    "RuntimeError: NCCL communicator was aborted on rank 3.\n"
)
KEY_ERROR = CRASH.replace("RuntimeError: NCCL communicator was aborted on rank 3.", "KeyError: 'width'")
FORMS = {"python": "2026-11-26 {}:00,120 train INFO ", "iso": "2026-11-26T{}:00.120+00:00 "}
KERNEL = {"python": "Nov {:02} {}:00 ", "iso": "2026-11-{:02}T{}:00.000000+00:00 "}


def steps(form: str, first: int, last: int, late: int = 0) -> str:
    """Every five minutes from 10:00 on, and `late` steps later."""
    stamps = (f"{10 + number // 12}:{5 * (number % 12):02}" for number in range(first + late, last + late))
    return "".join(f"{FORMS[form].format(at)}step {n}0: loss 2.{n}\n" for n, at in enumerate(stamps, first))


def explained(folder: Path, **logs: str) -> Report:
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)
    return explain_paths([str(folder)])


def codes(report: Report) -> list[str]:
    return [finding.code.removeprefix("explain.") for finding in report.findings if finding.severity == "fail"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("line", [XID, PANIC, OTHERS], ids=["xid", "panic", "oom"])
def test_a_fault_before_the_job_is_none_of_the_job_s(form: str, line: str, tmp_path: Path) -> None:
    before = KERNEL[form].format(24, "03:00") + line
    report = explained(tmp_path, job=steps(form, 0, 9), kernel=before)
    assert (codes(report), report.exit_code) == ([], 0)
    assert codes(explained(tmp_path, job=steps(form, 0, 9) + KEY_ERROR, kernel=before)) == ["app_crash"]


def test_a_fault_after_which_the_job_went_on_is_a_warning(tmp_path: Path) -> None:
    report = explained(tmp_path, job=steps("iso", 0, 9), kernel=KERNEL["iso"].format(26, "10:11") + XID)
    (found,) = report.findings
    assert (found.severity, found.code, report.exit_code) == ("warn", "explain.gpu_hw_fault", 0)
    assert "the job went on after it" in found.message


def test_a_gpu_that_the_first_attempt_lost_is_not_the_second_one_s(tmp_path: Path) -> None:
    ended = (
        "E1126 10:12:00.000000 9563 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) "
        "local_rank: 1 (pid: 9001) of binary: /usr/bin/python3\n"
    )
    job = steps("iso", 0, 3) + CRASH + ended + steps("iso", 0, 9, late=4)
    report = explained(tmp_path, job=job, kernel=KERNEL["iso"].format(26, "10:11") + XID)
    assert codes(report) == [] and report.exit_code == 0


@pytest.mark.parametrize(
    ("at", "job"),
    [
        pytest.param((26, "10:11"), steps("python", 0, 3), id="silence after it"),
        pytest.param((26, "10:11"), steps("python", 0, 4), id="one more step"),
        pytest.param((26, "10:11"), steps("python", 0, 5) + CRASH, id="two more steps, then it failed"),
        pytest.param((24, "03:00"), CRASH, id="no step at all"),
        pytest.param((26, "09:58"), steps("python", 0, 2) + CRASH, id="as it began"),
        pytest.param((26, "02:11"), steps("python", 0, 4), id="eight hours before, or a host in California"),
    ],
)
def test_a_fault_in_the_job_s_time_is_its_cause(at: tuple[int, str], job: str, tmp_path: Path) -> None:
    report = explained(tmp_path, job=job, kernel=KERNEL["python"].format(*at) + XID)
    assert codes(report)[:1] == ["gpu_hw_fault"]


@pytest.mark.parametrize(("last", "more"), [(4, ""), (5, CRASH)], ids=["one more step", "two more, then it failed"])
def test_so_it_is_by_clocks_with_a_zone(last: int, more: str, tmp_path: Path) -> None:
    report = explained(tmp_path, job=steps("iso", 0, last) + more, kernel=KERNEL["iso"].format(26, "10:11") + XID)
    assert codes(report)[:1] == ["gpu_hw_fault"]


def test_a_port_error_before_many_steps_is_no_failure(tmp_path: Path) -> None:
    event = "node-a:812:990 [3] NCCL WARN NET/IB : mlx5_2:1 Got async event : port error\n"
    assert codes(explained(tmp_path, job=steps("python", 0, 2) + event + steps("python", 2, 9))) == []


BATCH = (
    "slurmstepd: error: *** JOB 4711 ON node-a CANCELLED AT 2026-03-14T09:12:44 DUE TO NODE FAILURE, SEE SLURMCTLD LOG "
    "FOR DETAILS ***\n"
)
LOST = {
    "srun": "srun: error: Node failure on node-c\n",
    "slurmctld": "[2026-03-14T09:12:40.001] error: Nodes node-c not responding, setting DOWN\n",
    "kubernetes": "Node node-c status is now: NodeNotReady\n",
}


@pytest.mark.parametrize("who", LOST)
@pytest.mark.parametrize("is_first", [True, False])
def test_the_lost_node_is_named_and_not_the_batch_host(who: str, is_first: bool, tmp_path: Path) -> None:
    report = explained(tmp_path, job=steps("python", 0, 3) + (BATCH + LOST[who] if is_first else LOST[who] + BATCH))
    first = report.findings[0]
    assert (first.code, first.where) == ("explain.node_lost", {"node": "node-c"})


def test_a_batch_host_alone_is_not_to_blame(tmp_path: Path) -> None:
    first = explained(tmp_path, job=steps("python", 0, 3) + BATCH).findings[0]
    assert (first.code, first.where) == ("explain.node_lost", {})


def test_a_console_s_panic_names_its_node(tmp_path: Path) -> None:
    lost = "".join(f"[rank{rank}]: RuntimeError: Connection closed by peer [10.0.0.3]:4242\n" for rank in (0, 1))
    console = KERNEL["iso"].format(26, "10:11") + PANIC.replace("node-a", "node-c")
    report = explained(tmp_path, job=steps("iso", 0, 3) + lost, console=console)
    first = report.findings[0]
    assert (first.code, first.where.get("node")) == ("explain.node_fault", "node-c")
