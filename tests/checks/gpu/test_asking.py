"""The process that asks NVML, where no signal ends it."""

import os
import threading
from pathlib import Path

import pytest

from preflight.checks.gpu.shared import nvml
from preflight.checks.gpu.shared.nvml_process import HANGS, Process
from tests import fuse


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="a dead mount needs root and /dev/fuse")
def test_a_process_in_uninterruptible_sleep_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that hangs in a dead file system, as one in a GPU's driver does."""
    with fuse.mounted(tmp_path, does={fuse.Call.STATFS: fuse.SILENT}):
        monkeypatch.setattr(nvml, "system", lambda: os.statvfs(tmp_path).f_bsize)
        process = Process()
        assert process.ask("system", [], 1.0)["trouble"][0] == HANGS
        ending = threading.Thread(target=process.end, daemon=True)
        ending.start()
        ending.join(30.0)
        assert not ending.is_alive(), "it waits for a process that no signal ends"
