"""Reports and histories that somebody has changed by hand, or a disk has cut off: a sentence, and never a traceback."""

import copy
import gzip
import json
import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from preflight.check import plots
from preflight.cli import main
from preflight.core.outcome import Outcome
from preflight.history import archive
from preflight.results.fields import MalformedReport
from preflight.results.report import Report
from tests import made
from tests.history.made import entry

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 3.7, 1e300, 10**30, "", "x", "9-1", "0-999999999", "\ud800", "2026-99-99T99:99:99Z", [], [[]],
    {}, {"a": 1},
)  # fmt: skip
HERE = Path("changed.json"), Path("sound.json")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("nodes", "changed.json"), ("nodes", "--bad", "--format", "actions", "changed.json"), ("show", "changed.json"),
    ("show", "--html", "page.html", "changed.json"), ("diff", "changed.json", "sound.json"),
    ("diff", "--json", "-", "sound.json", "changed.json"), ("profile", "changed.json"),
)  # fmt: skip


def _report() -> dict[str, Any]:
    """As JSON."""
    strips = plots.Strips("of each", [("node-0", "rank 0")], [plots.Strip("time", "ms", [1.0], [0])])
    found = made.result(
        made.finding("fail", node="node-1", action="reboot", noticed_by="0-1", evidence={"a": [1, {"b": None}]}),
        made.finding("warn", rank=2), outcomes={**made.measured(0, 1), 2: Outcome("timed_out", 3.0, stack="at 7")},
    )  # fmt: skip
    whole = made.made_report(found, made.result(check="env.made"), on=made.job(2, 2), options={"plugin.made.a": "1"})
    data: dict[str, Any] = json.loads(json.dumps(whole.to_json()))
    data["checks"][0]["plots"] = [json.loads(json.dumps(strips.to_json()))]
    return data


def _places(value: Any, of: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*of, key)
            yield from _places(member, (*of, key))


def _changed(whole: dict[str, Any], choose: random.Random) -> str:
    """Its text, with another value in one place, without a value, or cut off."""
    text = json.dumps(whole)
    if choose.random() < 0.05:
        return text[: choose.randrange(len(text))]
    changed = copy.deepcopy(whole)
    *way, last = choose.choice([*_places(changed)])
    within: Any = changed
    for key in way:
        within = within[key]
    if choose.random() < 0.2:
        del within[last]
    else:
        within[last] = choose.choice(ODD)
    return json.dumps(changed)


def _ends_well(words: tuple[str, ...], told: Callable[[], Any], of: str) -> None:
    with pytest.raises(SystemExit) as end:
        main.main([*words])
    screen = told()
    assert end.value.code in (0, 1, 2) or (words[0] == "show" and end.value.code == 3), (of, words, screen)
    assert "Traceback" not in screen.err and "a fault of preflight" not in screen.err, (of, words, screen.err)
    if end.value.code == 2 and words[0] != "show":
        assert len(screen.err.splitlines()) == 1 and screen.err.startswith("preflight: "), (of, screen.err)


