"""Fixtures of several files."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from preflight.explain.candidates import Candidate
from tests.explain.made_dumps import NOW_S, WAITS_S, Told, find_candidates


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """Writes the dumps, and reads them."""

    def write(by_rank: dict[int, Any], *, after_s: float = WAITS_S) -> list[Candidate]:
        paths = []
        for rank, content in by_rank.items():
            path = tmp_path / f"comm_lib_trace_rank_{rank}"
            path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=2))
            os.utime(path, (NOW_S + after_s, NOW_S + after_s))
            paths.append(str(path))
        found, unread = find_candidates(paths)
        assert unread == []
        return found

    return write
