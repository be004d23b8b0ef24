"""Jobs that really fail, explained end to end by `preflight debug`."""

import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import faults
from tests.running import Finished, Run, environment, free_port

JOBS = Path(__file__).parent / "debug_jobs" / "jobs.py"
DEADLINE_S = 90
LINES = JOBS.read_text().splitlines()


def line_of(words: str) -> int:
    return next(number for number, line in enumerate(LINES, 1) if words in line)


@dataclass
class Case:
    row: str
    """Of the fault table, without "job_"."""
    job: str = ""
    """Of JOBS; otherwise the row's name."""
    line: int | None = None
    """Of JOBS, where the culprit stands."""
    says: str = ""
    """In the headline."""
    env: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()
    before: Sequence[str] = ()
    """Words before the command."""
    needs_root: bool = False


def with_small(place: str) -> Sequence[str]:
    """The words before a command for which `place` is a file system of 1 MiB."""
    return ("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=1m none {place} && exec "$@"', "sh")


ON_MNT = {"SAVE_TO": "/mnt"}
SPAWNED = {"SPAWNED": "1"}
ALONE = {"ONLY_RANKS": "1"}
CASES = (
    Case("exits"),
    Case("raises", line=line_of("sample 17 has no label")),
    Case("other_collective"),
    Case("other_shape", says=f"; ranks 0-1 stood in all_reduce at {JOBS}:{line_of('4 if rank == 0')} in other_shape()"),
    Case("killed"),
    Case("crashes", line=line_of("ctypes.string_at(0)")),
    Case("leaves"),
    Case("shared_memory", before=with_small("/dev/shm"), needs_root=True),
    Case("full_disk", line=line_of("torch.ones(1 << 20)"), env=ON_MNT, before=with_small("/mnt"), needs_root=True),
    Case("truncated", line=line_of("torch.load(path)"), env=ON_MNT, before=with_small("/mnt"), needs_root=True),
    Case("gpu_busy", line=line_of("busy or unavailable")),
    Case("interface", "healthy", env={"GLOO_SOCKET_IFNAME": "nosuch0"}),
    Case("name", "healthy", env={**ALONE, "MASTER_ADDR": "no-such-host.invalid"}),
    Case("refused", "healthy", env=ALONE),
    Case("stuck_loader", line=line_of("time.sleep(1000)"), options=("--hang-after", "3")),
    pytest.param(
        Case("spawned", "raises", line=line_of("sample 17 has no label"), env=SPAWNED), marks=pytest.mark.more
    ),
    pytest.param(
        Case("spawned_stuck", "stuck_loader", line_of("time.sleep(1000)"), "", SPAWNED, ("--hang-after", "3")),
        marks=pytest.mark.more,
    ),
)


def debug(
    folder: Path, command: Sequence[str], options: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Finished:
    """`preflight debug` with this command; its report is in `folder`/report."""
    run = Run(folder, DEADLINE_S)
    words = [sys.executable, "-m", "preflight", "debug", "--report", str(folder / "report"), *options, "--", *command]
    run.start(words, {**environment(), **(env or {})})
    done = run.finish()
    done.folder = folder / "report"
    return done


def assert_told(row: str, done: Finished) -> None:
    """As the fault table has it: the first finding is the cause, and the exit code the job's own."""
    fault = faults.ELSEWHERE[f"job_{row}"]
    first, *_ = [*done.findings(), {"severity": "no", "code": "finding", "where": {}}]
    assert fault.is_told_by([first]), done.told()
    assert done.exit_codes == [fault.exit_code], done.told()
    assert done.left_over == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.row)
def test_a_job_that_fails_is_explained(case: Case, tmp_path: Path) -> None:
    if case.needs_root and (os.geteuid() or not shutil.which("unshare")):
        pytest.skip("a small file system of its own needs root and unshare")
    done = debug(tmp_path, [*case.before, sys.executable, str(JOBS), case.job or case.row], case.options, case.env)
    assert_told(case.row, done)
    assert case.says in done.findings()[0]["message"]
    if case.line:
        assert done.findings()[0]["where"]["line"] == case.line, done.told()


def torchrun(port: int, *words: str) -> list[str]:
    address = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    return [sys.executable, "-m", "torch.distributed.run", *address, *words]


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        done = debug(tmp_path, torchrun(other.getsockname()[1], str(JOBS), "healthy"))
    assert_told("port", done)


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    done = debug(tmp_path, torchrun(free_port(), "--no-python", "nosuch_trainer"))
    assert_told("program", done)


def test_unused_parameters_under_torchrun(tmp_path: Path) -> None:
    """The hook begins with the interpreter, and each rank's output lies in a file of its own."""
    done = debug(tmp_path, torchrun(free_port(), str(JOBS), "unused"))
    assert_told("unused", done)
    assert "head.weight" in done.output
    assert len(list(done.folder.glob("records/*.json"))) == 2
    assert {path.parent.name for path in done.folder.glob("ranks/*/attempt_0/*/stderr.log")} == {"0", "1"}
    assert done.left_over == []


def test_a_healthy_job_is_left_alone(tmp_path: Path) -> None:
    """No word, no folder, no finding."""
    run = Run(tmp_path, DEADLINE_S)
    run.start([sys.executable, "-m", "preflight", "debug", "--", sys.executable, str(JOBS), "healthy"], environment())
    done = run.finish()
    assert done.exit_codes == [0], done.told()
    assert sorted(done.output) == sorted("rank 0: 8\nrank 1: 8\n"), done.told()  # two writers: lines may mix
    assert list(tmp_path.iterdir()) == []
    assert done.left_over == []
