"""A link that is really slow, between two hosts."""

from pathlib import Path

import pytest

from tests.hosts import cluster, needs_hosts
from tests.on_hosts import found_as, ranks_on

pytestmark = [pytest.mark.hosts, needs_hosts]
ONLY = ("--only", "comm.all_reduce")


def test_a_slow_link_is_told_from_a_late_rank(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    with cluster(2) as hosts:
        sound = ranks_on(before, hosts, *ONLY)
        assert sound.findings() == [], sound.told()
        hosts[1].slow_down("20mbit")
        slow = ranks_on(after, hosts, *ONLY, "--baseline", str(before / "report.json"))
    found_as("comm_slow_link", slow)
    first, second = slow.findings()
    assert "1 MiB took" in first["message"] and "expected 16 MiB to fit" in first["message"], slow.told()
    assert "1 MiB" in second["message"] and "of the baseline's" in second["message"], slow.told()
