"""What it is about exists on the ranks of TEST_HERE only; "facts": on none, but there is something to tell."""

from collections.abc import Iterator, Mapping
from typing import Any

from preflight.check import Code, Context, Finding, Level, NotApplicable, Plan, Run, Scope

PLAN = Plan(Scope.RANK, Level.QUICK)
FOUND = Code("Something is left.", fix="Take it away.")


def measure(ctx: Context) -> Any:
    here = ctx.environ.get("TEST_HERE", "")
    if str(ctx.rank) not in here.split(","):
        raise NotApplicable("there is no such thing here", {"left": ctx.rank} if here == "facts" else None)
    return {}


def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    if {"left": 1} in facts.values():
        yield FOUND.fail("1 thing is left, expected none")
