"""What is a record, and who wrote it: bars before a message, several records on a line, glued labels, files' names."""

from pathlib import Path
from typing import Any

import pytest

from preflight.explain.command import explain_paths
from preflight.explain.inputs import find
from preflight.explain.read.prefixes import strip
from preflight.explain.read.reader import Reader
from preflight.explain.read.sources import RanksByProcess, Sources

BAR = "Epoch 3:  42%|####      | 420/1000 [01:10<01:37,  5.97it/s, loss=2.31]"
FRAMES = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 41, in main',
    "    step()",
    "ValueError: the mixture is odd",
)
STAMP = "2026-04-22 19:14:05,120 - trainer - INFO - [rank7]: "
DEEPSPEED = "[2026-04-22 19:14:05,120] [INFO] [launch.py:96:main] "


def first(folder: Path, text: str, name: str = "job.log") -> Any:
    (folder / name).write_text(text)
    return next(iter(explain_paths([str(folder / name)]).findings), None)


def texts(folder: Path, line: str) -> list[str]:
    """The records of a line, as the reader gives them."""
    (folder / "job.log").write_text(f"{line}\n")
    inputs, _ = find([str(folder / "job.log")])
    return [record.text for record in Reader(inputs, {"found", "lost"})]


@pytest.mark.parametrize(
    ("front", "where"),
    [
        (BAR, {}),
        (BAR * 5, {}),
        (f"\r{BAR}" * 5, {}),
        (f"\r{BAR}" * 5 + "[rank3]: ", {"rank": 3}),
        (f"{BAR} [rank3]: ", {"rank": 3}),
        (f"{BAR}\r\x1b[A[rank3]: ", {"rank": 3}),
    ],
)
def test_bars_before_each_line_of_a_traceback(front: str, where: dict[str, int], tmp_path: Path) -> None:
    found = first(tmp_path, "".join(f"{front}{line}\n" for line in FRAMES))
    assert (found.code, found.where) == ("explain.app_crash", {**where, "file": "/job/train.py", "line": 41})


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: the mixture is odd",
        "2026-04-22 19:14:05,120 - trainer - ERROR - no tokenizer",
        "ERROR: no tokenizer",
    ],
)
def test_a_message_behind_a_bar_is_one(text: str, tmp_path: Path) -> None:
    assert first(tmp_path, f"{BAR}{text}\n").severity == "fail"


@pytest.mark.parametrize("text", [BAR, f"{BAR} ", f"{BAR}, eta 3 min", "50%|a|b", "| 42%| of 1000 | found"])
def test_what_is_no_message_stays_a_bar(text: str, tmp_path: Path) -> None:
    assert first(tmp_path, f"{text}\n") is None
    front = strip(text).front
    assert front is None or front.text.startswith("Epoch 3")


@pytest.mark.parametrize("gap", [" ", "      ", "\t"])
@pytest.mark.parametrize("mark", [STAMP, DEEPSPEED, STAMP.replace(",120", "")])
def test_records_that_share_a_line_are_read_each_by_itself(gap: str, mark: str, tmp_path: Path) -> None:
    found = first(tmp_path, gap.join(f"{mark}{line}" for line in FRAMES) + "\n")
    assert (found.code, found.where.get("line")) == ("explain.app_crash", 41)
    assert found.where.get("rank") == (7 if "rank7" in mark else None)
    assert [line["line"] for line in found.evidence["lines"]] == [1]


def test_glued_records_are_apart(tmp_path: Path) -> None:
    assert texts(tmp_path, f"{DEEPSPEED}found a{DEEPSPEED}lost b") == ["found a", "lost b"]


