"""Flight-recorder dumps: which ranks are out of step, and which are waited for."""

import json
import os
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch._C import _distributed_c10d

from preflight.explain.artifacts import dumps, flight_recorder
from preflight.explain.candidates import Candidate

NOW_S = 1_790_000_000.0
WAITS_S = 700.0
"""What waits has done so for so long when the dumps are written."""
Entry = dict[str, Any]


def call(
    number: int, operation: str = "all_reduce", size: int = 8, over: bool = True, *, line: int = 40, **more: Any
) -> Entry:
    """As torch 2.13 writes it on NCCL."""
    made = {
        "frames": [{"name": "all_reduce", "filename": "/venv/lib/python3.11/site-packages/torch/d.py", "line": 3245},
                   {"name": "step", "filename": "/job/train.py", "line": line}],
        "record_id": number - 1, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": f"nccl:{operation}",
        "time_created_ns": int((NOW_S + number / 1e3) * 1e9), "input_sizes": [[size]], "input_dtypes": ["Float"],
        "output_sizes": [[size]], "output_dtypes": ["Float"], "state": "completed" if over else "scheduled",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": int(NOW_S * 1e9) if over else None,
        "retired": over, "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip
    return {**made, **more}


def of(group: str, ranks: str, entry: Entry) -> Entry:
    return {**entry, "process_group": (group, f"group {ranks}"), "pg_id": 1}


FIRST = call(1, size=4)


def dump(*entries: Entry, world: int = 4, groups: dict[str, list[int]] | None = None) -> dict[str, Any]:
    config = {"0": list(range(world)), **(groups or {})}
    listed = [{**entry, "record_id": place} for place, entry in enumerate(entries)]
    return {
        "version": "2.10", "entries": listed, "comm_lib_version": "2.29.3", "pg_status": {},
        "pg_config": {name: {"name": name, "desc": "", "ranks": str(ranks)} for name, ranks in config.items()},
    }  # fmt: skip


@pytest.fixture
def told(tmp_path: Path) -> Callable[..., list[Candidate]]:
    """Writes the dumps, and reads them."""

    def write(by_rank: dict[int, Any], *, after_s: float = WAITS_S) -> list[Candidate]:
        paths = []
        for rank, content in by_rank.items():
            path = tmp_path / f"comm_lib_trace_rank_{rank}"
            path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=2))
            os.utime(path, (NOW_S + after_s, NOW_S + after_s))
            paths.append(str(path))
        found, unread = dumps.find_candidates(paths)
        assert unread == []
        return found

    return write


IN_IT = dump(FIRST, call(2, over=False))
Told = Callable[..., list[Candidate]]


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (call(2, "broadcast", over=False, line=71), "was inside broadcast of 8 float32 #2"),
        (call(2, size=16, over=False, line=71), "was inside all_reduce of 16 float32 #2"),
        (call(2, input_dtypes=["BFloat16"], over=False, line=71), "was inside all_reduce of 8 bfloat16 #2"),
    ],
    ids=["operation", "size", "type"],
)
def test_a_rank_that_calls_another_thing_is_named_with_its_line(told: Told, odd: Entry, says: str) -> None:
    (candidate,) = told({0: IN_IT, 1: IN_IT, 2: IN_IT, 3: dump(FIRST, odd)})
    assert (candidate.slug, candidate.where, tuple(sorted(candidate.ranks))) == (
        "collective_mismatch", {"rank": 3, "file": "/job/train.py", "line": 71}, (0, 1, 2),
    )  # fmt: skip
    assert candidate.message == (
        f"rank 3 {says} while ranks 0-2 waited inside all_reduce of 8 float32 #2; rank 3 at train.py:71, "
        "ranks 0-2 at train.py:40"
    )
    assert candidate.weight >= 80 and candidate.quotes[0][0].endswith("rank_3")


def test_a_rank_that_never_came_is_late_stuck_or_gone(told: Told) -> None:
    (candidate,) = told({0: IN_IT, 1: dump(FIRST), 2: IN_IT, 3: IN_IT})
    assert (candidate.slug, candidate.where, tuple(sorted(candidate.ranks))) == (
        "slow_rank_timeout",
        {"rank": 1},
        (0, 2, 3),
    )
    assert candidate.message == (
        "rank 1 never entered all_reduce of 8 float32 #2, inside which ranks 0,2-3 waited; rank 1 last in all_reduce "
        "of 4 float32 #1 at train.py:40, ranks 0,2-3 at train.py:40: rank 1 is late, stuck or gone (the others' "
        "timeout is 600 s)"
    )


