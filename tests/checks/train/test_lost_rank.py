"""The ranks that are left train as they would without a gap: the job's numbers are not those of their process group."""

import os
import signal
import time
from pathlib import Path

from tests import running
from tests.running import DEADLINE_S, Run

STRATEGIES = ("train.fsdp", "train.pp", "train.hybrid", "train.expert")
"""Those that make groups of some ranks."""


def lose(run: Run, rank: int) -> None:
    """Kills a rank once all have come together: the first check's line is there."""
    end = time.monotonic() + DEADLINE_S
    while "env.launch" not in run.output():
        assert time.monotonic() < end, run.output()
        time.sleep(0.05)  # the screen is a file
    os.kill(run.processes[rank].pid, signal.SIGKILL)


def test_groups_of_the_ranks_that_are_left(tmp_path: Path) -> None:
    run = Run(tmp_path, 120)
    arguments = ("--only", ",".join(STRATEGIES), *running.SMALL, "--report", str(tmp_path), "--deadline", "120")
    for rank, env in enumerate(running.plain_ranks(3)):
        run.start_rank(rank, [*arguments], env)
    lose(run, 1)
    finished = run.finish()
    assert {finding["where"].get("rank") for finding in finished.findings()} == {1}, finished.told()
    statuses = {check["check"]: check["status"] for check in finished.report["checks"] if check["check"] in STRATEGIES}
    assert statuses == dict.fromkeys(STRATEGIES, "pass"), finished.told()
