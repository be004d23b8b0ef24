"""10,000 runs of 64 nodes: what each question takes beside reading as many rows as it must."""

import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from preflight.history import archive, expected, questions, rows
from tests.history.made import entry, finding

RUNS, NODES = 10_000, [f"node-{number}" for number in range(64)]
GPUS = {f"GPU-{number}": node for number, node in enumerate(NODES)}
SHARE = 5.0
"""Of the time that counting the runs of each node takes once: 0.03 to 0.2 s of 0.3 s where this was written."""


@pytest.mark.soak
def test_each_question_takes_no_longer_than_reading_some_rows(tmp_path: Path) -> None:
    path = tmp_path / "history"
    _fill(path)
    with archive.reading(str(path)) as database:
        scan_s = _seconds(lambda: database.execute("SELECT unit, count(*) FROM part GROUP BY unit").fetchall())
        now = entry(RUNS, NODES, busbw=300.0, gemm=dict.fromkeys(GPUS, 500.0), places=GPUS)
        answers_s = _seconds(lambda: questions.answers(database))
        expected_s = _seconds(lambda: list(expected.findings(database, now)))
    print(f"scan {scan_s:.3f} s, all answers {answers_s:.3f} s, --baseline auto {expected_s:.3f} s")
    assert answers_s < SHARE * scan_s and expected_s < SHARE * scan_s


def _fill(path: Path) -> None:
    noise = random.Random(5)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    rows.prepare(database)
    for number in range(RUNS):
        bad = [finding("gpu.health.xid", noise.choice(NODES))] if noise.random() < 0.1 else []
        gemm = {gpu: noise.gauss(700.0, 10.0) for gpu in GPUS}
        made = entry(number, NODES, findings=bad, busbw=noise.gauss(400.0, 8.0), gemm=gemm, places=GPUS)
        rows.add(database, made)
    database.execute("COMMIT")
    database.close()


def _seconds(work: Callable[[], object]) -> float:
    """Of the processor: other work on the machine does not count."""
    start = time.process_time()
    work()
    return time.process_time() - start