def test_a_rank_that_has_recorded_nothing_at_all_never_came(told: Told) -> None:
    waits = dump(call(1, over=False))
    (candidate,) = told({0: waits, 1: {"version": "2.10", "pg_config": {}}, 2: waits, 3: waits})
    assert (candidate.slug, candidate.where) == ("slow_rank_timeout", {"rank": 1})
    old = dump(*(call(number) for number in range(3000, 3003)))
    for entry in old["entries"]:
        entry |= {"process_group": ("7", "x"), "record_id": 5000}  # its ring is full of another group's
    assert [candidate.where for candidate in told({0: waits, 1: old, 2: waits, 3: waits})] == [{}]


def test_a_rank_still_inside_what_the_others_have_left_is_stuck(told: Told) -> None:
    ahead = dump(FIRST, call(2), call(3, "barrier", over=False))
    (candidate,) = told({0: ahead, 1: IN_IT, 2: ahead, 3: ahead})
    assert (candidate.slug, candidate.where) == ("slow_rank_timeout", {"rank": 1})
    assert candidate.message.startswith("rank 1 was still inside all_reduce of 8 float32 #2, and not inside barrier")


def test_a_rank_without_a_dump_is_the_one_that_the_others_wait_for(told: Told) -> None:
    waits = dump(FIRST, call(2, over=False), world=8)
    (candidate,) = told({rank: waits for rank in range(8) if rank != 5})
    assert (candidate.slug, candidate.where, candidate.weight) == ("remote_peer_failure", {"rank": 5}, 50)
    assert candidate.message == (
        "rank 5 of 8 left no dump here, and ranks 0-4,6-7 wait inside all_reduce of 8 float32 #2: rank 5 ended, or "
        "hung before a dump was written"
    )
    (half,) = told(dict.fromkeys(range(4), waits))
    assert half.weight < 50 and half.where == {} and "ranks 4-7 their dumps may be on other nodes" in half.message


def test_of_half_the_ranks_the_one_that_did_not_come_is_named_all_the_same(told: Told) -> None:
    waits = dump(FIRST, call(2, over=False), world=8)
    (candidate,) = told({0: waits, 1: dump(FIRST, world=8), 2: waits, 3: waits})
    assert (candidate.slug, candidate.where) == ("slow_rank_timeout", {"rank": 1})


def test_where_all_wait_in_one_collective_no_rank_is_named(told: Told) -> None:
    (first,) = told(dict.fromkeys(range(4), IN_IT))
    assert (first.slug, first.where) == ("p2p_acs_iommu", {})
    assert first.message.startswith("all 4 ranks wait inside all_reduce of 8 float32 #2, in step, and none has left it")
    (later,) = told(dict.fromkeys(range(4), dump(FIRST, call(2), call(3, over=False))))
    assert (later.slug, later.code, later.where) == ("explain.in_step", "explain.in_step", {})
    assert max(first.weight, later.weight) < 50 and later.fix


def test_a_gpu_that_has_not_begun_what_the_others_wait_in_is_named(told: Told) -> None:
    timed = {**call(2), "time_discovered_started_ns": int(NOW_S * 1e9)}
    begun = dump(timed, call(3, over=False, state="started"))
    (candidate,) = told({0: begun, 1: begun, 2: begun, 3: dump(timed, call(3, over=False))})
    assert (candidate.slug, candidate.where, tuple(sorted(candidate.ranks))) == (
        "slow_rank_timeout",
        {"rank": 3},
        (0, 1, 2),
    )
    assert "all_reduce of 8 float32 #3 has not begun on the GPU of rank 3" in candidate.message
    half = {0: begun, 1: begun, **dict.fromkeys((2, 3), dump(timed, call(3, over=False)))}
    assert [(item.where, "has not begun" in item.message) for item in told(half)] == [({}, False)]
    untimed = dump(call(2), call(3, over=False, state="started"))
    assert [
        item.where for item in told({0: untimed, 1: untimed, 2: untimed, 3: dump(call(2), call(3, over=False))})
    ] == [{}]


