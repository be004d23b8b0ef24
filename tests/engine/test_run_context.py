"""What a rank holds for its run."""

import os
import tempfile

import pytest

from preflight.engine import run_context


def test_without_a_temporary_folder_nccl_has_no_log_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_context._private_folder()
    assert os.path.isdir(folder)
    os.rmdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", "/proc/self/fdinfo")
    assert run_context._private_folder() == ""
