"""Shortened logs of real jobs that failed on NCCL (torch 2.11, NCCL 2.28.9; three ranks of one GPU, each with a host ID
of its own): each names its culprit, and no healthy rank or interface."""

import pickle
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from preflight.core.finding import Reported
from preflight.explain.command import explain_paths
from tests.explain.made_dumps import FIRST, call, dump

LOGS = Path(__file__).parent / "nccl_logs"
REMINDER = "destroy_process_group() was not called"
LAUNCHER = "torch/distributed/elastic/"


def real(name: str) -> list[str]:
    return (LOGS / f"{name}.log").read_text().splitlines()


def found(folder: Path, lines: Iterable[str]) -> list[Reported]:
    """What is said of a folder with this log, and whatever else lies there."""
    (folder / "job.log").write_text("".join(f"{line}\n" for line in lines))
    return explain_paths([str(folder)]).findings


def blamed(reported: list[Reported]) -> tuple[str, object, str]:
    """The first finding's code, rank and ranks that are not to blame."""
    first = reported[0]
    return first.code.partition(".")[2], first.where.get("rank"), first.noticed_by


def test_a_rank_that_left_in_the_middle_is_named(tmp_path: Path) -> None:
    reported = found(tmp_path, real("exit"))
    assert blamed(reported) == ("remote_peer_failure", 1, "0,2")
    assert reported[0].message == (
        "rank 1 ended without a traceback and without destroy_process_group(), while ranks 0,2 were in ALLREDUCE #6 of "
        "1,048,576 elements at /job/train.py:36, expected all ranks to take part"
    )
    assert (reported[0].evidence["confidence"], reported[0].where["node"]) == ("medium", "node-a")
    assert "rank 1" in reported[0].fix and "sys.exit" in reported[0].fix
    assert all(finding.severity == "info" for finding in reported[1:])


def test_its_missing_dump_makes_it_sure(tmp_path: Path) -> None:
    for rank in (0, 2):
        waits = dump(FIRST, *(call(number) for number in range(2, 6)), call(6, over=False), world=3)
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(waits, protocol=2))
    reported = found(tmp_path, real("exit"))
    assert blamed(reported) == ("remote_peer_failure", 1, "0,2")
    assert reported[0].evidence["confidence"] == "high" and "trace_0 says so too" in reported[0].message


def test_a_rank_that_left_without_a_word_is_named_by_those_that_waited(tmp_path: Path) -> None:
    """One of them timed out, the other lost its peer."""
    reported = found(tmp_path, (line for line in real("exit") if REMINDER not in line))
    assert blamed(reported) == ("slow_rank_timeout", 1, "0,2")
    assert "rank 1 did not enter ALLREDUCE #6" in reported[0].message and "ranks 0,2 waited" in reported[0].message
    assert reported[0].where == {"node": "node-a", "rank": 1}


def test_a_rank_whose_dump_signal_tells_an_earlier_call_is_late(tmp_path: Path) -> None:
    """As torch 2.11 writes it, with a capital letter."""
    late = next(line for line in real("exit") if "Last enqueued NCCL work: 6" in line)
    late = late.replace("[rank0]", "[rank1]").replace("Rank 0", "Rank 1").replace("work: 6", "work: 5")
    kept = [line for line in real("exit") if REMINDER not in line and not line.startswith("[rank2]")]
    reported = found(tmp_path, [*kept, late])
    assert blamed(reported)[:2] == ("slow_rank_timeout", 1)


def test_ranks_that_end_in_order_are_not_blamed(tmp_path: Path) -> None:
    """Without destroy_process_group(), as many scripts do."""
    reminder = next(line for line in real("exit") if REMINDER in line)
    ended = [reminder.replace("rank1", f"rank{rank}") for rank in range(3)]
    assert found(tmp_path, [*real("exit")[:21], *ended]) == []


