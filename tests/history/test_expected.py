"""`--baseline auto`: a run is held beside the last sound ones of its kind, and says which."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from preflight.core.finding import Reported
from preflight.history import archive, expected, rows
from preflight.history.run_entry import RunEntry
from tests import running
from tests.faults import ELSEWHERE
from tests.history.made import entry, finding

PLUGIN = ("--plugin", str(running.PLUGINS / "records.py"), "--only", "plugin.records", "--level", "quick")


def _held(entries: Sequence[RunEntry], now: RunEntry) -> list[Reported]:
    database = sqlite3.connect(":memory:")
    rows.prepare(database)
    for each in entries:
        rows.add(database, each)
    return list(expected.findings(database, now))


def _runs(*speeds: float, **more: Any) -> list[RunEntry]:
    return [entry(number, busbw=speed, **more) for number, speed in enumerate(speeds)]


def test_a_speed_below_the_median_of_the_last_sound_runs_is_a_warning() -> None:
    slow, which = _held(_runs(398.0, 402.0, 400.0), entry(9, busbw=300.0))
    assert (slow.severity, slow.code, slow.where) == ("warn", "preflight.run.slower_than_history", {})
    assert (
        "comm.all_reduce: 1 GiB fp32 busbw 300 GB/s is 75% of 400, the median of the last 3 sound runs" in slow.message
    )
    assert "expected at least 80%" in slow.message and len(slow.evidence["runs"]) == 3
    assert which.severity == "info" and "compared with 3 sound runs" in which.message


def test_a_card_is_held_beside_itself() -> None:
    places = {"GPU-1": "node-0", "GPU-2": "node-1"}
    before = _runs(*[400.0] * 4, places=places, gemm={"GPU-1": 700.0, "GPU-2": 500.0})
    assert len(_held(before, entry(9, places=places, gemm={"GPU-1": 690.0, "GPU-2": 495.0}))) == 1
    slow, _ = _held(before, entry(9, places=places, gemm={"GPU-1": 500.0, "GPU-2": 495.0}))
    assert slow.where == {"node": "node-0", "uuid": "GPU-1"}


def test_nothing_is_said_within_the_noise_that_the_history_knows() -> None:
    assert len(_held(_runs(300.0, 400.0, 500.0, 350.0, 450.0), entry(9, busbw=250.0))) == 1


def test_fewer_than_three_sound_runs_of_this_kind_say_nothing() -> None:
    sick = entry(7, busbw=400.0, findings=[finding("node.kernel.xid", "node-0")])
    told_slow = entry(8, findings=[finding("preflight.run.slower_than_history", severity="warn")])
    other = entry(5, kind="nccl, 8 ranks on 1 node, NVIDIA H100")
    (which,) = _held([*_runs(400.0, 400.0), sick, told_slow, other], entry(9, busbw=1.0))
    assert "there are fewer than 3 sound runs of this kind (nccl, 512 ranks on 64 nodes, NVIDIA H100)" in which.message


def test_real_runs_are_held_beside_each_other(tmp_path: Path) -> None:
    history = ("--history", str(tmp_path / "history"), "--baseline", "auto")
    told = []
    for number, speed in enumerate((100, 102, 99, 60)):
        folder = tmp_path / str(number)
        folder.mkdir()
        words = (*PLUGIN, *history, "--set", f"plugin.records.speed={speed}")
        finished = running.run_ranks(folder, [running.environment()], *words)
        assert finished.exit_codes == [0], finished.told()
        told.append(finished.findings(finds=("info preflight.run.compared_with_history",)))
    assert ["fewer than 3" in found[-1]["message"] for found in told] == [True, True, True, False]
    slow, which = sorted(told[-1], key=lambda found: str(found["severity"]), reverse=True)
    assert ELSEWHERE["slower_than_history"].is_told_by([slow]) and "read 60 GB/s is 60% of 100" in slow["message"]
    assert [len(found) for found in told] == [1, 1, 1, 2] and "compared with 3 sound runs" in which["message"]
    with archive.reading(str(tmp_path / "history")) as database:  # each with its figure, and with its last finding
        assert database.execute("SELECT count(*) FROM figure").fetchone() == (4,)
        last = "SELECT verdict, sound, finding.code FROM run JOIN finding ON finding.run = run.id"
        assert database.execute(last).fetchall() == [("warn", 0, "preflight.run.slower_than_history")]


def test_a_history_that_cannot_be_read_is_a_warning_and_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("mine\n" * 500)
    words = (*PLUGIN, "--history", str(tmp_path / "text"), "--baseline", "auto")
    finished = running.run_ranks(tmp_path, [running.environment()], *words)
    (found,) = finished.findings()
    assert ELSEWHERE["no_history"].is_told_by([found]), finished.told()
    assert "is not a readable history" in found["message"] and finished.exit_codes == [0]
    assert (tmp_path / "text").read_text() == "mine\n" * 500
