"""What a hang leaves in the report, beside the finding."""

from pathlib import Path

from tests import faults, running


def test_of_two_ranks_both_sides_are_told_and_kept(tmp_path: Path) -> None:
    ranks = running.plain_ranks(2)
    ranks[1]["TEST_STEPS_OMIT_LAST"] = "1"
    words = ["--only", "plugin", "--plugin", "steps", "--plugin", "steps_omit_last"]
    finished = running.run_ranks(tmp_path, ranks, *words)
    found = finished.findings()
    assert faults.ELSEWHERE["hang_of_two"].is_told_by(found), finished.told()
    assert (found[0]["where"], found[0]["noticed_by"]) == ({}, "0"), finished.told()
    sides = "rank 0 inside all_reduce of 8 float32 #10, rank 1 left measure() before #10"
    assert sides in found[0]["message"], finished.told()
    sound, hung = finished.check("plugin.steps"), finished.check("plugin.steps_omit_last")
    assert (sound["status"], sound["outcomes"]) == ("pass", []), "a sound run tells of no collectives"
    entered = {outcome["ranks"]: outcome["recorded"][0]["entered"] for outcome in hung["outcomes"]}
    assert entered == {"0": 10, "1": 9}
    log = (tmp_path / "logs" / "plugin.steps_omit_last.rank-0.log").read_text()
    assert "Collectives of the group of all ranks: 10 entered" in log
    assert "#9 broadcast of 16 float32\n" in log and "#10 all_reduce of 8 float32: not over" in log
    words = ["show", str(tmp_path), "--judge", "--plugin", "steps", "--plugin", "steps_omit_last"]
    again = running.run_to_end(running.preflight(*words))
    assert " ".join(sides.split()) in " ".join(again.stdout.split()), again.stdout + again.stderr