@pytest.mark.parametrize(
    "before", ["[rank1]: Traceback (most recent call last):\n[rank1]:   File \"a.py\", line 1, in <module>\n"
               "[rank1]: ValueError: bad batch",
               f"W0314 15:23:01.850000 4100 {LAUNCHER}multiprocessing/api.py:1012] Sending process 4102 closing signal "
               "SIGTERM"],
)  # fmt: skip
def test_a_rank_that_says_why_or_was_told_to_end_has_not_left(tmp_path: Path, before: str) -> None:
    lines = real("exit")
    at = next(place for place, line in enumerate(lines) if REMINDER in line)
    reported = found(tmp_path, [*lines[:at], before, *lines[at:]])
    assert not any("without a traceback" in finding.message for finding in reported)


def test_where_a_signal_ended_a_rank_another_one_that_left_is_not_the_cause(tmp_path: Path) -> None:
    reminder = next(line for line in real("exit") if REMINDER in line).replace("rank1", "rank0")
    kept = [line for line in real("kill") if not line.startswith(("[rank0]", "[2026"))]
    reported = found(tmp_path, [*kept[:20], reminder, *kept[20:]])
    assert blamed(reported)[:2] == ("host_oom_kill", 1)


def test_of_two_ranks_one_that_ended_and_one_that_waits_neither_is_blamed(tmp_path: Path) -> None:
    """One may have done a call too few, or the other one too many."""
    kept = (line for line in real("exit") if not re.search(r"rank 2 |:4103:|^\[rank2\]", line))
    reported = found(tmp_path, (line.replace("nranks 3", "nranks 2") for line in kept))
    assert blamed(reported)[:2] == ("remote_peer_failure", None)
    assert "rank 1 ended without" in reported[0].message and reported[0].noticed_by == ""


GIVEN_UP = """\
[rank2]:[E0314 15:23:04.510000000 ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group \
watchdog thread terminated with exception: NCCL error: {error}, NCCL version 2.28.9
terminate called after throwing an instance of 'c10::DistBackendError'
W0314 15:23:05.844000 4100 torch/distributed/elastic/multiprocessing/api.py:1012] Sending process 4101 closing signal \
SIGTERM
E0314 15:23:06.462000 4100 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: -6) local_rank: 2 \
(pid: 4103) of binary: /venv/bin/python
Root Cause (first observed failure):
[0]:
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -6 (pid: 4103)
  traceback : Signal 6 (SIGABRT) received by PID 4103"""
"""What follows by default: the watchdog ends the first rank that lost its peer."""
LOST = "remote process exited or there was a network error"


def aborted(error: str) -> list[str]:
    """The start of the job that a rank left, and that end."""
    lines = real("exit")
    at = next(place for place, line in enumerate(lines) if "First PG on this rank" in line)
    return [*lines[:at], *GIVEN_UP.format(error=error).splitlines()]


def test_a_rank_that_left_is_named_and_not_the_one_that_its_watchdog_ended(tmp_path: Path) -> None:
    reported = found(tmp_path, aborted(LOST))
    assert blamed(reported) == ("remote_peer_failure", 1, "2")
    assert reported[0].evidence["confidence"] == "low", "rank 0 said nothing before it was ended"


def test_a_rank_that_its_watchdog_ended_for_a_lost_peer_is_a_victim(tmp_path: Path) -> None:
    reported = found(tmp_path, (line for line in aborted(LOST) if REMINDER not in line))
    assert blamed(reported) == ("remote_peer_failure", None, "2")
    assert "the rank that went away ended with exit code 0" in reported[0].message


def test_a_rank_that_ended_itself_for_another_error_is_none(tmp_path: Path) -> None:
    reported = found(tmp_path, (line for line in aborted("unhandled cuda error") if REMINDER not in line))
    assert not any("ended with exit code 0" in finding.message for finding in reported)


SOCKET_FAILED = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."


