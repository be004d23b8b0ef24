import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.core.answer import Returned
from preflight.core.facts import FactsStore, to_text
from preflight.core.finding import RUN
from preflight.core.outcome import Outcome
from preflight.core.secrets import HIDDEN
from preflight.errors import UsageError
from preflight.planning import registry
from preflight.planning.policy import Policy, Waiver
from preflight.planning.registry import Source, Spec
from preflight.results import judging, rejudge, report_files
from preflight.results.report import Report
from tests import made

JOB = made.job(2, 2)
SLOW = {rank: {"init_s": 40.0, "first_s": 0.0, "total": 10.0} for rank in range(4)} | {
    3: {"init_s": 0.5, "first_s": 0.0, "total": 10.0}
}
"""Rank 3 came 39.5 s after the others."""
SOURCES = registry.sources()


def live(
    by_rank: Mapping[int, object], outcomes: Mapping[int, Outcome] | None = None, slow_s: str | None = None
) -> tuple[Report, FactsStore]:
    """The report and the facts of a run in which ranks measured this for comm.init."""
    book = FactsStore()
    for rank, value in by_rank.items():
        book.add("comm.init", [rank], to_text(value))
    ended = {**{rank: Outcome("measured", 1.0) for rank in by_rank}, **(outcomes or {})}
    check = registry.load(SOURCES["comm.init"])
    answer = Returned(judging.call_judge(check.source, JOB, ended, book, options(slow_s)))
    judged = judging.result_of(Spec(check.source, check.title, check.plan), ended, JOB, answer, Policy())
    return made.made_report(judged, on=JOB, options=options(slow_s)), book


def options(slow_s: str | None) -> dict[str, str]:
    return {} if slow_s is None else {"comm.init.slow_s": slow_s}


def judged_again(
    saved: Report, book: FactsStore, folder: Path, slow_s: str | None = None, sources: Mapping[str, Source] = SOURCES
) -> Report:
    """Through the files, as `preflight show --judge` reads them."""
    report_files.write(str(folder / "report.json"), report_files.as_text(saved))
    report_files.write_facts(str(folder / "facts.jsonl.gz"), saved, book)
    loaded, _ = report_files.load(str(folder))
    return rejudge.judge_again(
        loaded, report_files.read_facts(str(folder / "facts.jsonl.gz")), sources, options(slow_s)
    )


def codes(made_report: Report) -> list[str]:
    return [finding.code for finding in made_report.findings]


def test_the_same_facts_give_the_same_report(tmp_path: Path) -> None:
    saved, book = live(SLOW)
    assert codes(saved) == ["comm.init.late_rank"]
    assert judged_again(saved, book, tmp_path).to_json() == saved.to_json()


def test_another_threshold_changes_the_verdict(tmp_path: Path) -> None:
    saved, book = live(SLOW)
    assert (saved.verdict, saved.exit_code) == ("warn", 0)
    again = judged_again(saved, book, tmp_path, slow_s="60")
    assert (again.verdict, codes(again), again.checks[0].status) == ("pass", [], "pass")
    assert again.options == {"comm.init.slow_s": "60"}


def test_the_runs_own_settings_stand_unless_they_are_changed(tmp_path: Path) -> None:
    saved, book = live(SLOW, slow_s="60")
    assert codes(saved) == []
    assert codes(judged_again(saved, book, tmp_path)) == []
    assert codes(judged_again(saved, book, tmp_path, slow_s="30")) == ["comm.init.late_rank"]


@pytest.mark.parametrize(
    "bad",
    [
        {1: Outcome("crashed", 0.5, reason="ended by SIGSEGV", signal="SIGSEGV")},
        {1: Outcome("timed_out", 8.0, state="T", doing="process group", stack="a stack", log_tail="a log")},
        {2: Outcome("lost", reason="no sign of life for 13 s"), 3: Outcome("lost", reason="SIGTERM", aborted=True)},
        {1: Outcome("raised", reason="ValueError: x"), 2: Outcome("raised", reason="closed", in_collective=True)},
        {1: Outcome("raised", reason="facts is nan", slug="bad_facts")},
        {1: Outcome("skipped", reason="no library"), 2: Outcome("timed_out", 9.0, aborted=True, reason="rank 1")},
    ],
    ids=["crashed", "stopped", "lost", "raised", "bad facts", "skipped"],
)
def test_blame_is_the_same_offline(bad: dict[int, Outcome], tmp_path: Path) -> None:
    sound = {rank: facts for rank, facts in SLOW.items() if rank not in bad}
    saved, book = live(sound, bad)
    assert saved.exit_code != 0
    again = judged_again(saved, book, tmp_path)
    assert list(again.findings) == list(saved.findings)
    assert again.exit_code == saved.exit_code


