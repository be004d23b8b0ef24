"""Records a speed that the test sets."""

from collections.abc import Iterator
from typing import Any

from preflight.check import Context, Figure, Job, Level, Plan, Scope, Trait, option, traits

PLAN = Plan(Scope.RANK, Level.QUICK)
SPEED = option(float, 100.0, "what is measured")


def measure(ctx: Context) -> Any:
    return {"speed": ctx[SPEED] * (1 + ctx.rank / 100)}


def judge(*_arguments: Any) -> Iterator[Any]:
    yield from ()


def record(reading: Any, _job: Job) -> Iterator[Trait | Figure]:
    yield from traits("hardware", {"reader": "made up"})
    yield Figure("read", reading["speed"], "GB/s", least=0.8)
