"""torchrun's error files, read as a log would be."""

import json
import random
import traceback
from pathlib import Path
from typing import Any

import pytest

from preflight.explain.artifacts import error_files
from preflight.explain.timeline import Timeline
from preflight.failure_book.line import LONGEST


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def raised() -> dict[str, Any]:
    """As torch's `record` writes it."""
    try:
        [].pop(3)
    except IndexError as error:
        more = {"py_callstack": traceback.format_exc(), "timestamp": "1790000123"}
        return {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": more}}
    raise AssertionError


def test_a_traceback_is_read_with_its_time_and_local_rank(tmp_path: Path) -> None:
    path = write(tmp_path / "run" / "attempt_1" / "3" / "error.json", raised())
    lines = error_files.lines(str(path), "run/error.json")
    assert lines[0].text == "Traceback (most recent call last):"
    assert lines[-1].text == "IndexError: pop from empty list"
    assert [line.text for line in lines].count(lines[-1].text) == 1
    assert [line.number for line in lines] == [*range(1, len(lines) + 1)]
    assert {(line.file, line.local_rank, line.rank, line.time, line.clock) for line in lines} == {
        ("run/error.json", 3, None, 1790000123.0, "iso")
    }


def test_what_it_tells_is_a_traceback_of_the_story(tmp_path: Path) -> None:
    evidence = Timeline()
    for line in error_files.lines(str(write(tmp_path / "error.json", raised())), "error.json"):
        evidence.add(line, [])
    ((found),) = evidence.tracebacks
    assert (found.type, found.text, found.file) == ("IndexError", "pop from empty list", __file__)


@pytest.mark.parametrize(
    ("content", "told", "time_s"),
    [
        ({"message": "SIGTERM came", "timestamp": 1790000123}, ["SIGTERM came"], 1790000123.0),
        ({"message": {"message": "ValueError: no", "extraInfo": {"timestamp": "soon"}, "errorCode": 1}},
         ["ValueError: no"], None),
        ({"message": {"message": "a\nb", "extraInfo": {"py_callstack": 7}}}, ["a", "b"], None),
        ({"message": "<NONE>"}, [], None),
        ({"message": None}, [], None),
        ([1], [], None),
        ("RuntimeError: not JSON\n", ["RuntimeError: not JSON"], None),
        ("", [], None),
    ],
)  # fmt: skip
def test_other_forms(tmp_path: Path, content: Any, told: list[str], time_s: float | None) -> None:
    lines = error_files.lines(str(write(tmp_path / "error.json", content)), "error.json")
    assert [line.text for line in lines] == told
    assert {line.time for line in lines} <= {time_s}


def test_a_rank_that_its_name_tells_is_its_rank(tmp_path: Path) -> None:
    for name, ranks in (
        ("error_rank_5.json", (5, None)),
        ("error.local_rank3.json", (None, 3)),
        ("e.json", (None, None)),
    ):
        (line,) = error_files.lines(str(write(tmp_path / name, {"message": "x"})), name)
        assert (line.rank, line.local_rank) == ranks


def test_what_is_gone_says_nothing_and_what_is_long_is_cut(tmp_path: Path) -> None:
    assert error_files.lines(str(tmp_path / "none.json"), "none.json") == []
    assert error_files.lines(str(tmp_path), "folder") == []
    stack = "Traceback (most recent call last):\n" + "x" * 10_000 + "\n" + "y\n" * 5000 + "ValueError: no"
    content = {"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": stack}}}
    lines = error_files.lines(str(write(tmp_path / "error.json", content)), "error.json")
    assert len(lines) == error_files.LINES and lines[-1].text == "ValueError: no"
    assert max(len(line.raw) for line in lines) == LONGEST


def test_random_bytes_and_altered_files_never_raise(tmp_path: Path) -> None:
    chance = random.Random(9)
    path = tmp_path / "error.json"
    for _ in range(300):
        data = bytearray(chance.choice([json.dumps(raised()).encode(), chance.randbytes(64)]))
        for _ in range(chance.randint(0, 4)):
            data[chance.randrange(len(data))] = chance.choice([chance.randrange(256), *b'0]}"{'])
        path.write_bytes(data)
        assert all("\n" not in line.text for line in error_files.lines(str(path), "error.json"))
