"""What to do about a judge() that raised: its author is told how to judge again, anybody else whom to tell."""

import pytest

from preflight.check import Level, Outcome, Plan, Scope
from preflight.core.answer import Returned
from preflight.planning.policy import Policy
from preflight.planning.registry import Source, Spec
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
    (found,) = judging.judged(spec, ended, made.job(1), answer, Policy()).findings
    assert found.message == "judge() raised KeyError: 'free' (disk.py line 9)"
    assert found.fix == f"A fault of the check, not of the machine: {to_do}"
