"""Containers and shells that lack what every program takes for granted: one sentence and exit code 3 or 2, or a sound
run; never a traceback, and never a machine that is blamed for it."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests import running

QUICK = f"{sys.executable} -m preflight --level quick --only env,node.limits"
needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts of its own need root and unshare"
)


def shell(line: str, folder: Path) -> tuple[int, str]:
    """(exit code, output): what goes to /dev/full is lost."""
    done = running.run_to_end(["sh", "-c", line], cwd=folder)
    return done.returncode, done.stdout + done.stderr


def mounted(line: str, folder: Path) -> tuple[int, str]:
    done = running.run_to_end(["unshare", "--mount", "--pid", "--fork", "sh", "-c", line], cwd=folder)
    return done.returncode, done.stdout + done.stderr


@needs_mounts
@pytest.mark.parametrize(
    ("hidden", "says"),
    [
        ("/proc", "/proc does not show this process, expected the process table: mount -t proc proc /proc"),
        ("/dev", "/dev/null cannot be opened (No such file or directory), expected the null device"),
    ],
)
@pytest.mark.parametrize("command", [QUICK, f"{sys.executable} -m preflight debug -- true"], ids=["run", "debug"])
def test_what_a_container_lacks_is_said_in_a_sentence(hidden: str, says: str, command: str, tmp_path: Path) -> None:
    code, output = mounted(f"mount -t tmpfs none {hidden} && exec {command}", tmp_path)
    assert code == 3 and output.startswith(f"preflight: {says}") and output.count("\n") == 1, output
    assert list(tmp_path.iterdir()) == []


def test_too_few_open_files_are_said_in_a_sentence(tmp_path: Path) -> None:
    told = "preflight: this process may open 16 files at once, expected 32 or more: ulimit -n 1024\n"
    assert shell(f"ulimit -n 16; exec {QUICK}", tmp_path) == (3, told)


def test_as_few_open_files_as_it_takes_are_a_finding(tmp_path: Path) -> None:
    code, output = shell(f"ulimit -n 32; exec {QUICK}", tmp_path)
    assert code == 1 and "[node.limits.nofile]" in output and "crashed" not in output, output


@needs_mounts
@pytest.mark.parametrize("option", ["--json d/report.json", "--report d"])
def test_a_full_disk_is_said_before_the_run(option: str, tmp_path: Path) -> None:
    full = "mkdir d && mount -t tmpfs -o size=64k none d && head -c 50000 /dev/zero > d/full"
    code, output = mounted(f"{full}; exec {QUICK} {option}", tmp_path)
    told = f"preflight: {option}: cannot be written (No space left on device)\n"
    assert (code, output) == (2, told)


@pytest.mark.parametrize("words", ["list", "describe env", "show report.json"])
def test_a_stdout_that_takes_nothing_is_said(words: str, tmp_path: Path) -> None:
    if words.startswith("show"):
        shell(f"{QUICK} --json report.json", tmp_path)
    told = "preflight: stdout: cannot be written (No space left on device)\n"
    assert shell(f"exec {sys.executable} -m preflight {words} >/dev/full", tmp_path) == (2, told)


def test_a_report_that_stdout_does_not_take_is_said(tmp_path: Path) -> None:
    code, output = shell(f"exec {QUICK} --json - >/dev/full", tmp_path)
    assert code == 0 and "could not be written to stdout: No space left on device" in output, output


@pytest.mark.parametrize("closed", ["2>/dev/full", "2>&-"])
def test_a_mistake_that_nobody_can_be_told_is_still_exit_2(closed: str, tmp_path: Path) -> None:
    assert shell(f"exec {sys.executable} -m preflight ru {closed}", tmp_path) == (2, "")
