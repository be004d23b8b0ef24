"""Files that are no dumps, or want to do harm: each is one sentence, and nothing of them is run."""

import json
import os
import pickle
import random
import time
from pathlib import Path
from typing import Any

import pytest

from preflight.sdk import pickles
from preflight.sdk.pickles import RefusedFile
from tests.explain.made_dumps import IN_IT, call, dump, find_candidates


class Harmful:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    for content in (Harmful(mark), {"entries": [{"frames": Harmful(mark)}], "version": "2.10", "pg_config": {}}):
        path = tmp_path / "nccl_trace_rank_0"
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        found, (unread,) = find_candidates([str(path)])
        assert found == [] and "so nothing of it was loaded" in unread.why
        assert not mark.exists()


def test_dumps_of_torchcomms_are_not_compared_by_their_numbers(tmp_path: Path) -> None:
    """It counts all communicators together: here each rank has used another one before, and all is well."""
    paths = [tmp_path / f"comm_lib_trace_rank_{rank}" for rank in (0, 1)]
    for rank, path in enumerate(paths):
        of_comm: dict[str, Any] = {"process_group": ("main", "ncclx"), "pg_id": 0, "profiling_name": "all_reduce"}
        entries = [call(number + rank, **of_comm) for number in range(3)]
        path.write_text(json.dumps(dump(*entries, world=2)))
    found, unread = find_candidates(list(map(str, paths)))
    assert found == [] and all("is from torchcomms" in file.why for file in unread) and len(unread) == 2


def test_the_second_lock_holds_without_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "_check_opcodes", lambda _: None)
    mark = tmp_path / "ran"
    for data in (*(pickle.dumps(Harmful(mark), protocol) for protocol in range(6)), b"P1\n.", b"K\x01Q.", b"\x82\x01."):
        with pytest.raises(RefusedFile, match="is a broken pickle"):
            pickles.load_plain(data)
    assert not mark.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80", b"\x80\x02", b"\x80\x02}q\x00(X\xff\xff\xff\x7fentries", pickle.dumps(IN_IT, 2)[:-1],
        pickle.dumps(IN_IT, 2)[:500], b"\x80\x02r\xff\xff\xff\x7f.", b"\x80\x02\x96\xff\xff\xff\xff\x00\x00\x00\x00.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff.", b"]" * 5_000_000 + b".", b"\x80\x02" + b"(" * 1000 + b".",
        b"\x80\x02h\x07.", b"\x80\x02]q\x00h\x00a.", b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        b"\x80\x02K\x01.", b"\x80\x02N.", b"{" * 100_000, b"[" * 200_000 + b"]" * 200_000, b"[1, 2]", b"{}",
        b'{"entries": 3}',
        b'{"entries": [1]}', b'{"entries": [[]], "version": "2.10"}', b'{"version": "2.10", "pg_config": [1]}',
        b'{"entries": [{"process_group": [1, 2]}]}', b'{"pg_config": {"0": {"ranks": 7}}, "entries": 0}',
    ],
)  # fmt: skip
def test_what_is_no_dump_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(data)
    found, unread = find_candidates([str(path)])
    assert found == []
    assert all(item.shown == str(path) and item.why and "\n" not in item.why and len(item.why) < 250 for item in unread)
    assert unread


def test_a_place_far_off_in_the_memo_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(RefusedFile, match="LONG_BINPUT at byte 3"):
        pickles.load_plain(b"\x80\x02]r\x00\x00\x00\x40.")


def test_a_dump_of_a_billion_shared_lists_takes_no_time(tmp_path: Path) -> None:
    deep: Any = [1] * 1000
    for _ in range(30):
        deep = [deep] * 1000
    entry = call(1, over=False, input_sizes=deep, frames=[{"filename": deep, "line": 1}] * 1000)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({**dump(), "entries": [entry] * 150_000}, protocol=2))
    start = time.process_time()
    find_candidates([str(path)])
    assert time.process_time() - start < 5.0


def test_random_bytes_and_altered_dumps_never_raise(tmp_path: Path) -> None:
    chance = random.Random(9)
    sound = [pickle.dumps(IN_IT, protocol=2), json.dumps(IN_IT).encode()]
    for number in range(400):
        data = bytearray(chance.choice([*sound, chance.randbytes(64), b"\x80\x02" + chance.randbytes(64)]))
        for _ in range(chance.randint(0, 4)):
            data[chance.randrange(len(data))] = chance.choice([chance.randrange(256), *b'0]}"(.'])
        path = tmp_path / f"nccl_trace_rank_{number % 4}"
        path.write_bytes(data)
        found, unread = find_candidates([str(path), str(path)])
        assert len(unread) <= 2 and all("\n" not in candidate.message for candidate in found)
