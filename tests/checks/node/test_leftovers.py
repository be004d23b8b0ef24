"""Processes and files of a Slurm job that has ended, left behind for real; in a real Epilog: tests/cluster."""

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import running
from tests.faults import ELSEWHERE

JOB, USER = "4711000", 100_000 + os.getpid()
"""A user whom nobody else on this machine is."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="files and processes of another user need root")


def findings(folder: Path, *settings: str) -> tuple[int, list[dict[str, Any]]]:
    """(exit code, findings), in an Epilog's environment."""
    words = ["--level", "quick", "--only", "node.leftovers", "--report", str(folder)]
    for setting in (f"job={JOB}", "wait_s=0.3", *settings):
        words += ["--set", f"node.leftovers.{setting}"]
    epilog = {"SLURM_JOB_ID": JOB, "SLURM_SCRIPT_CONTEXT": "epilog_slurmd"}
    done = running.run_to_end(running.preflight(*words), env=running.environment(**epilog))
    return done.returncode, running.Finished([done.returncode], done.stdout, folder, 0.0).findings()


@pytest.fixture
def shared() -> Iterator[str]:
    """The name of a file in /dev/shm, of the user."""
    name = f"torch_{uuid.uuid4().hex}"
    Path("/dev/shm", name).write_bytes(bytes(4096))
    os.chown(f"/dev/shm/{name}", USER, USER)
    yield name
    os.unlink(f"/dev/shm/{name}")


def test_a_process_that_the_job_has_left_is_found(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "SLURM_JOB_ID": JOB}) as left:
        code, found = findings(tmp_path)
        left.kill()
    row = ELSEWHERE["leftovers_process"]
    assert row.is_told_by(found) and row.says in found[0]["message"], found
    assert f"(pid {left.pid}, state S)" in found[0]["message"]
    assert code == row.exit_code and f"kill -9 {left.pid}" in found[0]["fix"]


@needs_root
def test_a_file_that_the_user_has_left_is_found(shared: str, tmp_path: Path) -> None:
    code, found = findings(tmp_path, f"uid={USER}")
    row = ELSEWHERE["leftovers_shm"]
    assert row.is_told_by(found) and row.says in found[0]["message"] and code == row.exit_code, found
    assert found[0]["where"]["file"] == f"/dev/shm/{shared}"


@needs_root
def test_nothing_is_said_of_another_job_and_of_a_user_who_has_one(shared: str, tmp_path: Path) -> None:
    other = {**os.environ, "SLURM_JOB_ID": f"{JOB}1"}
    with subprocess.Popen(["sleep", "60"], env=other, user=USER, group=USER) as running_job:
        assert findings(tmp_path, f"uid={USER}") == (0, [])
        running_job.kill()