def test_of_two_ranks_the_one_that_did_not_come_is_named_with_less_certainty(told: Told) -> None:
    waits, absent = dump(FIRST, call(2, over=False), world=2), dump(FIRST, world=2)
    (candidate,) = told({0: waits, 1: absent})
    assert (candidate.slug, candidate.where, candidate.weight) == ("slow_rank_timeout", {"rank": 1}, 55)


def test_one_rank_alone_in_a_collective_has_called_one_too_many(told: Told) -> None:
    (candidate,) = told({0: IN_IT, 1: dump(FIRST), 2: dump(FIRST), 3: dump(FIRST)})
    assert (candidate.slug, candidate.where) == ("collective_mismatch", {"rank": 0})
    assert candidate.message.startswith("rank 0 alone entered all_reduce of 8 float32 #2, which ranks 1-3 never did")


def test_without_a_majority_both_sides_are_told(told: Told) -> None:
    other = dump(FIRST, call(2, "reduce", over=False))
    (candidate,) = told({0: IN_IT, 1: other, 2: IN_IT, 3: other})
    assert (candidate.slug, candidate.where) == ("collective_mismatch", {})
    assert "ranks 0,2 inside all_reduce of 8 float32 #2, ranks 1,3 inside reduce of 8 float32 #2" in candidate.message


def test_ranks_that_call_two_groups_in_another_order_wait_for_each_other(told: Told) -> None:
    """Rank 3 is in the group of all data-parallel ranks (which are all, too), the others are in the world."""
    groups = {"5": [0, 1, 2, 3]}
    odd = dump(FIRST, of("5", "0-3", call(1, over=False)), groups=groups)
    world = dump(FIRST, call(2, over=False), groups=groups)
    (candidate,) = told({0: world, 1: world, 2: world, 3: odd})
    assert (candidate.slug, candidate.weight) == ("collective_mismatch", 70)
    assert "rank 3 inside all_reduce of 8 float32 #1 of the group of ranks 0-3 instead" in candidate.message


@pytest.mark.parametrize(
    ("world", "says"),
    [
        (5, "ranks 2-3 did not leave all_reduce of 8 float32 #1 of the group of ranks 2-3, and ranks 0-1,4 waited "
         "inside all_reduce of 8 float32 #2; expected all to leave it; the ranks are not at fault"),
        (4, "the ranks are out of step: ranks 0-1 inside all_reduce of 8 float32 #2, ranks 2-3 inside "
         "all_reduce of 8 float32 #1 of the group of ranks 2-3 instead; ranks 2-3 last in all_reduce of 4 float32 "
         "#1 at train.py:40, ranks 0-1 at train.py:40; expected them to leave it; the ranks are not at fault"),
    ],
)  # fmt: skip
def test_a_pair_that_all_others_wait_for_hangs_below(told: Told, world: int, says: str) -> None:
    waits = dump(FIRST, call(2, over=False), world=world)
    pair = dump(FIRST, of("5", "2-3", call(1, over=False)), groups={"5": [2, 3]}, world=world)
    (candidate,) = told({rank: pair if rank in (2, 3) else waits for rank in range(world)})
    assert (candidate.slug, candidate.code, candidate.where, candidate.message) == (
        "explain.in_step",
        "explain.in_step",
        {},
        says,
    )


def test_who_waits_for_a_rank_without_a_dump_in_another_group_is_not_to_blame(told: Told) -> None:
    groups = {"5": [4, 5]}
    world = dump(FIRST, call(2, over=False), world=8)
    held = dump(FIRST, of("5", "4-5", call(1, over=False)), world=8, groups=groups)
    (candidate,) = told({**dict.fromkeys((0, 1, 2, 3, 6, 7), world), 4: held})
    assert (candidate.slug, candidate.where) == ("remote_peer_failure", {"rank": 5})


def send(number: int, words: str, over: bool = False) -> Entry:
    return call(1, words, over=over, is_p2p=True, p2p_seq_id=number)


