"""DCP's folders, written once for all tests."""

import fcntl
import os
from pathlib import Path

import pytest

from tests.checkpoint import saved


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sound, wider and nan: not to be changed. The workers of pytest share them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "saved-by-two-ranks"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            folder.mkdir(exist_ok=True)
            saved.save_on_two_ranks(folder)
            (folder / "done").touch()
    return folder
