"""Says that it takes a day."""

from collections.abc import Iterator, Mapping
from typing import Any

from preflight.check import Context, Finding, Level, Plan, Run, Scope

PLAN = Plan(Scope.RANK, Level.QUICK, estimate_s=86400)


def measure(ctx: Context) -> Any:
    return {}


def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    return iter(())