@pytest.mark.parametrize("seed", range(20))
def test_a_changed_report_ends_in_a_sentence(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, choose = _report(), random.Random(seed)
    HERE[1].write_text(json.dumps(whole))
    for number in range(10):
        text = _changed(whole, choose)
        HERE[0].write_text(text)
        _ends_well(COMMANDS[number % len(COMMANDS)], capsys.readouterr, text)


def _flaw(data: Any) -> str:
    try:
        Report.from_json(data)
    except MalformedReport as flaw:
        return str(flaw)
    return ""


MORE_THAN_THE_SCHEMA = re.compile("|".join((
    "expected ranges of at most", "expected at most 1,000,001", "expected a time$", "expected ranks that no other",
    "expected number or string$",
    r"is 1e\+300, expected integer", r"plots\[", r"where\.", "skipped is null",
    r"outcomes\[\d+\]\.(slug|in_collective|aborted|cut_short|own_fault|collective\.)",
    r"recorded\[\d+\]\.(lately|sending)", r"\.sizes\[", r"\.facts\[",
)))  # fmt: skip
"""What a schema cannot say, or says of no member: readers need it all the same."""


def test_the_schema_is_kept_as_the_package_for_it_reads_it() -> None:
    whole, choose = json.loads(json.dumps(made.full_report().to_json())), random.Random(7)
    assert _flaw(whole) == ""
    jsonschema.Draft202012Validator.check_schema(made.SCHEMA)
    counted = whole["checks"][0]["plots"][-1]["strips"][0]
    counted["counts"] = counted["counts"][:1] + counted["counts"][-1:]  # most changes would be of these
    checker = jsonschema.Draft202012Validator(made.SCHEMA)
    wrong = 0
    for _ in range(2000):
        try:
            changed = json.loads(_changed(whole, choose))
        except ValueError:
            continue
        flaw, is_valid = _flaw(changed), checker.is_valid(changed)
        assert flaw if not is_valid else not flaw or MORE_THAN_THE_SCHEMA.search(flaw), (flaw, is_valid)
        wrong += not is_valid
    assert wrong > 500


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("checks", 0, "findings", 0, "action"), "explode", 'action is "explode", expected one of none, fix_config, '),
        (("job", "nodes", 1, "ranks"), "a", 'job.nodes[1].ranks is "a", expected what ^'),
        (("checks", 0, "summary"), 7, "checks[0].summary is 7, expected string"),
        (("exit_code",), True, "exit_code is true, expected one of 0, 1, 2, 3"),
        (("seconds",), -1, "seconds is -1, expected 0 or more"),
    ],
)
def test_a_flaw_is_told_with_its_place(place: tuple[Any, ...], value: Any, says: str) -> None:
    changed: Any = _report()
    within = changed
    for key in place[:-1]:
        within = within[key]
    within[place[-1]] = value
    assert says in _flaw(changed)
    del within[place[-1]]
    missing = _flaw(changed)
    assert missing.endswith(f"{place[-1]} is not there") or (not missing and place[-1] == "action")


# Histories


COLUMNS = "run.started", "run.verdict", "unit.name", "finding.code", "figure.value", "series.name", "part.node"


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("value", [None, "x", -1e12, 9e99, b"\xff"])
def test_a_changed_history_ends_in_a_sentence(
    column: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        archive.write("runs", entry(number, busbw=400.0 - 90 * (number > 1)), 1e6)
    table, _, name = column.partition(".")
    with sqlite3.connect("runs") as database:
        database.execute(f"UPDATE OR IGNORE {table} SET {name} = ?", (value,))
    for words in (("history", "runs"), ("history", "--json", "-", "--html", "page.html", "runs")):
        _ends_well(words, capsys.readouterr, column)


def test_a_half_written_run_is_left_out_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "runs"
    folder.mkdir()
    for number in range(3):
        archive.write(str(folder), entry(number), 1e6)
    first, second, _ = sorted(folder.iterdir())
    first.write_bytes(first.read_bytes()[:-40])
    odd = {**entry(1).to_json(), "figures": [["a", "b", "c", {"value": "x"}]]}
    second.write_bytes(gzip.compress(json.dumps(odd).encode()))
    with archive.reading(str(folder)) as database:
        assert [*database.execute("SELECT count(*) FROM run")] == [(1,)]
        assert [*database.execute("SELECT DISTINCT run FROM part")] == [*database.execute("SELECT id FROM run")]


# Pages to stdout


@pytest.mark.parametrize("words", [("show", "sound.json"), ("diff", "sound.json", "sound.json"), ("history", "runs")])
def test_a_page_is_not_written_into_a_file_called_dash(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    HERE[1].write_text(json.dumps(_report()))
    archive.write("runs", entry(1), 1e6)
    with pytest.raises(SystemExit) as end:
        main.main([*words, "--html", "-"])
    assert end.value.code == 2 and not Path("-").exists()
    assert capsys.readouterr().err == "preflight: --html -: it goes into a file, and not to stdout: name one\n"
