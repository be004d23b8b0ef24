"""What to do about a judge() that raised: its author is told how to judge again, anybody else whom to tell.
How long a summary may take; and what stands in the place of a plot that cannot be made."""

import time
from pathlib import Path

import pytest

from preflight.check import Level, Outcome, Plan, Scope
from preflight.core.answer import Returned
from preflight.core.facts import FactsStore
from preflight.planning.policy import Policy
from preflight.planning.registry import Source, Spec, plugin_source
from preflight.results import judging
from tests import made

AGAIN = "fix it, then preflight show DIR --judge --plugin {} (DIR is what --report wrote)."
TO_ITS_AUTHOR = "report it to its author with this report's facts."


@pytest.mark.parametrize(
    ("source", "to_do"),
    [
        (Source("plugin.disk", "file", "/home/me/disk.py"), AGAIN.format("/home/me/disk.py")),
        (Source("plugin.disk", "module", "site_checks.disk"), AGAIN.format("site_checks.disk")),
        (Source("site.disk", "entry_point", "site_checks.disk"), TO_ITS_AUTHOR),
        (Source("env.launch", "builtin", "preflight.checks.env.launch"), TO_ITS_AUTHOR),
    ],
)
def test_a_judge_that_raised_is_for_whoever_can_fix_it(source: Source, to_do: str) -> None:
    answer = Returned({"error": "KeyError: 'free' (disk.py line 9)", "stack": ""})
    ended = {0: Outcome("measured")}
    spec = Spec(source, "", Plan(Scope.NODE, Level.QUICK))
    (found,) = judging.result_of(spec, ended, made.job(1), answer, Policy()).findings
    assert found.message == "judge() raised KeyError: 'free' (disk.py line 9)"
    assert found.fix == f"A bug in the check, not a problem of the machine: {to_do}"


def test_a_summary_has_its_time_beside_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first 0.2 s it waits for a core."""
    start = time.monotonic()
    monkeypatch.setattr(judging, "core_wait_s", lambda: min(time.monotonic() - start, 0.2))
    with pytest.raises(TimeoutError, match=r"took more than 0\.1 s"), judging._ended_after(0.1):
        while True:
            pass
    assert time.monotonic() - start >= 0.3


BROKEN_PLOTS = {
    "def plot(facts, run):\n    yield plots.Table('t', (), ())\n    1 / 0\n": "plot() raised ZeroDivisionError",
    "def plot(facts, run):\n    yield 'no plot'\n": "plot() raised AttributeError",
    "def plot(facts, run):\n    yield plots.Table('t', ('a', 'b'), [('1',)], screen='always')\n": "expected 2 items",
    "def plot(facts, run):\n    yield plots.Chart('t', 'x', 'y', [plots.Series('s', [(1.0, 1.0)] * 300_000)])\n":
        "expected at most 2,097,152",
}  # fmt: skip


@pytest.mark.parametrize(("code", "said"), BROKEN_PLOTS.items())
def test_a_plot_that_cannot_be_made_says_so_in_its_place(code: str, said: str, tmp_path: Path) -> None:
    """And costs no finding."""
    path = tmp_path / "drawing.py"
    path.write_text(f'''"""A check."""
from preflight.check import Code, Level, Plan, Scope, plots
PLAN = Plan(Scope.RANK, Level.QUICK)
BAD = Code("It is bad.", fix="Fix it.")
def measure(ctx): return {{}}
def judge(facts, run): yield BAD.warn("it is 1, expected 2", rank=0)
{code}''')
    book = FactsStore()
    book.add("plugin.drawing", [0], "{}")
    source = plugin_source(str(path))
    told = judging.call_judge(source, made.job(1), {0: Outcome("measured")}, book, {})
    assert [finding["message"] for finding in told["findings"]] == ["it is 1, expected 2"]
    [table] = told["plots"]
    assert said in table["title"] and table["rows"] == []


NO_FACTS = """\"\"\"A check.\"\"\"
from preflight.check import Code, Level, Plan, Scope
PLAN = Plan(Scope.RANK, Level.QUICK{})
BAD = Code("It is bad.", fix="Fix it.")
def measure(ctx): return {{}}
def judge(facts, run): yield BAD.warn("it is 1, expected 2")
"""
ABSENT, SKIPPED = Outcome("skipped", slug="not_applicable"), Outcome("skipped")


@pytest.mark.parametrize(
    ("plan", "outcomes", "is_called"),
    [
        ("", {0: SKIPPED}, False),
        (", reads=('gpu.inventory',)", {0: SKIPPED, 1: ABSENT}, True),
        (", reads=('gpu.inventory',)", {0: ABSENT, 1: ABSENT}, False),
        (", judges_failures=True", {0: ABSENT}, True),
    ],
)
def test_without_facts_judge_is_called_where_it_can_know_something(
    plan: str, outcomes: dict[int, Outcome], is_called: bool, tmp_path: Path
) -> None:
    path = tmp_path / "absent.py"
    path.write_text(NO_FACTS.format(plan))
    told = judging.call_judge(plugin_source(str(path)), made.job(2), outcomes, FactsStore(), {})
    assert [finding["message"] for finding in told["findings"]] == ["it is 1, expected 2"] * is_called
