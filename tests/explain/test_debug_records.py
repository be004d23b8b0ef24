"""Candidates from made-up records and stacks: which rank failed first, and where each rank hangs."""

import json
from pathlib import Path
from typing import Any

import pytest

from preflight.explain.artifacts import first_failure, hang_stacks
from preflight.explain.artifacts.processes import HEAD, main_thread, read_processes
from preflight.explain.candidates import Candidate

LIBRARY = "/venv/lib/python3.11/site-packages/torch/distributed"
GLOO = "[/x/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:2144"

LATE = "[/x/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation"


class Made:
    """A folder of `preflight debug`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.records: list[str] = []
        self.stacks: list[str] = []

    def rank(self, rank: int, **more: Any) -> None:
        record = {"preflight_record": 1, "rank": rank, "node": "node-a", "pid": 100 + rank, "cwd": "/job", **more}
        self.records.append(self._write(f"{rank}.json", json.dumps({"world_size": 3, "started": 1.0, **record})))

    def stack(self, rank: int, *frames: str, state: str = "S", worker: tuple[str, ...] = ()) -> None:
        self.stacks.append(self._write(f"{rank}.stack", _taken(rank, 100 + rank, state, frames)))
        if worker:
            text = Path(self.stacks[-1]).read_text() + _taken(rank, 900, "S", worker)
            Path(self.stacks[-1]).write_text(text)

    def find_candidates(self) -> list[Candidate]:
        ranks = read_processes(self.records, self.stacks)
        return first_failure.find_candidates(ranks) or hang_stacks.find_candidates(ranks)

    def only(self) -> Candidate:
        (candidate,) = self.find_candidates()
        return candidate

    def _write(self, name: str, text: str) -> str:
        (self._folder / name).write_text(text)
        return str(self._folder / name)


def _taken(rank: int, pid: int, state: str, frames: tuple[str, ...]) -> str:
    head = {"rank": rank, "pid": pid, "rank_pid": 100 + rank, "node": "node-a", "look": 2, "state": state}
    lines = ["Thread 0x01 (most recent call first):", '  File "/job/other.py", line 1 in helper', ""]
    lines += ["Current thread 0x02 (most recent call first):", *(f'  File "{frame}' for frame in frames)]
    return "\n".join([HEAD + json.dumps(head), *(lines if frames else []), ""])


REDUCE = (f'{LIBRARY}/distributed_c10d.py", line 9 in all_reduce', f'{LIBRARY}/c10d_logger.py", line 8 in wrapper')
GATHER = (f'{LIBRARY}/distributed_c10d.py", line 9 in all_gather',)
STEP = '/job/train.py", line 50 in step'
LOAD = '/job/data.py", line 7 in load'
LOADER = '/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 5 in _try_get_data'


def raised(kind: str, message: str, time: float, line: int = 41) -> dict[str, Any]:
    trace = f'Traceback (most recent call last):\n  File "/job/train.py", line {line}, in main\n    step()\n'
    return {"exception": {"type": kind, "message": message, "time": time, "traceback": f"{trace}{kind}: {message}\n"}}


def test_who_raised_first_of_his_own_is_to_blame(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.rank(0, **raised("RuntimeError", GLOO, 9.0))  # by a clock that is before
    made.rank(1, **raised("KeyError", "'label'", 10.0))
    made.rank(2, **raised("KeyError", "'image'", 11.0))
    candidate = made.only()
    assert (candidate.slug, tuple(sorted(candidate.ranks))) == ("app_crash", (0,))
    assert candidate.where == {"rank": 1, "node": "node-a", "file": "train.py", "line": 41}
    assert "KeyError: 'label' at train.py:41 in main()" in candidate.message


def test_what_all_raise_is_nobodys(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for rank in range(3):
        made.rank(rank, **raised("KeyError", "'label'", 10.0 + rank))
    candidate = made.only()
    assert candidate.where == {"file": "train.py", "line": 41}
    assert candidate.message.startswith("all 3 ranks raised KeyError")


def test_who_was_gone_first_without_a_word(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.rank(0, **raised("RuntimeError", GLOO, 10.0), gone=11.0, status=1)
    made.rank(1, gone=9.9, status=-9)
    made.rank(2, gone=12.0, status=-15)  # by its launcher
    candidate = made.only()
    assert (candidate.slug, candidate.where, tuple(sorted(candidate.ranks))) == (
        "host_oom_kill",
        {"rank": 1, "node": "node-a"},
        (0,),
    )


def test_who_left_in_order_while_others_waited(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.rank(0, **raised("RuntimeError", GLOO, 10.0))
    made.rank(1, ended=9.0, gone=9.1, status=0)
    candidate = made.only()
    assert (candidate.slug, candidate.where["rank"]) == ("collective_mismatch", 1)


def test_who_closes_its_connections_and_ends_then_has_left_in_order(tmp_path: Path) -> None:
    """The others notice the end of its process group before its interpreter is done."""
    made = Made(tmp_path)
    made.rank(0, **raised("RuntimeError", GLOO, 10.0), gone=11.0, status=1)
    made.rank(1, ended=10.2, gone=10.9, status=0)
    assert made.only().where["rank"] == 1
    made.rank(1, gone=9.9, status=0)  # os._exit(0)
    assert made.only().where["rank"] == 1


def test_who_left_long_after_the_others_failed_is_not_to_blame(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.rank(0, **raised("RuntimeError", GLOO, 10.0), gone=11.0, status=1)
    made.rank(1, ended=30.0, gone=30.1, status=0)
    assert made.find_candidates() == []


@pytest.mark.parametrize("status", [-15, -9, None])
def test_whom_the_launcher_ended_after_anothers_time_out_was_absent(tmp_path: Path, status: int | None) -> None:
    made = Made(tmp_path)
    made.rank(0, **raised("RuntimeError", LATE, 10.0), gone=11.0, status=1)
    made.rank(1, gone=11.1, status=status)
    candidate = made.only()
    assert (candidate.slug, candidate.where["rank"], tuple(sorted(candidate.ranks))) == (
        "slow_rank_timeout",
        1,
        (0,),
    ) and candidate.weight < 50
    assert "rank 1 still ran" in candidate.message
    made.rank(2, gone=11.1, status=-15)
    assert made.only().where == {}, "one of the two, or both"


def test_a_sigterm_to_all_and_a_status_that_all_have_blame_none(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for rank in range(3):
        made.rank(rank, gone=10.0 + rank, status=-15)
    assert (made.only().slug, made.only().where) == ("external_signal", {})
    for rank in range(3):
        made.rank(rank, gone=10.0 + rank, status=2)
    assert made.only().message.startswith("all 3 ranks ended with exit status 2") and made.only().where == {}


def test_a_sigterm_beside_an_end_of_which_nobody_knows_is_maybe_a_launchers(tmp_path: Path) -> None:
    """mp.spawn has asked for the status before `debug` could."""
    made = Made(tmp_path)
    for rank in (0, 2):
        made.rank(rank, gone=10.01, status=-15)
    made.rank(1, gone=10.02, status=None)
    assert made.find_candidates() == []
    made.rank(1, gone=20.0, status=None)
    assert made.only().slug == "external_signal"


def test_ranks_that_end_in_order_or_nobody_knows_how_are_no_candidate(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.rank(0, ended=9.0, gone=9.1, status=0)
    made.rank(1, gone=9.1, status=None)
    made.rank(2, ended=9.0)
    assert made.find_candidates() == []


def test_all_that_lost_their_peer_are_no_candidate(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for rank in range(3):
        made.rank(rank, **raised("RuntimeError", GLOO, 10.0))
    assert made.find_candidates() == []


def test_who_is_late_while_others_wait(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for rank in range(3):
        made.rank(rank)
    made.stack(0, *REDUCE, STEP)
    made.stack(2, *REDUCE, STEP)
    made.stack(1, LOAD, STEP)
    candidate = made.only()
    assert (candidate.slug, tuple(sorted(candidate.ranks))) == ("slow_rank_timeout", (0, 2))
    assert candidate.where == {"rank": 1, "node": "node-a", "file": "data.py", "line": 7}
    assert "rank 1 stayed at data.py:7 in load() in two samples, with ranks 0,2 inside all_reduce" in candidate.message


def test_the_line_of_a_stuck_worker_of_a_loader(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.rank(0)
    made.rank(1)
    made.stack(0, *REDUCE, STEP)
    made.stack(1, LOADER, STEP, worker=(LOAD, '/lib/torch/x.py", line 3 in _worker_loop', STEP))
    candidate = made.only()
    assert (candidate.where["file"], candidate.where["line"]) == ("data.py", 7)
    assert "waiting for 1 DataLoader worker" in candidate.message
    assert "no stack of rank 2" in candidate.message


def test_different_collectives(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for rank in range(3):
        made.rank(rank)
        made.stack(rank, *(GATHER if rank == 2 else REDUCE), STEP)
    candidate = made.only()
    assert (candidate.slug, candidate.where["rank"]) == ("collective_mismatch", 2)
    assert "ranks 0-1 inside all_reduce at train.py:50 in step(), rank 2 inside all_gather" in candidate.message


def test_all_in_one_collective_or_in_sends_say_nothing(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for rank in range(3):
        made.rank(rank)
        made.stack(rank, *REDUCE, STEP)
    assert made.find_candidates() == []
    made.stack(1, f'{LIBRARY}/distributed_c10d.py", line 9 in recv', STEP)
    assert made.find_candidates() == []


def test_a_stopped_rank_and_one_that_the_kernel_holds(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for rank in range(3):
        made.rank(rank)
    made.stack(0, *REDUCE, STEP)
    made.stack(1, state="T")
    made.stack(2, state="D")
    assert [(candidate.slug, candidate.where["rank"]) for candidate in made.find_candidates()] == [
        ("external_signal", 1),
        ("slow_rank_timeout", 2),
    ]


def test_what_py_spy_prints() -> None:
    text = 'Process 7: python train.py\n\nThread 7 (idle): "MainThread"\n'
    text += "    load (/job/data.py:7)\n    main (/job/train.py:50)\n"
    text += 'Thread 9 (idle): "Thread-1"\n    wait (threading.py:3)\n'
    assert main_thread(text) == [("/job/data.py", 7, "load", None), ("/job/train.py", 50, "main", None)]


def test_files_that_are_malformed_say_nothing(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for number, text in enumerate(("", "{", "[]", '{"rank": "x", "pid": 1}', "\0\xff", '{"rank": 1e999, "pid": 2}')):
        made.records.append(made._write(f"bad-{number}", text))
        made.stacks.append(made._write(f"bad-{number}.stack", f"{HEAD}{text}\n"))
    assert made.find_candidates() == []
    made.records.append(str(tmp_path / "gone"))
    made.rank(1, exception="no", gone="never", status="x", ended=[], world_size="y", started=None)
    made.rank(2, exception={"type": 3, "message": None, "traceback": 7}, world_size=None)
    assert all(isinstance(candidate, Candidate) for candidate in made.find_candidates())
