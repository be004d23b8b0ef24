"""A plugin: comm.all_reduce's own timing and a plain loop, in turn, in one process group."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import distributed as dist

from preflight.check import Context, Finding, Level, Plan, Run, Scope
from preflight.checks.comm.shared.operations import OPERATIONS
from preflight.checks.comm.shared.sweep import Sweep
from preflight.checks.comm.shared.timing import Pace

PLAN = Plan(Scope.WORLD, Level.STANDARD, deadline_s=120)
MIB = 1024 * 1024
TIMES, WARM_UP = 24, 2


def measure(ctx: Context) -> Any:
    sweep = Sweep(ctx, OPERATIONS["all_reduce"])
    return {name: _ratio(sweep, size) for name, size in (("16 MiB", 16 * MIB), ("64 MiB", 64 * MIB))}


def _ratio(sweep: Sweep, size: int) -> float:
    """Of the fastest of TIMES turns each: what else the machine does only makes a turn slower."""
    checked: list[float] = []
    plain: list[float] = []
    repeats = 3
    for turn in range(TIMES):  # each comes first in every second turn
        if turn % 2:
            plain.append(_plain(sweep.group, size, repeats))
        one, _ = sweep.one_size(size, "fp32", Pace(sweep.ctx.deadline_s, owed=size))
        assert one is not None
        repeats = one["repeats"]
        checked.append(one["seconds"])
        if not turn % 2:
            plain.append(_plain(sweep.group, size, repeats))
    return min(checked) / min(plain)


def _plain(group: Any, size: int, repeats: int) -> float:
    """Seconds of one all-reduce, as anybody would write it."""
    values = torch.zeros(size // 4)
    for _ in range(WARM_UP):
        dist.all_reduce(values, group=group)
    start = time.perf_counter()
    for _ in range(repeats):
        dist.all_reduce(values, group=group)
    return (time.perf_counter() - start) / repeats


def judge(_facts: Mapping[int, Any], _run: Run) -> Iterator[Finding]:
    return iter(())
