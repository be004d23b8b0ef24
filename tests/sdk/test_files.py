import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.sdk import files
from tests import fuse, running
from tests.fuse import SILENT, Call


def test_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b" 25000\xff\n")
    (tmp_path / "a").mkdir()
    assert files.read(str(tmp_path / "b")) == "25000�" and files.entries(str(tmp_path)) == ["a", "b"]


def test_what_is_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    for path in (str(tmp_path), str(tmp_path / "no"), "/proc/self/mem"):
        assert files.read(path) == ""
    assert files.entries(str(tmp_path / "no")) == files.entries("/proc/version") == []


def test_the_state_of_a_process() -> None:
    assert files.state_of(os.getpid()) == "R" and files.state_of(2**22 + 1) == ""


def test_the_wait_for_a_core_where_the_kernel_does_not_count_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is missing, or is empty."""
    assert files.core_wait_s() >= 0.0
    monkeypatch.setattr(files, "read", lambda _: "")
    assert files.core_wait_s() == 0.0


SPAWNS = """
import os, sys
while True:
    try:
        os.posix_spawn(sys.argv[1], ["it"], {})
    except OSError:
        pass
"""
"""It is in uninterruptible sleep (vfork) for as long as the file system takes to find the file."""


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="a slow mount: root and /dev/fuse")
@pytest.mark.parametrize(
    ("does", "late", "is_stuck"),
    [({Call.LOOKUP: SILENT}, {}, True), ({}, {Call.LOOKUP: 0.1}, False)],
    ids=["dead", "slow"],
)
def test_only_one_long_sleep_is_uninterruptible(
    does: dict[Call, int], late: dict[Call, float], is_stuck: bool, tmp_path: Path
) -> None:
    with fuse.mounted(tmp_path / "disk", does, late) as system:
        process = subprocess.Popen([sys.executable, "-c", SPAWNS, str(system.folder / "it")])
        end = time.monotonic() + running.HUNG_S
        while files.state_of(process.pid) != "D" and time.monotonic() < end:
            time.sleep(0.001)
        seen = files.settled_state_of(process.pid)
        process.kill()
    process.wait(running.HUNG_S)
    assert (seen == "D") is is_stuck
