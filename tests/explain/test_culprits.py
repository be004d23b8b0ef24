"""Of several lines that say the same the one that names a culprit wins; who is accused is never acquitted."""

from pathlib import Path
from typing import Any

import pytest

from preflight.explain.command import explain_paths

TIMEOUT = (
    "[rank0]:[E515 18:36:47.341808597 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=241, OpType=ALLREDUCE, NumelIn=6, NumelOut=6, Timeout(ms)=600000) ran for 600086 milliseconds "
    "before timing out.\n"
)
REPORT = "[rank0]:[E515 18:36:47.343377708 ProcessGroupNCCL.cpp:1937] Rank 0\n"
REPORT += "\t - [0] Timeout at collective: ALLREDUCE, #315\n"
BEST = "\t - To our best knowledge, "
BEHIND = (
    f"{BEST}the lagging/dead/mismatched ranks that caused the desync are:\n"
    "\t\t[7] finished collective #182, but didn't join collective #183 (count from 1)\n"
)
ANALYSER = "Collective sequence number: 39 has errors\ngroup info: 0:default_pg\ncollective: nccl:all_reduce\n"
SIZES = "Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[8]]' does not match found input sizes: '[[9]]'"


def found(folder: Path, text: str) -> list[Any]:
    (folder / "job.log").write_text(text)
    return explain_paths([str(folder / "job.log")]).findings


@pytest.mark.parametrize("text", [TIMEOUT + REPORT + BEHIND, REPORT + BEHIND + TIMEOUT])
def test_the_rank_of_the_desync_report_is_named_beside_a_watchdog(text: str, tmp_path: Path) -> None:
    first, *_ = found(tmp_path, text)
    assert (first.code, first.where) == ("explain.slow_rank_timeout", {"rank": 7})
    assert "7" in first.message and first.noticed_by == "0"


def test_several_ranks_are_all_named_and_none_of_them_is_acquitted(tmp_path: Path) -> None:
    lagging = f"{BEST}ranks [3, 5] are the lagging ranks that caused this timeout. They never joined any collectives\n"
    waits = "".join(TIMEOUT.replace("[rank0]", f"[rank{rank}]").replace("Rank 0", f"Rank {rank}") for rank in (0, 3, 4))
    first, *others = found(tmp_path, REPORT + lagging + waits)
    assert "3, 5" in first.message and first.where == {}
    assert "3" not in first.noticed_by and all("3" not in other.noticed_by for other in others)


def test_the_analyser_s_culprits_are_named(tmp_path: Path) -> None:
    errors = f"error msg: Culprit rank 22; {SIZES}, Culprit rank 110; {SIZES}\n"
    (first,) = found(tmp_path, f"{ANALYSER}{errors}")
    assert (first.code, first.where, first.evidence["confidence"]) == ("explain.collective_mismatch", {}, "medium")
    assert "rank 22" in first.message and "rank 110" in first.message


def test_the_analyser_s_one_culprit_is_the_rank(tmp_path: Path) -> None:
    (first,) = found(tmp_path, f"{ANALYSER}error msg: Culprit rank 22; {SIZES}\n")
    assert first.where == {"rank": 22}


def test_the_analyser_s_missing_rank_is_named(tmp_path: Path) -> None:
    (first,) = found(tmp_path, f"{ANALYSER.replace(' has errors', '')}missing ranks: {{3}}\nworld size: 8\n")
    assert (first.code, first.where) == ("explain.slow_rank_timeout", {"rank": 3})


@pytest.mark.parametrize(
    "text",
    [
        "No errors found for this collective entry, There could be some other reasons why we see collective timeout.\n",
        "collective: nccl:all_reduce\nworld size: 8\nexpected ranks: {0, 1, 2}\ncollective state: completed\n",
        "loading 8 dumps\nmissing ranks: set()\n",
    ],
)
def test_an_analyser_that_found_nothing_says_nothing(text: str, tmp_path: Path) -> None:
    assert found(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (
            "RuntimeError: Rank 126, node gpu-17: CUDA error: uncorrectable ECC error encountered",
            {"rank": 126, "node": "gpu-17"},
        ),
        ("NET/IB: hca mlx5_15 port 1: got async event : port error", {"device": "mlx5_15"}),
        (
            "[rank0]: Rank 126, node gpu-17: CUDA error: uncorrectable ECC error encountered",
            {"rank": 126, "node": "gpu-17"},
        ),
        ("[rank2]: CUDA error: uncorrectable ECC error encountered", {"rank": 2}),
    ],
)
def test_whom_a_line_names_is_the_place(text: str, where: dict[str, Any], tmp_path: Path) -> None:
    assert found(tmp_path, f"{text}\n")[0].where == where


def test_an_rpc_of_deepspeed_s_launcher_names_the_host(tmp_path: Path) -> None:
    command = "ssh -o PasswordAuthentication=no 10.0.0.2 hostname"
    (first, *_) = found(
        tmp_path, f"subprocess.CalledProcessError: Command '{command}' returned non-zero exit status 255.\n"
    )
    assert first.code == "explain.launch_failed" and "10.0.0.2" in first.message
    assert found(tmp_path, f"running {command}\n") == []


def test_the_clients_of_a_store_may_stand_on_their_own_line(tmp_path: Path) -> None:
    text = (
        "torch.distributed.DistStoreError: Timed out after 3601 seconds waiting for clients. \n{}/16 clients joined.\n"
    )
    assert found(tmp_path, text.format(1))[0].code == "explain.rdzv_incomplete"
    assert found(tmp_path, "16/16 clients joined.\n") == []
