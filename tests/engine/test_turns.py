"""The order of a run's checks where one of them has failed."""

from typing import Any

import pytest

from preflight.check import After, Level, Plan, Scope
from preflight.core.outcome import Outcome
from preflight.engine.turns import AROUND_S, Turns
from preflight.planning.registry import Source, Spec
from preflight.results.result import Result

pytestmark = pytest.mark.fast
WHEN_BAD = {"a": After.WHEN_BAD, "b": After.WHEN_BAD}
EXPLAINS: dict[str, Any] = {"after": WHEN_BAD, "estimate_s": 40.0}


def specs(**plans: dict[str, Any]) -> dict[str, Spec]:
    """By letter, in this order."""
    return {
        id_: Spec(Source(id_, "builtin", id_), "", Plan(Scope.WORLD, Level.STANDARD, **more))
        for id_, more in plans.items()
    }


def ran(planned: dict[str, Spec], **kinds: str) -> list[str]:
    """The order of the checks that are called for; `kinds`: of the outcomes of those that do not measure."""
    results: list[Result] = []
    turns = Turns(planned, results)
    for spec in turns:
        if turns.is_called_for(spec):
            outcome = Outcome(kinds.get(spec.id, "measured"), 1.0)
            results += [Result(spec.id, "", 1, outcomes={0: outcome})]
    return [result.check for result in results]


def test_what_explains_a_failure_comes_at_once() -> None:
    planned = specs(a={}, b={}, c={}, x=EXPLAINS)
    assert ran(planned) == ["a", "b", "c"]
    assert ran(planned, a="timed_out") == ["a", "x", "b", "c"]
    assert ran(planned, b="crashed") == ["a", "b", "x", "c"]
    assert ran(planned, c="timed_out") == ["a", "b", "c"]


def test_new_workers_come_first_since_a_way_that_hangs_hangs_again() -> None:
    planned = specs(a={}, near={"after": WHEN_BAD}, x={**EXPLAINS, "fresh": True})
    assert ran(planned, a="timed_out") == ["a", "x", "near"]


def test_but_not_before_what_it_needs() -> None:
    planned = specs(a={}, c={}, x={"after": {**WHEN_BAD, "c": After.NEEDS}})
    assert ran(planned, a="timed_out") == ["a", "c", "x"]


def test_time_is_kept_for_it_up_to_a_half() -> None:
    planned = specs(a={}, c={}, x=EXPLAINS)
    turns = Turns(planned, [])
    next(iter(turns))
    assert turns.share_s(planned["a"], 100.0) == 60.0 - AROUND_S
    assert turns.share_s(planned["a"], 50.0) == 25.0
    assert turns.share_s(planned["c"], 50.0) == 50.0
