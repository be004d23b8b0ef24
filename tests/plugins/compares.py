"""Records its speed, which is compared with an earlier run's, and works in parts: the last rank alone, the others
together."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import distributed as dist

from preflight.check import Code, Context, Figure, Finding, Job, Level, Plan, Run, Scope, option

PLAN = Plan(Scope.WORLD, Level.STANDARD, deadline_s=20)
SPEED = option(int, 1, "what is measured")
BASELINE_SHARE = option(float, 0.0, "the least share of the earlier speed")
SLOWER_THAN_BASELINE = Code("Slower than before.", fix="Look.")


CUTS = (((0,), (1, 2)), ((0, 1), (2,)), ((0,), (1,), (2,)), ((0, 1, 2),))
"""Of three ranks: before the last one rank 1 has made more parts than the others."""


def measure(ctx: Context) -> Any:
    for cut in CUTS if len(ctx.members) == 3 else ():
        ctx.part(next(part for part in cut if ctx.rank in part))
    mine = ctx.members[-1:] if ctx.rank == ctx.members[-1] else ctx.members[:-1]
    totals = []
    for _ in range(2):
        value = torch.tensor([ctx.rank * 10 + 1.0])
        with ctx.collective("all_reduce", "1 element"):
            dist.all_reduce(value, group=ctx.part(mine))
        totals.append(value.item())
    return {"speed": ctx[SPEED], "totals": totals}


def judge(_facts: Mapping[int, Any], _run: Run) -> Iterator[Finding]:
    yield from ()


def record(reading: Any, _job: Job) -> Iterator[Figure]:
    yield Figure("speed", reading["speed"], "GB/s", least=0.8)


def summarize(facts: Mapping[int, Any], run: Run) -> str:
    totals = [of_rank["totals"] for of_rank in facts.values()]
    return f"{[f'{figure.value:g} {figure.unit}' for figure in run.earlier]} before; {totals}"
