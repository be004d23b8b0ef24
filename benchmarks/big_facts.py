"""A plugin: 30 KB of facts, other on every rank."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from preflight.check import Code, Context, Finding, Level, Plan, Run, Scope

PLAN = Plan(Scope.RANK, Level.QUICK, deadline_s=300)
SLOW = Code("One rank is slower than the median of all.", fix="Look at it.")


def facts_of(rank: int) -> dict[str, Any]:
    draw = random.Random(rank)
    return {"rank": rank, "values": [round(draw.random(), 12) for _ in range(1950)]}


def measure(ctx: Context) -> Any:
    return facts_of(ctx.rank)


def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    """Every fact of every rank is looked at; every second rank gets a finding of its own, which is the worst."""
    for rank, one in facts.items():
        if rank % 2 and sum(one["values"]) >= 0:
            yield SLOW.warn(f"took {one['values'][0]:.3f} s, expected 0.5 s", **run.job.where(rank))
