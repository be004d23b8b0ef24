"""Five collectives, in one of which one rank may do another thing than the others. The check marks none of them."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import distributed as dist

from preflight.check import Context, Finding, Level, Plan, Run, Scope

FOREVER = 1000
PLAN = Plan(Scope.WORLD, Level.STANDARD, deadline_s=float(os.environ.get("TEST_CHECK_DEADLINE_S", "4")))
Call = Callable[[Any], object]


def _all_reduce(elements: int) -> Call:
    return lambda group: dist.all_reduce(torch.ones(elements), group=group)


def _broadcast(elements: int) -> Call:
    return lambda group: dist.broadcast(torch.ones(elements), 0, group=group)


def _all_gather(elements: int) -> Call:
    def call(group: Any) -> None:
        dist.all_gather([torch.empty(elements) for _ in range(dist.get_world_size(group))], torch.ones(elements))

    return call


CALLS = [_all_reduce(4), _all_reduce(8), _all_gather(4), _broadcast(16), _all_reduce(8)]
DEEDS: dict[str, list[Call]] = {
    "": CALLS,
    "other": [CALLS[0], _broadcast(8), *CALLS[2:]],
    "shape": [CALLS[0], _all_reduce(16), *CALLS[2:]],
    "small": [CALLS[0], _all_reduce(2), *CALLS[2:]],
    "omit": [CALLS[0], *CALLS[2:]],
    "twice": [*CALLS[:2], *CALLS[1:]],
    "omit_last": CALLS[:4],
    "once_more": [*CALLS, CALLS[4]],
    "endless": [lambda group: [dist.all_reduce(torch.ones(8), group=group) for _ in iter(int, 1)]],
    "wrapped": [*CALLS[:2], lambda _group: time.sleep(FOREVER)],
    "late": [*CALLS[:2], lambda _group: time.sleep(FOREVER), *CALLS[2:]],
}


def measuring(deed: str) -> Callable[[Context], dict[str, Any]]:
    """A `measure` in which a rank whose environment says so does this deed."""

    def measure(ctx: Context) -> dict[str, Any]:
        group = ctx.process_group()
        torch.set_default_device(ctx.device)
        for call in DEEDS[deed if f"TEST_STEPS_{deed.upper()}" in ctx.environ else ""]:
            call(group)
        if ctx.device.type == "cuda":
            torch.cuda.synchronize()  # NCCL only queues
        return {}

    return measure


def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    return iter(())


measure = measuring("")