@pytest.mark.parametrize(
    "line",
    [
        "2026-04-22 19:14:05,120 - trainer - INFO - found one of 2026-04-21 10:00:00,000 - saved",
        "2026-04-22 19:14:05 found between 2026-04-22 19:10:00 and 2026-04-22 19:12:00",
        "2026-04-22T19:14:05.120Z stdout F 2026-04-22 19:14:05,120 - trainer - found",
        "found 2026-04-22 19:14:05,120 - a - found 2026-04-22 19:14:05,120 - a - found",
    ],
)
def test_a_time_in_a_message_begins_no_record(line: str, tmp_path: Path) -> None:
    assert len(texts(tmp_path, line)) == 1


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("[host1:0]AttributeError: no sum", {"node": "host1", "local_rank": 0, "text": "AttributeError: no sum"}),
        ('[host1:3]  File "/job/d.py", line 7, in f', {"node": "host1", "local_rank": 3}),
        ("worker-0|ValueError: odd", {"node": "worker-0", "text": "ValueError: odd"}),
        ("[train.py:0]ValueError: odd", {"node": "", "local_rank": None}),
        ("[loss:3] 2.31", {"node": "", "local_rank": None}),
        ("epoch-3|loss 2.31", {"node": ""}),
        ("step-3|loss 2.31", {"node": ""}),
        ("[host1:4101] ready", {"node": "host1", "pid": 4101, "local_rank": None}),
    ],
)
def test_glued_labels(raw: str, expected: dict[str, Any]) -> None:
    line = strip(raw)
    assert {key: getattr(line, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "node", "task"),
    [
        ("node04_5.log", "node04", None),
        ("job_4711_node-c.log", "node-c", None),
        ("train-node3-rank12.log", "node3", 12),
        ("worker-7.err", "worker-7", None),
        ("host-b.out", "host-b", None),
        ("host_memory.log", "", None),
        ("nodes.log", "", None),
        ("node-local.log", "", None),
        ("slurm-4711_3.out", "", None),
        ("gpu-3.log", "", None),
    ],
)
def test_a_file_s_name_may_tell_the_node(name: str, node: str, task: int | None) -> None:
    line = Sources(f"/logs/{name}", RanksByProcess()).read("ValueError: odd", b"")
    assert (line.node, line.task) == (node, task)


def test_a_line_s_own_node_rules() -> None:
    sources = Sources("/logs/node04_5.log", RanksByProcess())
    assert sources.read("node-b:4101:4177 [0] NCCL INFO ready", b"").node == "node-b"
    assert sources.read("ValueError: odd", b"").node == ""


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("failed with error Unknown error -12", "failed with error Cannot allocate memory"),
        ("OSError: [Errno 116]", "OSError: [Errno 116] Stale file handle"),
        ("read failed, errno: 5", "read failed, errno: 5 (Input/output error)"),
        ("open failed errno=122, giving up", "open failed errno=122 (Disk quota exceeded), giving up"),
        ("connect (errno: 1 - Operation not permitted)", "connect (errno: 1 - Operation not permitted)"),
        ("[Errno 116] Stale file handle", "[Errno 116] Stale file handle"),
        ("failed with error Invalid argument errno 22", "failed with error Invalid argument errno 22"),
        ("Unknown error -4095", "Unknown error -4095"),
        ("errno: 0", "errno: 0"),
    ],
)
def test_error_numbers_get_their_words(raw: str, text: str) -> None:
    assert strip(raw).text == text
    assert strip(raw).raw == ""


def test_a_call_that_fails_for_want_of_locked_memory_by_its_number(tmp_path: Path) -> None:
    found = first(tmp_path, "NCCL WARN Call to ibv_create_qp failed with error Unknown error -12\n")
    assert found.code == "explain.ib_memlock_limit"


def test_what_forbids_a_socket_is_no_refusal(tmp_path: Path) -> None:
    text = "RuntimeError: The client socket has failed to connect to any network address of (localhost, 29400). "
    text += (
        "The client socket cannot be initialized to connect to localhost:29400 (errno: 1 - Operation not permitted).\n"
    )
    found = first(tmp_path, text)
    assert found.code == "explain.container_config" and "localhost:29400" in found.message
    refused = text.replace("errno: 1 - Operation not permitted", "errno: 111 - Connection refused")
    assert first(tmp_path, refused).code == "explain.rdzv_master_unreachable"


@pytest.mark.parametrize(
    "cut",
    ["Watchdog caught\n", "Watchdog caught collective\n", "collective operation\n", "NumelOut=6,\n"],
)
def test_a_watchdog_s_line_may_be_wrapped_anywhere(cut: str, tmp_path: Path) -> None:
    at = "[rank3]:[E515 18:36:47.341808597 ProcessGroupNCCL.cpp:632] [Rank 3] "
    text = (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=241, OpType=ALLREDUCE, NumelIn=6, NumelOut=6, "
    )
    text += "Timeout(ms)=600000) ran for 600086 milliseconds before timing out.\n"
    wrapped = text.replace(f"{cut.strip()} ", cut, 1)
    assert wrapped != text
    found = first(tmp_path, at + wrapped)
    assert found.code == "explain.slow_rank_timeout" and "ALLREDUCE #241" in found.message
