"""The import of torch from a file system that is slow, or dead: who waits for what is said, and the run ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import fuse, running
from tests.faults import ELSEWHERE
from tests.fuse import NUMBERS, SILENT, Call, File

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="a dead mount: root and /dev/fuse"),
]
HOOK = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["READ_WITH"]:
            open(os.environ["READ_FILE"], "rb").read()
sys.meta_path.insert(0, Finder())
"""
"""sitecustomize: the import of one module also reads a file on the file system in question."""
SOONER = (
    "from preflight.engine import torch_import; torch_import.ANSWER_S = {}; torch_import.TELL_S = 1.0;"
    "from preflight.__main__ import command; command()"
)


def run(
    tmp_path: Path, module: str, does: dict[Call, int], late: dict[Call, float], deadline: str, answer_s: float = 3.0
) -> tuple[int, str]:
    """(the exit code of a rank of one, what it has printed), whose import of `module` reads from such a file system."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(HOOK)
    files: dict[int, File] = {next(NUMBERS): ("lib.so", bytearray(b"#" * 100))}
    with fuse.mounted(tmp_path / "home", does, late, files=files) as system:
        environ = running.plain_ranks(1, READ_WITH=module, READ_FILE=str(system.folder / "lib.so"))[0]
        environ["PYTHONPATH"] = f"{tmp_path / 'hook'}{os.pathsep}{environ['PYTHONPATH']}"
        words = [
            "--only",
            "env.launch",
            "--level",
            "standard",
            "--deadline",
            deadline,
            "--json",
            str(tmp_path / "report.json"),
        ]
        with open(tmp_path / "said", "w") as said:
            rank = subprocess.Popen(
                [sys.executable, "-c", SOONER.format(answer_s), *words],
                env=environ,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        end = time.monotonic() + float(deadline) + running.PATIENCE_S
        while rank.poll() is None and not _is_killed(rank.pid) and time.monotonic() < end:
            time.sleep(0.05)  # the kernel tells nobody of a signal that waits
        if rank.poll() is None:  # the kernel holds it until the file system is gone
            system.end()
        code = rank.wait(running.HUNG_S)
    return code, " ".join((tmp_path / "said").read_text().split())


def _is_killed(pid: int) -> bool:
    """Whether SIGKILL waits for it, as for a process that is in the kernel."""
    status = Path(f"/proc/{pid}/status").read_text()
    waiting = re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)", status, re.MULTILINE)
    return any(int(signals, 16) >> (signal.SIGKILL - 1) & 1 for signals in waiting)


def is_told(row: str, tmp_path: Path) -> bool:
    checks = json.loads((tmp_path / "report.rank-0.json").read_text())["checks"]
    return bool(ELSEWHERE[row].is_told_by([finding for check in checks for finding in check["findings"]]))


def test_a_dead_file_system_is_named_and_the_run_fails(tmp_path: Path) -> None:
    code, said = run(tmp_path, "torch", {Call.READ: SILENT}, {}, "40")
    assert code == 1 and is_told("torch_dead_disk", tmp_path), said
    assert re.search(r"import torch: \S+/home/lib.so: its file system has not answered for \d+ s \(read\)", said), said


def test_a_slow_one_asks_for_patience_and_is_waited_for(tmp_path: Path) -> None:
    code, said = run(tmp_path, "torch", {}, {Call.READ: 2.0}, "60")
    assert code == 0 and "PASS" in said, said
    assert re.search(r"importing torch takes long: \d+ s so far, reading \S+/home/lib.so for \d+ s", said), said
    assert "--deadline" in said and "firewall" not in said


def test_one_that_takes_longer_than_the_run_has_is_no_failure_of_the_machine(tmp_path: Path) -> None:
    code, said = run(tmp_path, "torch", {}, {Call.READ: 40.0}, "6", answer_s=60)
    assert code == 3 and is_told("torch_slow_disk", tmp_path), said
    assert re.search(r"import torch is not done after \d s; reading \S+/home/lib.so for \d s", said), said
    assert "more time (--deadline)" in said


def test_one_that_dies_during_the_import_is_named_by_the_guard(tmp_path: Path) -> None:
    """The rank is in the kernel by then: no code of its own can run, and only a signal ends it."""
    code, said = run(tmp_path, "torch._ops", {Call.READ: SILENT}, {}, "40")
    assert code == -9, said
    assert re.search(r"import torch is not done after \d+ s: \S+/home/lib.so: its file system has not answered", said)


def test_a_run_without_a_launcher_starts_no_rank(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    files: dict[int, File] = {next(NUMBERS): ("lib.so", bytearray(b"#" * 100))}
    with fuse.mounted(tmp_path / "home", {Call.OPEN: SILENT}, files=files) as system:
        environ = running.environment(READ_WITH="torch", READ_FILE=str(system.folder / "lib.so"))
        environ["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{environ['PYTHONPATH']}"
        done = subprocess.run(
            [sys.executable, "-c", SOONER.format(3.0), "--only", "comm.init"], env=environ, check=False,
            capture_output=True, text=True, timeout=running.HUNG_S,
        )  # fmt: skip
    assert done.returncode == 1 and "no rank was started" in done.stderr, done.stderr
    assert f"{system.folder}/lib.so: its file system has not answered for " in done.stderr


def test_a_sound_import_says_nothing(tmp_path: Path) -> None:
    """However much of a core it gets: TELL_S is 1 s here, and the import takes more. Its files are in memory: from a
    cold disk they take long, and the screen rightly says so."""
    subprocess.run([sys.executable, "-c", "import torch"], check=True, timeout=running.HUNG_S)
    code, said = run(tmp_path, "no.such.module", {}, {}, "60")
    assert code == 0 and "importing torch" not in said, said