@pytest.mark.parametrize(
    ("last", "hosts", "slug"),
    [("0", ("node-a", "node-b", "node-c"), "wrong_interface"), ("5", ("node-a", "node-b", "node-c"), ""),
     ("0", ("node-a", "node-a", "node-a"), ""), ("0", ("localhost", "localhost", "localhost"), "wrong_interface")],
)  # fmt: skip
def test_a_loopback_that_has_worked_or_leaves_no_host_is_healthy(
    tmp_path: Path, last: str, hosts: tuple[str, ...], slug: str
) -> None:
    started = [line for line in real("exit")[:18] if "COMPLETE" not in line]
    placed = [re.sub(r"^node-a(?=:410(\d))", lambda at: hosts[int(at[1]) - 1], line) for line in started]
    status = next(line for line in real("exit") if "last completed work: 5" in line)
    reported = found(tmp_path, [*placed, SOCKET_FAILED, status.replace("completed work: 5", f"completed work: {last}")])
    assert ("wrong_interface" in {finding.code.partition(".")[2] for finding in reported}) == bool(slug)


def test_the_rank_of_an_assertion_on_the_gpu_is_named(tmp_path: Path) -> None:
    """The GPU prints the assertion without a rank, before the process says anything."""
    reported = found(tmp_path, real("assert"))
    assert blamed(reported) == ("app_crash", 1, "2")
    assert (reported[0].where["file"], reported[0].where["line"]) == ("/job/train.py", 21)
    assert reported[0].message.startswith("rank 1: an assertion in a CUDA kernel failed: -sizes[i] <= index")
    assert "CUDA_LAUNCH_BLOCKING=1" in reported[0].fix and "out of range" in reported[0].fix
    assert "explain.unknown" not in {finding.code for finding in reported}


def test_several_ranks_with_an_assertion_are_all_named(tmp_path: Path) -> None:
    mine = [line for line in real("assert") if line.startswith("[rank1]: ")]
    at = real("assert").index(mine[-1]) + 1
    both = [*real("assert")[:at], *(line.replace("[rank1]", "[rank2]") for line in mine), *real("assert")[at:]]
    reported = found(tmp_path, both)
    assert reported[0].message.startswith("ranks 1-2: an assertion") and reported[0].noticed_by == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [("an illegal memory access was encountered", "app_crash"), ("unspecified launch failure", "app_crash"),
     ("misaligned address", "app_crash")],
)  # fmt: skip
def test_the_rank_of_a_kernel_that_failed_is_named_although_its_first_line_has_none(
    tmp_path: Path, error: str, code: str
) -> None:
    lines = [line.replace("device-side assert triggered", error) for line in real("assert") if "Assertion" not in line]
    reported = found(tmp_path, [*lines[:21], f"  what():  CUDA error: {error}", *lines[21:]])
    assert blamed(reported) == (code, 1, "2") and reported[0].where["line"] == 21


def test_a_rank_that_is_named_has_not_only_noticed(tmp_path: Path) -> None:
    reported = found(tmp_path, real("ifname"))
    assert blamed(reported) == ("no_socket_interface", 0, "")
    assert reported[0].where["node"] == "node-a" and reported[0].message.startswith("rank 0 on node-a: ")
    assert "explain.duplicate_gpu" not in {finding.code for finding in reported}


def test_an_error_of_all_ranks_is_told_of_all(tmp_path: Path) -> None:
    own = [line for line in real("ifname") if "elastic" not in line][:15]
    everyone = [line.replace(":4101:", f":{4101 + rank}:").replace("[rank0]", f"[rank{rank}]")
                for rank in range(3) for line in own]  # fmt: skip
    reported = found(tmp_path, everyone)
    assert blamed(reported) == ("no_socket_interface", None, "")
    assert reported[0].message.startswith("ranks 0-2 on node-a: ")


def test_a_killed_rank_is_named_with_its_host(tmp_path: Path) -> None:
    """torchrun calls the host localhost; NCCL's lines have its name."""
    reported = found(tmp_path, real("kill"))
    assert blamed(reported) == ("host_oom_kill", 1, "0,2")
    assert reported[0].where["node"] == "node-a" and reported[0].message.startswith("rank 1 was killed (SIGKILL)")