def test_outcomes_come_back_from_the_report() -> None:
    bad = {1: Outcome("timed_out", 8.0, state="T", doing="x"), 2: Outcome("skipped", 0.5, reason="no library")}
    saved, book = live({0: SLOW[0], 3: SLOW[3]}, bad)
    again = rejudge.outcomes_of(saved.checks[0], book)
    assert {rank: (outcome.kind, outcome.state, outcome.doing, outcome.reason) for rank, outcome in again.items()} == {
        0: ("measured", None, None, None),
        1: ("timed_out", "T", "x", None),
        2: ("skipped", None, None, "no library"),
        3: ("measured", None, None, None),
    }


def test_what_is_no_checks_stays_as_it_was(tmp_path: Path) -> None:
    _, book = live(SLOW)
    lost = made.result(made.finding(code=f"{RUN}.lost", rank=3), check=RUN)
    skipped = made.result(check="plugin.gone", skipped="needs comm.init, which failed")
    saved = made.made_report(lost, skipped)
    again = judged_again(saved, book, tmp_path)
    assert again.to_json() == saved.to_json() and again.exit_code == 1


def test_another_policy_drops_the_waivers_and_severities_of_the_runs_own() -> None:
    found = made.finding(code="site.made.bad", node="node-1")
    own = Policy({"site.made.bad": "warn"}, (Waiver("site.made.bad", "2099-01-01", "ticket 7"),))
    saved = made.made_report(made.result(*own.applied([found], JOB)), on=JOB)
    assert saved.verdict == "pass" and saved.checks[0].findings[0].severity_was == "fail"
    again = rejudge.judge_again(replace(saved, policy=own), FactsStore(), {}, {}, Policy())
    assert list(again.findings) == [found]
    assert (again.verdict, again.exit_code, again.policy.waivers) == ("fail", 1, ())


DRAWN = """from preflight.check import Level, Plan, Scope, option

PLAN = Plan(Scope.NODE, Level.QUICK)
LEAST = option(int, 1, "what is enough")
TOKEN = option(str, "none", "a secret")
def measure(ctx): return {}
def judge(facts, run): return iter(())
def draw(facts, run): return [f"expected {run[LEAST]}", f"token {run[TOKEN]}"]
"""


def drawn_again(options: Mapping[str, str], settings: Mapping[str, str], folder: Path) -> Report:
    (folder / "drawn.py").write_text(DRAWN)
    source = registry.plugin_source(str(folder / "drawn.py"))
    book = FactsStore()
    book.add("plugin.drawn", [0], "{}")
    before = made.result(check="plugin.drawn", outcomes=made.measured(0), picture=["expected 1", "token none"])
    saved = made.made_report(before, on=JOB, options=dict(options))
    return rejudge.judge_again(saved, book, {source.id: source}, settings)


def test_the_picture_is_drawn_anew(tmp_path: Path) -> None:
    again = drawn_again({}, {"plugin.drawn.least": "2"}, tmp_path)
    assert again.checks[0].picture == ["expected 2", "token none"]


def test_a_judge_is_given_no_secret_that_the_report_left_out(tmp_path: Path) -> None:
    """And one that the user gives again is not written into the new report."""
    saved = {"plugin.drawn.token": HIDDEN}
    again = drawn_again(saved, {}, tmp_path)
    assert again.checks[0].picture == ["expected 1", "token none"] and again.options == saved
    given = drawn_again(saved, {"plugin.drawn.token": "hunter-2-4711"}, tmp_path)
    assert given.options == saved and "hunter" not in report_files.as_text(given)
    assert given.checks[0].picture == ["expected 1", "token [removed]"]
    assert rejudge.withheld(again, {}) == ["plugin.drawn.token"]
    assert rejudge.withheld(again, {"plugin.drawn.token": "x"}) == []


def test_strict_stays_strict(tmp_path: Path) -> None:
    saved, book = live(SLOW)
    saved = replace(saved, strict=True)
    assert judged_again(saved, book, tmp_path).exit_code == 1
    assert judged_again(saved, book, tmp_path, slow_s="60").exit_code == 0


def test_a_check_that_is_not_here_is_a_usage_error(tmp_path: Path) -> None:
    saved, book = live(SLOW)
    with pytest.raises(UsageError, match=r"comm\.init: this report's check is not here; name its plugin"):
        judged_again(saved, book, tmp_path, sources={})


def test_facts_that_the_check_does_not_understand_are_an_error(tmp_path: Path) -> None:
    saved, _ = live(SLOW)
    strange: dict[str, Any] = {"an": "older version"}
    _, book = live({0: SLOW[0]})
    book.add_text("x", json.dumps(strange))
    book.note("comm.init", 1, "x")
    again = judged_again(saved, book, tmp_path)
    (found,) = again.findings
    assert (found.severity, found.code) == ("error", "comm.init.raised")
    assert found.message.startswith("judge() raised KeyError: 'total'")
    assert (again.verdict, again.exit_code) == ("error", 3)
