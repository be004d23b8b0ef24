"""Each rank alone; the culprit does its deed."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import deeds

from preflight.check import Context, Finding, Level, Plan, Run, Scope, option

PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=float(os.environ.get("TEST_CHECK_DEADLINE_S", "3")))
DEED = option(str, "", "what the culprit does in measure()")
BY = option(int, 1, "the culprit's rank")
JUDGE = option(str, "", "what judge() does")


def measure(ctx: Context) -> Any:
    ctx.doing("the deed", step=3)
    own = os.environ.get("TEST_DEED", "")  # where several ranks do something, each another deed
    return deeds.do(ctx[DEED] if ctx.rank == ctx[BY] and not own else own)


def measuring(kind: str) -> Callable[[Context], Any]:
    """Of a check that does what the rank's environment says for this kind: several of them make one run."""

    def measure(ctx: Context) -> Any:
        ctx.doing("the deed", step=3)
        return deeds.do(os.environ.get(f"TEST_DEED_{kind.upper()}", ""))

    return measure


def judging(deed: str) -> Callable[[Mapping[int, Any], Run], Iterator[Finding]]:
    """Of a check that does always this: several of them make one run."""

    def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
        deeds.do(deed)
        return iter(())

    return judge


def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    deeds.do(run[JUDGE])
    return iter(())
