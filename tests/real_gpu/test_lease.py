"""`LEASE=dry make lease`: every item is told, and none fails by its own code, on a machine without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import running
from tests.real_gpu import lease
from tests.real_gpu.items import ITEMS
from tests.standin.machines import needs_gcc, needs_mounts

NAMES = [name for stage in lease.STAGES for lane in stage for name in lane.split()]


def test_each_item_has_its_place() -> None:
    assert sorted(NAMES) == sorted(ITEMS)


def test_an_item_that_is_not_there_is_refused(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.real_gpu.lease", str(tmp_path), "A1|Z9"]
    ended = running.run_to_end(words, {**os.environ, "PYTHONPATH": str(running.ROOT)}, tmp_path)
    assert ended.returncode == 1 and "no such item: Z9" in ended.stderr


@needs_gcc
@needs_mounts
def test_what_hangs_is_ended_and_what_is_left_is_dropped(tmp_path: Path) -> None:
    """No time at all: everything is told, nothing is started."""
    env = {**os.environ, "LEASE": "dry", "LEASE_S": "0", "PYTHONPATH": str(running.ROOT)}
    ended = running.run_to_end([sys.executable, "-m", "tests.real_gpu.lease", str(tmp_path)], env, running.ROOT)
    assert ended.stdout.count(" dropped ") == len(NAMES), ended.stdout


@pytest.mark.more
@pytest.mark.skipif("CI" in os.environ, reason="it takes all cores for ten minutes, and other tests time out beside it")
@needs_gcc
@needs_mounts
def test_the_rehearsal_ends_by_itself_and_tells_every_item(tmp_path: Path) -> None:
    env = {**os.environ, "LEASE": "dry", "LEASE_S": "900", "PYTHONPATH": str(running.ROOT)}
    words = ["nice", "-n", "19", sys.executable, "-m", "tests.real_gpu.lease", str(tmp_path)]  # beside other tests
    ended = subprocess.run(words, env=env, cwd=running.ROOT, capture_output=True, text=True, timeout=1200, check=False)
    rows = [line.split("\t") for line in (tmp_path / "results.tsv").read_text().splitlines()]
    assert sorted(row[0] for row in rows) == sorted(NAMES), ended.stdout + ended.stderr
    assert [row for row in rows if row[1] == "ERROR"] == [], ended.stdout
    assert len(list(tmp_path.glob("items-*.tar.xz"))) <= 7
