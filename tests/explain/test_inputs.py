"""Files are known by what they hold; folders are walked without falling into anything."""

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from preflight.errors import UsageError
from preflight.explain import inputs
from preflight.explain.inputs import Input, Unread, find

LOG = b"node-a:4101:4177 [0] NCCL INFO Using network IB\n"
JSON: list[tuple[str, Any]] = [
    ("report", {"schema": 1, "preflight": "0", "checks": []}),
    ("dump", {"version": "2.10", "pg_config": {}, "entries": []}),
    ("error_file", {"message": {"message": "RuntimeError: no", "extraInfo": {"py_callstack": ""}}}),
    ("error_file", {"message": "RuntimeError: no"}),
    ("record", {"preflight_record": 1, "rank": 0}),
]


def kinds(*paths: object) -> list[str]:
    return [found.kind for found in find([str(path) for path in paths])[0]]


def reasons(*paths: object) -> list[str]:
    return [found.why for found in find([str(path) for path in paths])[1]]


@pytest.mark.parametrize(("kind", "content"), JSON)
@pytest.mark.parametrize("packed", [False, True])
def test_json_is_known_by_its_keys(tmp_path: Path, kind: str, content: Any, packed: bool) -> None:
    text = json.dumps(content, indent=1).encode()
    (tmp_path / "some").write_bytes(gzip.compress(text) if packed else text)
    assert kinds(tmp_path) == kinds(tmp_path / "some") == [kind]


def test_json_lines_are_a_log_and_other_json_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text('{"log": "one\\n"}\n{"log": "two\\n"}\n')
    (tmp_path / "b.log").write_text('{"message": "one", "level": "info"}\n')
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "torn.log").write_text('{"lr": 0.1')
    assert [(item.shown, item.kind) for item in find([str(tmp_path)])[0]] == [
        ("a.log", "log"),
        ("b.log", "log"),
        ("torn.log", "log"),
    ]
    assert reasons(tmp_path / "config.json") == ["is JSON, but not a report, dump, record or error file"]


def test_a_pickle_is_a_dump_if_it_holds_one(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [], "version": "2.10"}, protocol=2))
    (tmp_path / "other").write_bytes(pickle.dumps([1, 2, 3], protocol=2))
    assert kinds(tmp_path) == ["dump"]
    assert reasons(tmp_path) == []
    assert reasons(tmp_path / "other") == ["is a pickle, but not a flight-recorder dump"]


def test_stacks_are_known_by_their_name(tmp_path: Path) -> None:
    (tmp_path / "rank0.stack").write_text('Thread 0x7f (most recent call first):\n  File "a.py", line 1 in f\n')
    assert kinds(tmp_path) == ["stack"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (gzip.compress(gzip.compress(LOG, mtime=0), mtime=0), "is compressed twice: unpack it first"),
        (bytes(1000), "is binary"),
        (b"\x7fELF" + bytes(range(256)) * 20, "is binary"),
        (gzip.compress(b"\x7fELF" + bytes(1000), mtime=0), "is binary"),
        (b"\x1f\x8b\x08 no gzip at all", "is binary"),
        (b"PK\x03\x04" + bytes(40), "is a ZIP archive: unpack it first"),
        (b"\xfd7zXZ\x00" + bytes(40), "is compressed by xz: unpack it first"),
    ],
)
def test_what_is_no_text_is_told(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "some.log").write_bytes(content)
    assert find([str(tmp_path / "some.log")]) == ([], [Unread(str(tmp_path / "some.log"), why)])


@pytest.mark.parametrize(
    "content",
    [
        LOG,
        gzip.compress(LOG, mtime=0),
        LOG.decode().encode("utf-16"),
        "naïve é\n".encode("latin-1"),
        LOG + b"\0\0" + LOG,
        b"\n",
    ],
)
def test_text_of_any_coding_is_a_log(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "some").write_bytes(content)
    assert kinds(tmp_path / "some") == ["log"]


def test_a_folder_is_walked_in_natural_order_and_only_for_logs(tmp_path: Path) -> None:
    for name in ("attempt_10/0/stderr.log", "attempt_2/0/stderr.log", "attempt_2/0/stdout.log", ".git/x.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(LOG)
    (tmp_path / "attempt_2/1").mkdir()
    (tmp_path / "attempt_2/1/stderr.log").write_bytes(b"")
    for name in (
        "train.py",
        "model.safetensors",
        "a.so.2",
        "events.out.tfevents.17.node-a",
        "facts.jsonl.gz",
        "core.17",
    ):
        (tmp_path / name).write_bytes(LOG)
    found, unread = find([str(tmp_path)])
    assert [finding.shown for finding in found] == [
        "attempt_2/0/stderr.log",
        "attempt_2/0/stdout.log",
        "attempt_10/0/stderr.log",
    ]
    assert [finding.path for finding in found] == [str(tmp_path / finding.shown) for finding in found]
    assert unread == []
    assert kinds(tmp_path / "train.py") == ["log"]  # he named it


def test_links_fifos_and_sockets_are_no_trap(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(LOG)
    (tmp_path / "again.log").symlink_to("a.log")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "self.log").symlink_to("self.log")
    (tmp_path / "gone.log").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "to_pipe.log").symlink_to("pipe.log")
    other = tmp_path.with_name("elsewhere")
    other.mkdir()
    (other / "b.log").write_bytes(LOG)
    (tmp_path / "elsewhere").symlink_to(other)
    assert [item.shown for item in find([str(tmp_path)])[0]] == ["a.log"]
    assert reasons(tmp_path / "pipe.log") == ["is not a regular file"]
    assert len(find([str(tmp_path), str(tmp_path / "a.log")])[0]) == 1


def test_a_folder_of_too_many_files_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MOST_FILES", 3)
    for number in range(5):
        (tmp_path / f"{number}.log").write_bytes(LOG)
    found, unread = find([str(tmp_path)])
    assert len(found) == 3
    assert [item.why.startswith("holds more than 3 files") for item in unread] == [True]


@pytest.mark.parametrize("name", ["fr_trace_20260422_191405.txt", "torchcomms_fr_trace_20260422_191405.txt"])
def test_tables_of_the_debug_server_are_told_as_unread(tmp_path: Path, name: str) -> None:
    title = "TorchComms FR Trace" if name.startswith("torchcomms") else "FR Trace"
    (tmp_path / name).write_text(
        f"=== {title} ===\n--- Groups ---\n  id  desc          size\n   0  default_pg       2\n"
    )
    (tmp_path / "fr_trace_own.txt").write_text("a log of that name\n")
    found, unread = find([str(tmp_path)])
    assert [file.shown for file in found] == ["fr_trace_own.txt"]
    assert [(skipped.shown, skipped.broken) for skipped in unread] == [(name, False)]
    assert unread[0].why.startswith("is a table of torch's debug server")


def test_what_vanishes_while_the_folder_is_walked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_bytes(LOG)
    really = inputs.opened

    def late(path: str) -> int:
        os.unlink(path)
        return really(path)

    monkeypatch.setattr(inputs, "opened", late)
    assert find([str(tmp_path)]) == ([], [Unread("a.log", "cannot be read (No such file or directory)", True)])


def test_a_path_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none"), "", "a\0b"):
        with pytest.raises(UsageError, match=r"No such file|is not a path"):
            find([path])


def test_stdin(tmp_path: Path) -> None:
    assert find(["-"]) == ([Input("-", "stdin", "log")], [])
