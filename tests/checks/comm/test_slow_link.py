"""A link that is really slow, between two hosts."""

import os
import re
from pathlib import Path

import pytest

from tests.faults import ELSEWHERE
from tests.faults.comm import SWEEPS
from tests.hosts import cluster, needs_hosts
from tests.on_hosts import ranks_on
from tests.running import PLUGINS, ROOT, SMALL

pytestmark = [pytest.mark.hosts, needs_hosts]
LINKS = ("rails", "pairs")
ONLY = ("--only", ",".join(f"comm.{name}" for name in (*SWEEPS, *LINKS)))
FLOORS = [
    word for name in SWEEPS for what in ("min_gb_per_s=0.015", "baseline_share=0.5")
    for word in ("--set", f"comm.{name}.{what}")
]  # fmt: skip
"""A loaded machine makes the sound run slow, too: the links at 80 Mbit/s may keep more of that than 0.05."""
SHORT = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests" / "short_sweeps", ROOT, PLUGINS)))}


@pytest.mark.more
def test_a_slow_link_is_told_by_each_collective_and_beside_a_baseline_by_the_links(tmp_path: Path) -> None:
    """And no rank is said to be late. On sound hosts nothing is below what the user expects."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    with cluster(2) as hosts:
        sound = ranks_on(before, hosts, *ONLY, *FLOORS, *SMALL)
        assert sound.findings() == [], sound.told()
        for host in hosts:
            host.slow_down("80mbit")
        baseline = ("--baseline", str(before / "report.json"))
        slow = ranks_on(after, hosts, *ONLY, *FLOORS, *baseline, environ=[SHORT] * 2, deadline_s=120)
    found = slow.findings()
    for name in SWEEPS:
        row = ELSEWHERE[f"comm_slow_link_{name}"]
        mine = [finding for finding in found if finding["code"].startswith(f"comm.{name}.")]
        assert row.is_told_by(mine) and all(finding["where"] == {} for finding in mine), slow.told()
        assert len(mine) == len(row.finds) and "1 MiB took" in mine[0]["message"], slow.told()
        assert f"expected at least 15 MB/s (comm.{name}.min_gb_per_s)" in mine[1]["message"], slow.told()
        assert "the baseline's (spread" in mine[2]["message"], slow.told()
    for name in LINKS:
        mine = [finding for finding in found if finding["code"].startswith(f"comm.{name}.")]
        assert ELSEWHERE[f"{name}_slower"].is_told_by(mine) and mine[0]["where"] == {}, slow.told()
    assert len(found) == 3 * len(SWEEPS) + len(LINKS), slow.told()
    assert slow.report["exit_code"] == 0 and slow.left_over == [], slow.told()


EQUALLY = ("--only", "comm.all_reduce,comm.rails")


@pytest.mark.parametrize("sick", [pytest.param("both", marks=pytest.mark.more), "one"])
def test_the_fix_of_a_slow_collective_says_what_the_links_of_this_run_have_shown(sick: str, tmp_path: Path) -> None:
    """Where all links are alike there is none to look for; where one is slow the fix names what found it."""
    with cluster(2 if sick == "both" else 3) as hosts:
        for host in hosts if sick == "both" else hosts[-1:]:
            host.slow_down("80mbit")
        slow = ranks_on(tmp_path, hosts, *EQUALLY, environ=[SHORT] * len(hosts), deadline_s=120)
    (fix,) = (found["fix"] for found in slow.findings() if found["code"] == "comm.all_reduce.too_slow")
    if sick == "both":
        assert re.match(r"comm\.rails \(\d+ links.*median.*\) found nothing\. No link is slower", fix), slow.told()
    else:
        assert fix.startswith("This run has found comm.rails.slow_node (host-c"), slow.told()
    assert slow.report["exit_code"] == 0 and slow.left_over == [], slow.told()
