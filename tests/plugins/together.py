"""All ranks reduce twice; between the two the culprit does its deed."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import deeds
import torch
from torch import distributed as dist

from preflight.check import Context, Finding, Level, Plan, Run, Scope, Skip, option

PLAN = Plan(Scope.WORLD, Level.STANDARD, deadline_s=float(os.environ.get("TEST_CHECK_DEADLINE_S", "8")))
DEED = option(str, "", "what the culprit does")
BY = option(int, 1, "the culprit's rank")


def measure(ctx: Context) -> Any:
    return _measure(ctx, ctx[DEED], ctx[BY])


def measuring(deed: str) -> Callable[[Context], Any]:
    """Of a check that does always this, on rank 1: several of them make one run."""
    return lambda ctx: _measure(ctx, deed, 1)


def _measure(ctx: Context, deed: str, by: int) -> Any:
    group = ctx.process_group()
    culprit = ctx.rank == by
    reduce(ctx, group, 4)
    if culprit and deed == "skip":
        raise Skip("this rank has no such library")
    if culprit and deed == "other_collective":
        with ctx.collective("barrier"):
            dist.barrier(group=group)
    facts = deeds.do(deed if culprit and deed not in ("other_collective", "late") else "")
    reduce(ctx, group, 4)
    return facts


def reduce(ctx: Context, group: Any, elements: int) -> None:
    with ctx.collective("all_reduce", f"{elements} elements"):
        dist.all_reduce(torch.ones(elements), group=group)


def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    return iter(())
