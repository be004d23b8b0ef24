"""Forms of flight-recorder dumps: of older torches, JSON, several of one rank, real and very large ones."""

import json
import os
import pickle
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch._C import _distributed_c10d

from preflight.explain.artifacts import flight_recorder
from tests.explain.made_dumps import FIRST, IN_IT, WAITS_S, Entry, Told, call, dump, find_candidates


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
        found, unread = find_candidates([str(folder / "nccl_trace_rank_0") for folder in order])
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
        found, (unread,) = find_candidates([str(path)])
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
    (candidate,), unread = find_candidates([str(path) for path in paths])
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
