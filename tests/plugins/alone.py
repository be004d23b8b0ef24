"""Each rank alone; the culprit does its deed."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import deeds

from preflight.check import Context, Finding, Level, Plan, Run, Scope, option

PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=float(os.environ.get("TEST_CHECK_DEADLINE_S", "3")))
DEED = option(str, "", "what the culprit does in measure()")
BY = option(int, 1, "the culprit's rank")
JUDGE = option(str, "", "what judge() does")


def measure(ctx: Context) -> Any:
    ctx.doing("the deed", step=3)
    return deeds.do(ctx[DEED] if ctx.rank == ctx[BY] else "")


def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    deeds.do(run[JUDGE])
    return iter(())
