"""A rail that is slow only when all its nodes use it at once, as NCCL's users meet it: NCCL is a stand-in here."""

import os
from pathlib import Path

from tests import running
from tests.faults import ELSEWHERE
from tests.running import PLUGINS, ROOT


def test_a_rail_that_is_slow_only_when_all_its_nodes_use_it(tmp_path: Path) -> None:
    """Three rails on each of two nodes."""
    slow = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests" / "slow_rail", ROOT, PLUGINS)))}
    slow |= {"PREFLIGHT_TEST_NCCL": str(tmp_path), "NCCL_CONF_FILE": "/dev/null", "LOCAL_WORLD_SIZE": "3"}
    ranks = [
        {**env, **slow, "NODE_RANK": str(rank // 3), "LOCAL_RANK": str(rank % 3)}
        for rank, env in enumerate(running.plain_ranks(6))
    ]
    finished = running.run_ranks(tmp_path, ranks, "--only", "comm.rails")
    found = [finding for finding in finished.findings() if not finding["code"].startswith("gpu.")]  # there is no GPU
    row = ELSEWHERE["rails_slow_together"]
    assert row.is_told_by(found) and len(found) == 1 and finished.left_over == [], finished.told()
    assert "though each of its links is sound alone" in found[0]["message"], finished.told()
    assert found[0]["fix"].startswith("Check the switch of rail 1, "), finished.told()
