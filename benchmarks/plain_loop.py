"""A plugin: comm.all_reduce's own timing and a plain loop, in turn, in one process group."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import distributed as dist

from preflight.check import Context, Finding, Level, Plan, Run, Scope
from preflight.checks.comm import all_reduce

PLAN = Plan(Scope.WORLD, Level.STANDARD, deadline_s=120)
MIB = 1024 * 1024
TIMES, REPEATS = 16, 20


def measure(ctx: Context) -> Any:
    group = ctx.process_group()
    return {name: _ratio(ctx, group, size) for name, size in (("16 MiB", 16 * MIB), ("64 MiB", 64 * MIB))}


def _ratio(ctx: Context, group: Any, size: int) -> float:
    """Of the fastest of TIMES turns each: what else the machine does only makes a turn slower."""
    checked, plain = [], []
    for turn in range(TIMES):  # each comes first in every second turn
        if turn % 2:
            plain.append(_plain(group, size))
        checked.append(all_reduce._one_size(ctx, group, size, REPEATS)["seconds"])
        if not turn % 2:
            plain.append(_plain(group, size))
    return min(checked) / min(plain)


def _plain(group: Any, size: int) -> float:
    """Seconds of one all-reduce, as anybody would write it."""
    values = torch.zeros(size // 4)
    for _ in range(all_reduce.WARM_UP):
        dist.all_reduce(values, group=group)
    start = time.perf_counter()
    for _ in range(REPEATS):
        dist.all_reduce(values, group=group)
    return (time.perf_counter() - start) / REPEATS


def judge(_facts: Mapping[int, Any], _run: Run) -> Iterator[Finding]:
    return iter(())
