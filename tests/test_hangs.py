"""What a hang leaves in the report, beside the finding."""

from itertools import repeat
from pathlib import Path

from tests import faults, running
from tests.checks.comm import at_work
from tests.nccl.ras_standin import answer, as_nccl, event, rank, served


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


def test_nccls_ras_is_heard_and_said_where_it_does_not_agree(tmp_path: Path) -> None:
    """Rank 1 leaves the last collective out; a stand-in for RAS counts it on rank 2 alone as not launched."""
    launched = [rank(number, launched={"AllReduce": 3 - (number == 2)}) for number in range(3)]
    (tmp_path / "report").mkdir()
    environ = at_work.written(tmp_path, {}, {})
    with served(as_nccl(repeat(answer(launched)), event("PEER_UNRESPONSIVE", 1))) as port:
        ranks = running.plain_ranks(3)
        for each in ranks:
            each.update(environ, NCCL_RAS_ADDR=f"127.0.0.1:{port}")
        ranks[1]["TEST_STEPS_OMIT_LAST"] = "1"
        words = ["--only", "plugin", "--plugin", "steps_omit_last", "--backend", "nccl"]
        finished = running.run_ranks(tmp_path / "report", ranks, *words)
    (found,) = finished.findings()
    assert (found["code"], found["where"]["rank"]) == ("plugin.steps_omit_last.desync", 1), finished.told()
    counted = "NCCL has launched AllReduce 2 on rank 2, 3 on ranks 0-1"
    assert found["message"].endswith(f"NCCL's RAS does not agree: {counted}"), finished.told()
    assert found["evidence"]["ras"] == counted, finished.told()
    (said,) = (outcome["ras"] for outcome in finished.check("plugin.steps_omit_last")["outcomes"] if outcome["ras"])
    assert "PEER_UNRESPONSIVE process 4001" in said, said
