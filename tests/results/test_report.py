import base64
import gzip
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from preflight.core import facts
from preflight.core.facts import FactsStore
from preflight.core.finding import Reported
from preflight.core.outcome import Outcome
from preflight.core.secrets import Scrubber
from preflight.errors import UsageError
from preflight.results import report, report_files
from preflight.results.cleaning import without_secrets
from preflight.results.report import RankFacts, Report
from preflight.results.report_nodes import bad_nodes, good_nodes
from tests import made

FAILED = made.result(made.finding(node="node-1", rank=3))


def book_of(
    by_rank: dict[int, dict[str, Any]], check: str = "plugin.made", book: FactsStore | None = None
) -> FactsStore:
    filled = book or FactsStore()
    for rank, value in by_rank.items():
        filled.add(check, [rank], facts.to_text(value))
    return filled


# Writing


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report_files.write(str(path), "old")
    report_files.write(str(path), "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_at_the_target_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim, target = tmp_path / "victim", tmp_path / "report.json"
    victim.write_text("mine")
    target.symlink_to(victim)
    report_files.write(str(target), "report")
    assert victim.read_text() == "mine"
    assert target.read_text() == "report" and not target.is_symlink()


def test_a_device_is_not_replaced_nor_a_link_to_it(tmp_path: Path) -> None:
    """A FIFO, since only root makes devices; /dev/stdout is a link to what may be one."""
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    for path in (fifo, link):
        with pytest.raises(UsageError, match=r"--html .*cannot be written .*is not a regular file"):
            report_files.write_asked("--html", str(path), "page")
        with pytest.raises(UsageError, match="is not a regular file"):
            report_files.prepare(str(path), None, before=0.0)
    assert stat.S_ISFIFO(fifo.stat().st_mode) and link.is_symlink() and len(list(tmp_path.iterdir())) == 2


def test_a_link_at_the_temporary_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    victim, target = tmp_path / "victim", tmp_path / "report.json"
    victim.write_text("mine")
    Path(f"{target}.guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        report_files.write(str(target), "report")
    assert victim.read_text() == "mine"
    assert not target.exists()


def test_two_writers_use_two_temporary_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    real = os.replace

    def replace(old: str, new: str) -> None:
        names.append(old)
        real(old, new)

    monkeypatch.setattr(os, "replace", replace)
    for _ in range(2):
        report_files.write(str(tmp_path / "report.json"), "report")
    assert len(set(names)) == 2


def test_a_file_is_private_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("earlier")
    with report_files.replacing(str(path)) as file:
        file.write(b"half")
        (temporary,) = set(tmp_path.iterdir()) - {path}
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        assert path.read_text() == "earlier"
    assert path.read_text() == "half"


def test_a_writer_that_raises_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("earlier")
    with pytest.raises(ZeroDivisionError), report_files.replacing(str(path)) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_mode_in_the_end_is_the_users(umask: int, mode: int, tmp_path: Path) -> None:
    held = os.umask(umask)
    try:
        report_files.write(str(tmp_path / "report.json"), "report")
        assert os.umask(umask) == umask
    finally:
        os.umask(held)
    assert stat.S_IMODE((tmp_path / "report.json").stat().st_mode) == mode


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()
    with pytest.raises(OSError):
        report_files.write(str(tmp_path / "report.json"), "report")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_text_that_is_no_utf_8_is_written_all_the_same(tmp_path: Path) -> None:
    report_files.write(str(tmp_path / "log"), "a\ud800b")
    assert (tmp_path / "log").read_text() == "a?b"


@pytest.mark.parametrize(
    ("json_path", "folder", "says"),
    [
        ("gone/report.json", None, "--json gone/report.json: cannot be written (No such file or directory)"),
        ("taken", None, "--json taken: taken exists and is not a regular file"),
        (None, "file/below", "--report file/below: cannot be written (Not a directory)"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_the_run(
    json_path: str | None, folder: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").mkdir()
    Path("file").write_text("")
    with pytest.raises(UsageError) as error:
        report_files.prepare(json_path, folder, before=0.0)
    assert str(error.value) == says


def test_preparing_leaves_an_earlier_report_alone(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("earlier")
    report_files.prepare(str(target), None, before=0.0)
    report_files.prepare("-", None, before=0.0)
    assert target.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [target]


# Bad nodes


@pytest.mark.parametrize(
    ("finding", "nodes"),
    [
        (made.finding(node="node-1", rank=3), ["node-1"]),
        (made.finding(node="node-0"), ["node-0"]),
        (made.finding("error", node="node-0"), []),
        (made.finding("warn", node="node-0"), []),
        (made.finding(), []),
        (made.finding(peer_node="node-0", node="node-1"), ["node-1"]),
        (replace(made.finding(), ranks="0-3", nodes=["node-0", "node-1"]), ["node-0", "node-1"]),
    ],
    ids=["rank", "node", "error", "warning", "no culprit", "peer", "merged"],
)
def test_bad_nodes_are_those_that_a_failure_names(finding: Reported, nodes: list[str]) -> None:
    assert bad_nodes(made.made_report(made.result(finding))) == nodes


# The folder


def test_the_folder_holds_all_readers(tmp_path: Path) -> None:
    outcomes = {
        **made.measured(0, 1, 2),
        3: Outcome("crashed", reason="ended by SIGSEGV", stack="the stack", log_tail="the log"),
    }
    made_report = made.made_report(made.result(made.finding(node="node-1", rank=3), outcomes=outcomes))
    readers = {"report.md": lambda loaded: f"verdict {loaded.verdict}"}
    report_files.write_folder(str(tmp_path / "out"), made_report, book_of({0: {"a": 1}}), readers)
    written = {
        str(path.relative_to(tmp_path / "out")): path for path in (tmp_path / "out").rglob("*") if path.is_file()
    }
    assert set(written) == {
        "report.json", "facts.jsonl.gz", "report.md", "good_nodes.txt", "bad_nodes.txt", "logs/plugin.made.rank-3.log",
    }  # fmt: skip
    assert json.loads(written["report.json"].read_text()) == made_report.to_json()
    assert written["report.md"].read_text() == "verdict fail"
    assert written["good_nodes.txt"].read_text() == "node-0\n"
    assert written["bad_nodes.txt"].read_text() == "node-1\n"
    assert written["logs/plugin.made.rank-3.log"].read_text() == "the stack\nthe log"


def test_a_stack_that_is_evidence_stands_in_the_logs(tmp_path: Path) -> None:
    told = made.result(replace(made.finding(), evidence={"stack": "Traceback: in the user's code"}), made.finding())
    report_files.write_folder(str(tmp_path), made.made_report(told), FactsStore(), {})
    (written,) = (tmp_path / "logs").iterdir()
    assert (written.name, written.read_text()) == ("plugin.made.bad.0.stack.log", "Traceback: in the user's code")


def test_what_checks_attach_is_written_and_only_where_it_is_a_file(tmp_path: Path) -> None:
    book = book_of({
        0: {"attached": {"../trace.json.gz": base64.b64encode(b"the trace").decode(), "no_base64": "x", "none": 1}},
        1: {"attached": {}}, 2: {"attached": "a text"}, 3: {"attached": ["a list"]},
    })  # fmt: skip
    report_files.write_folder(str(tmp_path / "out"), made.made_report(made.result()), book, {})
    (written,) = (tmp_path / "out" / "attached").iterdir()
    assert (written.name, written.read_bytes()) == ("plugin.made.rank-0.trace.json.gz", b"the trace")


def test_nodes_without_a_fault_are_good(tmp_path: Path) -> None:
    report_files.write_folder(str(tmp_path), made.made_report(made.result()), FactsStore(), {})
    assert (tmp_path / "good_nodes.txt").read_text() == "node-0\nnode-1\n"
    assert (tmp_path / "bad_nodes.txt").read_text() == ""


# Facts


def test_facts_come_back_from_their_file(tmp_path: Path) -> None:
    by_rank: dict[int, dict[str, Any]] = {0: {"a": 1}, 1: {"a": 1}, 2: {"a": 2.5}, 5: {"a": 1}}
    book = book_of({0: {"b": "日本"}}, "plugin.other", book_of(by_rank))
    path = tmp_path / "facts.jsonl.gz"
    report_files.write_facts(str(path), made.made_report(made.result(facts_version=4)), book)
    again = report_files.read_facts(str(path))
    assert again.of("plugin.made") == by_rank
    assert again.of("plugin.other") == {0: {"b": "日本"}}
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert lines[0] == {"check": "plugin.made", "facts_version": 4, "ranks": "0-1,5", "facts": {"a": 1}}
    assert len(lines) == 3


def test_equal_facts_make_equal_files_at_any_time(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.gz", "other.gz")]
    for path in paths:
        report_files.write_facts(str(path), made.made_report(made.result()), book_of({0: {"a": 1}}))
    first, other = (path.read_bytes() for path in paths)
    assert first == other
    assert first[4:8] == bytes(4)  # gzip's time of writing (RFC 1952)


BROKEN = {
    "empty": b"",
    "no gzip": b"no gzip",
    "cut": gzip.compress(b"{")[:-4],
    "no JSON": gzip.compress(b"no JSON\n"),
    "a list": gzip.compress(b"[1]\n"),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_broken_facts_file_is_an_error(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl.gz"
    path.write_bytes(data)
    if not data:
        assert report_files.read_facts(str(path)).checks() == []
        return
    with pytest.raises(UsageError, match="cannot be read"):
        report_files.read_facts(str(path))


def test_facts_may_stand_in_the_report() -> None:
    made_report = made.made_report(made.result(), made.result(check="plugin.other"))
    whole = report_files.with_facts(made_report, book_of({0: {"a": 1}, 1: {"a": 1}}))
    assert whole.checks[0].facts == [RankFacts("0-1", {"a": 1})]
    assert whole.checks[1].facts == []
    assert made_report.checks[0].facts is None


# Loading


def test_a_report_is_loaded_by_its_file_or_its_folder(tmp_path: Path) -> None:
    made_report = made.made_report(FAILED)
    path = tmp_path / "report.json"
    report_files.write(str(path), report_files.as_text(made_report))
    for place in (path, tmp_path):
        loaded, where = report_files.load(str(place))
        assert (loaded.to_json(), where) == (made_report.to_json(), str(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("", "cannot be read as JSON"),
        ("{", "cannot be read as JSON"),
        ("\udcff", "cannot be read as JSON"),
        ('{"seconds": -1e999}', "cannot be read as JSON (-1e999 is too large for a float)"),
        ('{"seconds": NaN}', "cannot be read as JSON (NaN is too large for a float)"),
        (f'{{"rank": {"9" * 400}}}', "cannot be read as JSON (999999999999... is too large for a float)"),
        (f'{{"rank": {"9" * 5000}}}', "cannot be read as JSON (999999999999... is too large for a float)"),
        ("[]", "is not a preflight report of schema 1 (schema: None)"),
        ("{}", "is not a preflight report of schema 1 (schema: None)"),
        ('{"schema": 2, "checks": []}', "is not a preflight report of schema 1 (schema: 2)"),
        ('{"schema": 1}', "is not a preflight report of schema 1 (schema: 1)"),
    ],
)
def test_what_is_no_report_is_a_usage_error(text: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text, errors="surrogateescape")
    with pytest.raises(UsageError) as error:
        report_files.load(str(path))
    assert str(error.value).startswith(f"{path}: {says}")


def test_a_report_of_a_newer_preflight_may_have_more_fields(tmp_path: Path) -> None:
    newer = {**made.made_report(FAILED).to_json(), "weather": "fine"}
    (tmp_path / "report.json").write_text(json.dumps(newer))
    assert report_files.load(str(tmp_path))[0].to_json() == made.made_report(FAILED).to_json()


# The whole


def test_a_report_knows_verdict_exit_code_and_version() -> None:
    made_report = made.made_report(made.result(made.finding("warn")), strict=True)
    assert (made_report.verdict, made_report.exit_code) == ("warn", 1)
    assert made_report.to_json()["schema"] == report.SCHEMA
    assert made_report.seconds == 1.25


def test_nan_never_gets_into_a_report() -> None:
    broken = made.made_report(made.result(made.finding(evidence={"a": float("nan")})))
    with pytest.raises(ValueError):
        report_files.as_text(broken)


FULL = made.full_report()
NOT_IN_THE_SCHEMA = {
    "outcomes": {"slug", "in_collective", "aborted", "cut_short", "own_fault"}, "recorded": {"lately", "sending"},
}  # fmt: skip
"""What `preflight show --judge` needs of an outcome, and no other reader should."""


def members(schema: Mapping[str, Any], value: Any, name: str) -> Iterator[tuple[str, str]]:
    """(object, member) of each that only one of them knows: the schema, or the report."""
    while "$ref" in schema:
        schema = made.SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, list) and "items" in schema:
        for item in value:
            yield from members(schema["items"], item, name)
    elif isinstance(value, dict) and name != "plots" and "properties" in schema:
        apart = schema["properties"].keys() ^ value.keys()
        yield from ((name, member) for member in apart - NOT_IN_THE_SCHEMA.get(name, set()))
        for member in value.keys() & schema["properties"].keys():
            yield from members(schema["properties"][member], value[member], member)


def test_report_and_schema_have_the_same_fields() -> None:
    data = json.loads(report_files.as_text(FULL))
    jsonschema.validate(data, made.SCHEMA)
    assert set(members(made.SCHEMA, data, "report")) == set()
    without = {**data, "checks": [{name: value for name, value in data["checks"][0].items() if name != "began_s"}]}
    assert set(members(made.SCHEMA, {**without, "weather": 1}, "report")) == {
        ("report", "weather"),
        ("checks", "began_s"),
    }


def test_a_report_that_is_read_is_the_one_that_was_written() -> None:
    data = FULL.to_json()
    assert Report.from_json(json.loads(report_files.as_text(FULL))).to_json() == json.loads(json.dumps(data))
    assert all(getattr(FULL.checks[0], name) for name in vars(FULL.checks[0])), "each field is tried"


# Which nodes a job may use

TWO_NODES = made.job(2, 2)


def nodes_of(*found: Reported) -> tuple[list[str], list[str]]:
    loaded = made.made_report(made.result(*found), on=TWO_NODES)
    return good_nodes(loaded), bad_nodes(loaded)


def test_a_rank_alone_names_its_node() -> None:
    names = [node.node for node in TWO_NODES.nodes]
    assert nodes_of(made.finding(rank=3)) == ([names[0]], [names[1]])


def test_a_failure_that_names_no_node_leaves_none_good() -> None:
    assert nodes_of(made.finding()) == ([], [])


def test_an_error_leaves_its_node_out_and_calls_it_not_bad() -> None:
    names = [node.node for node in TWO_NODES.nodes]
    assert nodes_of(made.finding("error", node=names[0])) == ([names[1]], [])


def test_a_rank_that_never_came_has_no_node_to_leave_out() -> None:
    names = [node.node for node in TWO_NODES.nodes]
    assert nodes_of(made.finding(rank=17)) == (names, [])


def test_an_earlier_report_is_removed_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    old = ("report.json", "good_nodes.txt", "report.rank-1.json", "logs/comm.init.rank-1.log")
    for name in (*old, "mine.txt"):
        (tmp_path / name).write_text("old")
    report_files.prepare(None, str(tmp_path), before=(tmp_path / "report.json").stat().st_mtime + 1)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["mine.txt"]


def test_a_pipe_is_not_replaced_by_a_report(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        report_files.prepare(str(tmp_path / "pipe"), None, before=0.0)
    with pytest.raises(UsageError, match="not a regular file"):
        report_files.load(str(tmp_path / "pipe"))
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_secret_equal_to_a_field_or_a_node_does_not_break_the_report() -> None:
    node = TWO_NODES.nodes[0].node
    scrub = Scrubber({"DB_PASSWORD": "checks", "NODE_KEY": node, "A_TOKEN": "hidden-1"})
    found = made.finding(message="it said hidden-1", node=node)
    clean = without_secrets(made.made_report(made.result(found), on=TWO_NODES), scrub)
    assert "hidden-1" not in report_files.as_text(clean)
    assert bad_nodes(clean) == [node]


def test_nodes_of_a_merged_finding_are_bad(tmp_path: Path) -> None:
    job = made.job(*[1] * 200)
    found = [made.finding(node=node.node) for node in job.nodes[1:]]
    whole = made.made_report(made.result(*found), on=job)
    assert [len(check.findings) for check in whole.checks] == [1], "more than 100 equal ones are one"
    assert good_nodes(whole) == ["node-0"] and len(bad_nodes(whole)) == 199
