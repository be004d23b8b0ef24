"""Random kills and stops at random moments of `--all`, by a seed: the run ends, and names no healthy rank."""

import json
import os
import random
import signal
from pathlib import Path

import psutil
import pytest

from tests import running
from tests.running import Finished, Run

WORLD, DEADLINE_S = 3, 120


def _victims(run: Run, rank: int) -> list[int]:
    """A rank's supervisor and what it has forked by now."""
    main = run.processes[rank]
    try:
        return [main.pid, *(child.pid for child in psutil.Process(main.pid).children())]
    except psutil.Error:
        return []


def _strike(run: Run, seed: int) -> tuple[int, int]:
    """(rank, signal): kills or stops one process of one rank other than 0, at a moment drawn by the seed."""
    draw = random.Random(seed)
    rank, number = draw.randrange(1, WORLD), draw.choice([signal.SIGKILL, signal.SIGSTOP])
    draw_s = draw.uniform(0.3, draw.choice((4.0, 40.0)))
    try:  # the moment itself is the fault: this waits for it, or for an earlier end
        run.processes[rank].wait(timeout=draw_s)
    except Exception:
        chosen = draw.choice(_victims(run, rank) or [0])
        if chosen:
            try:
                os.kill(chosen, number)
            except ProcessLookupError:
                pass
    return rank, number


def _names_only(finished: Finished, rank: int) -> None:
    for path in sorted(finished.folder.glob("report*.json")):
        report = finished.report_named(path.name)
        for finding in finished.findings(report):
            blamed = finding["where"].get("rank", rank)
            assert blamed == rank, f"{json.dumps(finding)}\n{finished.told()}"


def _one_run(seed: int, folder: Path, *sizes: str) -> None:
    run = Run(folder, DEADLINE_S)
    for rank, env in enumerate(running.plain_ranks(WORLD)):
        run.start_rank(rank, ["--all", *sizes, "--report", str(folder), "--deadline", str(DEADLINE_S)], env)
    rank, _ = _strike(run, seed)
    try:
        finished = run.finish(stopped=(rank,))
        assert finished.left_over == [], finished.told()
        assert finished.report["verdict"] in ("pass", "fail", "error"), finished.told()
        _names_only(finished, rank)
    except Exception as error:
        raise AssertionError(f"seed {seed}, rank {rank}: {error}") from error


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))  # the first stops, the second kills
def test_a_random_fault(seed: int, tmp_path: Path) -> None:
    _one_run(seed, tmp_path, *running.SMALL)  # in full by `make soak`


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 202))
def test_many_random_faults(seed: int, tmp_path: Path) -> None:
    _one_run(seed, tmp_path)