def test_a_receive_without_its_send_names_the_end_of_the_chain(told: Told) -> None:
    made = {0: dump(FIRST, send(1, "recv 0<-1")), 1: dump(FIRST, send(1, "recv 1<-2")), 2: dump(FIRST), 3: dump(FIRST)}
    (candidate,) = told(made)
    assert (candidate.slug, candidate.where, tuple(sorted(candidate.ranks))) == ("slow_rank_timeout", {"rank": 2}, (1,))
    assert candidate.message == (
        "rank 1 waits in a receive from rank 2 at train.py:40, expected rank 2 to be in its send, but it is not"
    )
    both = {**made, 1: dump(FIRST, send(1, "send 1->0"))}
    assert [(candidate.slug, candidate.where) for candidate in told(both)] == [("explain.in_step", {})]
    batch = dump(FIRST, send(1, "send 0->1"), send(1, "coalesced", over=True))
    assert told({**made, 0: batch, 1: dump(FIRST)}) == []


# What is no hang


def test_dumps_of_a_job_that_runs_say_nothing(told: Told) -> None:
    """They are not taken at the same moment: one rank always seems to be behind."""
    assert told(dict.fromkeys(range(4), dump(FIRST, call(2)))) == []
    late = dump(FIRST)
    assert told({0: IN_IT, 1: late, 2: IN_IT, 3: IN_IT}, after_s=0.5) == []
    assert told(dict.fromkeys(range(4), IN_IT), after_s=0.5) == []


def test_a_call_that_ran_into_its_time_out_is_retired_and_not_over(told: Told) -> None:
    ended = dump(FIRST, call(2, over=False, retired=True, state="started"))
    assert [candidate.slug for candidate in told({0: ended, 1: dump(FIRST), 2: ended, 3: ended})] == [
        "slow_rank_timeout"
    ]


