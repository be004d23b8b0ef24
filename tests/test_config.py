"""`--config`, on real ranks."""

from pathlib import Path

import pytest

from tests import running

RULES = """
only = ["env.variables"]
[severity]
"env.variables.leftover" = "fail"
[[waivers]]
code = "env.variables.differs"
node = "gpu-7"
until = 2999-12-31
reason = "ticket 7"
"""


def test_the_file_stands_in_for_options_and_waivers_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "preflight.toml"
    ranks = running.plain_ranks(3, CUDA_LAUNCH_BLOCKING="1", SLURMD_NODENAME="gpu-7")
    ranks[1]["NCCL_CROSS_NIC"] = "1"
    path.write_text(RULES)
    finished = running.run_ranks(tmp_path, ranks, "--config", str(path))
    told = finished.told()
    assert [check["check"] for check in finished.report["checks"]] == ["env.variables"], told
    waived, leftover = sorted(finished.findings(), key=lambda finding: str(finding["code"]))
    assert (leftover["code"], leftover["severity"]) == ("env.variables.leftover", "fail"), told
    assert (waived["code"], waived["waived"]["reason"]) == ("env.variables.differs", "ticket 7"), told
    assert "1 finding waived" in finished.output and finished.exit_codes == [1, 1, 1], told
    path.write_text(RULES.replace('"fail"', '"info"').replace("variables.differs", "variables.unlike"))
    eased = running.run_ranks(tmp_path, ranks, "--config", str(path))
    assert (eased.report["verdict"], eased.exit_codes) == ("pass", [0, 0, 0]), eased.told()
    assert eased.output.count("env.variables.unlike is now env.variables.differs") == 1


@pytest.mark.more
def test_a_rank_without_the_file_says_so_itself(tmp_path: Path) -> None:
    path = tmp_path / "preflight.toml"
    path.write_text('only = ["env.launch"]')
    run = running.Run(tmp_path, 20)
    for rank, env in enumerate(running.plain_ranks(2)):
        own = ["--config", str(path) if rank == 0 else "/not/there.toml", "--deadline", "20", "--report", str(tmp_path)]
        run.start_rank(rank, own, env)
    finished = run.finish()
    told = finished.told()
    assert finished.exit_codes == [1, 2], told
    assert "preflight: rank 1: /not/there.toml: cannot be read (No such file or directory)" in finished.output, told
    assert [(f["code"], f["where"]) for f in finished.findings()] == [("preflight.run.lost", {"rank": 1})], told


def test_a_wrong_file_is_said_once_and_ends_with_2(tmp_path: Path) -> None:
    path = tmp_path / "preflight.toml"
    path.write_text("levle = 1")
    finished = running.run_ranks(tmp_path, running.plain_ranks(3), "--config", str(path))
    assert finished.output.count("levle: there is no such key; did you mean level?") == 1, finished.told()
    assert finished.exit_codes == [2, 2, 2], finished.told()
