"""Collectives on real ranks of which one is sick: each fault is found, and nobody healthy is named. Several faults
share a run, each in a collective of its own; and sound ranks, of which nothing is said."""

from pathlib import Path

import pytest

from tests import running
from tests.faults import comm
from tests.faults.row import Fault

CHECKS = {f"comm.{name}" for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")}
RING = "comm.send_recv"
LATE = {"comm_late", "comm_late_once"}
ONCE = {"comm_late_once", "comm_gather_off_once"}
"""Not when it was measured or computed once more."""


def only(checks: set[str], mebibytes: int) -> list[str]:
    settings = [word for check in sorted(checks) for word in ("--set", f"{check}.max_mib={mebibytes}")]
    return ["--only", ",".join(sorted(checks)), *settings]


@pytest.mark.parametrize("rows", comm.TOGETHER, ids=lambda rows: "+".join(row.name[5:] for row in rows))
def test_each_fault_is_found_and_named(rows: tuple[Fault, ...], tmp_path: Path) -> None:
    common = {name: value for row in rows for name, value in row.environ.items()}
    ranks = [{**rank, **common} for rank in running.plain_ranks(rows[0].world)]
    ranks[1] |= comm.sick(*(row.name.removeprefix("comm_") for row in rows))
    checks = {row.finds[0].split()[1].rpartition(".")[0] for row in rows}
    late = LATE & {row.name for row in rows}
    busy = () if late else ("--set", "comm.all_reduce.late_s=60")  # the machine of the tests may make a rank late, too
    finished = running.run_ranks(tmp_path, ranks, *only(checks, 1), *busy)  # the faults are the same at all sizes
    told, found = finished.told(), finished.findings(finds=[find for row in rows for find in row.finds])
    assert len(found) == len(rows), told
    for row in rows:
        (finding,) = [finding for finding in found if f"{finding['severity']} {finding['code']}" == row.finds[0]]
        assert row.says in finding["message"], told
        assert finding["noticed_by"] == row.noticed_by, told
        assert finding["where"].get("rank") == row.culprit.get("rank"), told
        assert finding["fix"] and "{" not in finding["fix"], told
        assert finding["evidence"]["confirmed"] == ("1 of 2" if row.name in ONCE else "2 of 2"), told
    assert finished.report["exit_code"] == 1 and finished.left_over == [], told


@pytest.mark.more
def test_nothing_is_said_of_sound_ranks(tmp_path: Path) -> None:
    """One, two and five ranks are in tests/test_sound.py. One call that waits for a core is no slow network."""
    facts = ("--json", str(tmp_path / "report.json"), "--facts")
    ranks = running.plain_ranks(4)
    ranks[1] |= comm.sick("hiccup")
    large = {"comm.all_reduce": 16, "comm.reduce_scatter": 16, RING: 16}
    sizes = [word for check, mebibytes in large.items() for word in ("--set", f"{check}.max_mib={mebibytes}")]
    finished = running.run_ranks(tmp_path, ranks, *only({*CHECKS, RING}, 1), *sizes, *facts)
    told = finished.told()
    assert finished.report["verdict"] == "pass" and finished.left_over == [], told
    for check in {*CHECKS, RING}:
        result = finished.check(check)
        assert result["status"] == "pass" and "busbw" in result["summary"], told
        sizes = result["facts"][0]["facts"]["sizes"]
        types = [size["dtype"] for size in sizes]
        assert types.count("fp32") == (4 if check in large else 3) and "bf16" in types, told
        assert {size["wrong"] for size in sizes} == {None}


def test_a_backend_that_lacks_an_operation_is_a_skip(tmp_path: Path) -> None:
    ranks = [{**rank, **comm.sick("no_all_to_all")} for rank in running.plain_ranks(2)]
    finished = running.run_ranks(tmp_path, ranks, "--only", "comm.all_to_all")
    assert finished.findings() == [], finished.told()
    skipped = finished.check("comm.all_to_all")["skipped"]
    assert "gloo cannot: ProcessGroupGloo does not support all_to_all_single" in skipped, finished.told()
