"""comm.rails, comm.nodes and comm.pairs on sound ranks say nothing, also under load, and where a rank is late."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import running
from tests.running import PLUGINS, ROOT, Finished

CHECKS = ("comm.rails", "comm.nodes", "comm.pairs")
LATE = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests" / "late_links", ROOT, PLUGINS)))}


def run_two_nodes(folder: Path, late: dict[str, str], *checks: str, deadline_s: float = 60) -> Finished:
    """Three ranks on each of two nodes of this machine; `late`: what rank 1 has."""
    ranks = [
        {**env, "NODE_RANK": str(rank // 3), "LOCAL_RANK": str(rank % 3), "LOCAL_WORLD_SIZE": "3"}
        for rank, env in enumerate(running.plain_ranks(6))
    ]
    ranks[1] |= late
    return running.run_ranks(folder, ranks, "--only", ",".join(checks), deadline_s=deadline_s)


def is_sound(finished: Finished) -> None:
    assert finished.findings() == [] and finished.left_over == [], finished.told()
    statuses = {check["check"]: check["status"] for check in finished.report["checks"]}
    assert statuses == dict.fromkeys(("env.launch", "comm.init", *CHECKS), "pass"), finished.told()


def test_two_nodes_of_which_a_rank_is_late_are_sound(tmp_path: Path) -> None:
    """By 30 ms, many times what a transfer takes here."""
    finished = run_two_nodes(tmp_path, LATE, *CHECKS)
    is_sound(finished)
    summary = finished.check("comm.rails")["summary"]
    assert summary.startswith("6 links on 3 rails, ") and "median" in summary, finished.told()
    assert finished.check("comm.pairs")["summary"].startswith("6 links between 2 nodes, "), finished.told()
    assert finished.check("comm.nodes")["summary"].startswith("2 nodes alone, "), finished.told()


def test_one_node_with_one_rank_has_no_links(tmp_path: Path) -> None:
    finished = running.run_ranks(tmp_path, running.plain_ranks(1), "--only", ",".join(CHECKS))
    skipped = [finished.check(check)["skipped"] for check in CHECKS]
    whys = ["one node: no link leads to another", "one rank per node: nothing passes within a node"]
    assert skipped == [*whys, "one node: there is no pair"], finished.told()


@pytest.mark.soak
def test_two_nodes_are_sound_under_load(tmp_path: Path) -> None:
    """Two busy loops a core beside six ranks, fifty times."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        for number in range(50):
            folder = tmp_path / str(number)
            folder.mkdir()
            finished = run_two_nodes(folder, {}, *CHECKS, deadline_s=120)
            is_sound(finished)
    finally:
        for process in busy:
            process.kill()
            process.wait()