def test_on_gloo_it_is_over_when_it_is_retired(told: Told) -> None:
    gloo = [call(n, profiling_name="gloo:all_reduce", over=False, retired=True) for n in (1, 2)]
    made = {**dump(*gloo), "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}
    assert told(dict.fromkeys(range(4), made)) == []
    made["entries"][1]["retired"] = False
    (candidate,) = told(dict.fromkeys(range(4), made))
    assert (candidate.slug, candidate.code) == ("explain.in_step", "explain.in_step")


def test_before_torch_2_5_numbers_that_sends_have_shifted_are_not_compared(told: Told) -> None:
    batch = call(2, "send 0->1", is_p2p=True)
    shifted = dump(FIRST, batch, call(3, "barrier"), call(4, over=False))
    plain = dump(FIRST, call(2, "barrier"), call(3, over=False))
    (candidate,) = told({0: shifted, 1: shifted, 2: plain, 3: plain})
    assert (candidate.slug, candidate.code, candidate.where) == ("explain.in_step", "explain.in_step", {})
    assert candidate.message == (
        "ranks wait long, and the dumps do not show for which rank: ranks 0-1 all_reduce of 8 float32 #4, "
        "ranks 2-3 all_reduce of 8 float32 #3"
    )
    assert told({0: shifted, 1: shifted, 2: plain, 3: plain}, after_s=0.5) == []


# Forms


def test_the_forms_of_older_torches_and_json_say_the_same(told: Told) -> None:
    def older(content: dict[str, Any], *, microseconds: bool) -> list[Entry]:
        gone = {
            "process_group",
            "collective_seq_id",
            "p2p_seq_id",
            "is_p2p",
            "input_dtypes",
            "output_dtypes",
            "timeout_ms",
        }
        entries = [{**entry, "seq_id": entry["collective_seq_id"]} for entry in content["entries"]]
        if microseconds:
            entries = [{**entry, "time_created_us": entry["time_created_ns"] // 1000} for entry in entries]
            gone = gone | {"time_created_ns", "record_id"}
        return [{key: value for key, value in entry.items() if key not in gone} for entry in entries]

    odd = dump(FIRST, call(2, "broadcast", over=False))
    now = {0: IN_IT, 1: odd, 2: IN_IT, 3: IN_IT}
    (usual,) = told(now)
    torch_2_1 = {rank: older(content, microseconds=True) for rank, content in now.items()}
    torch_2_2 = {rank: {"version": "1.1", "entries": older(item, microseconds=False)} for rank, item in now.items()}
    for made in (torch_2_1, torch_2_2):
        (candidate,) = told(made)
        assert candidate.message == usual.message.replace("float32", "elements")
    (candidate,) = told({rank: json.dumps(item).encode() for rank, item in now.items()})
    assert candidate == usual
    assert told({rank: pickle.dumps(item, protocol=5) for rank, item in now.items()}) == [usual]


def test_of_two_dumps_of_one_rank_the_later_counts(tmp_path: Path) -> None:
    older, newer = tmp_path / "a", tmp_path / "b"
    for folder, content in ((older, dump(FIRST, world=1)), (newer, dump(FIRST, call(2), world=1))):
        folder.mkdir()
        (folder / "nccl_trace_rank_0").write_bytes(pickle.dumps(content, protocol=2))
    for order in ((older, newer), (newer, older)):
        found, unread = dumps.find_candidates([str(folder / "nccl_trace_rank_0") for folder in order])
        assert found == []
        assert [(item.shown, item.why[:29]) for item in unread] == [
            (str(older / "nccl_trace_rank_0"), "is an older dump of rank 0 th")
        ]


def test_a_file_that_is_named_for_no_rank_of_its_job_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    named = (("trace_2024", "is rank 2024's by its name"), ("trace_4", "is rank 4's by its name, but its job has 4"))
    for name, why in (("trace.pickle", "does not say which rank"), *named):
        path = folder / name
        path.write_bytes(pickle.dumps(IN_IT, protocol=2))
        found, (unread,) = dumps.find_candidates([str(path)])
        assert found == [] and unread.why.startswith(why)


def test_what_three_real_ranks_leave_is_understood(tmp_path: Path) -> None:
    """On gloo: rank 2 broadcasts where the others reduce."""

    def rank(number: int) -> None:
        store = dist.FileStore(str(tmp_path / "store"), 3)  # type: ignore[attr-defined]  # not in __all__
        store.set_timeout(timedelta(seconds=20))
        dist.init_process_group("gloo", store=store, rank=number, world_size=3, timeout=timedelta(seconds=20))
        dist.all_reduce(torch.ones(4))
        if number == 2:
            works = [dist.broadcast(torch.ones(8), src=0, async_op=True)]
        else:
            works = [dist.all_reduce(torch.ones(8), async_op=True)]
        dumped = getattr(_distributed_c10d, "_dump_fr_trace")(True, True, False)  # noqa: B009 -- has no stub
        (tmp_path / f"trace_rank_{number}").write_bytes(dumped)
        assert not works[0].is_completed()
        store.set(f"written {number}", "")
        store.wait([f"written {each}" for each in range(3)])

    pids = []
    for number in range(3):
        pids.append(os.fork())
        if pids[-1] == 0:
            try:
                os.environ["TORCH_FR_BUFFER_SIZE"] = "64"
                rank(number)
            finally:
                os._exit(0)
    for pid in pids:
        os.waitpid(pid, 0)
    paths = [tmp_path / f"trace_rank_{number}" for number in range(3)]
    for path in paths:
        os.utime(path, (time.time() + WAITS_S, time.time() + WAITS_S))
    (candidate,), unread = dumps.find_candidates([str(path) for path in paths])
    assert unread == []
    assert (candidate.slug, candidate.where["rank"], candidate.where["file"]) == ("collective_mismatch", 2, __file__)
    assert "rank 2 was inside broadcast of 8 float32 #2 while ranks 0-1 waited" in candidate.message


def test_hundreds_of_ranks_are_compared_in_no_time(told: Told) -> None:
    calls = [call(number) for number in range(1, 200)]
    waits = pickle.dumps(dump(*calls, call(200, over=False), world=256), protocol=2)
    late = pickle.dumps(dump(*calls, world=256), protocol=2)
    start = time.process_time()
    (candidate,) = told({rank: late if rank == 70 else waits for rank in range(256)})
    assert candidate.where == {"rank": 70}
    assert time.process_time() - start < 8.0


def test_of_very_many_entries_the_last_are_looked_at(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "ENTRIES", 2)
    (candidate,) = told(dict.fromkeys(range(4), dump(call(1, over=False), call(2), call(3, over=False))))
    assert "#3" in candidate.message
