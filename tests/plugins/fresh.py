"""One rank a node waits until no worker of an earlier check is left, as gpu.released does; and it draws."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from preflight.check import After, Code, Context, Finding, Level, Plan, Run, Scope, option

FRESH = os.environ.get("TEST_FRESH") == "always"
CODE = option(str, None, "somebody's code, such as may do anything to a worker")
PLAN = Plan(
    Scope.NODE,
    Level.QUICK,
    deadline_s=20,
    after={"plugin.holds": After.READS},
    fresh=lambda asked: FRESH or asked.sets(CODE),
)
HELD = Code("A worker of an earlier check lives.", fix="Replace it.")


def measure(ctx: Context) -> Any:
    workers = [int(path.name) for path in Path(ctx.environ["TEST_FOLDER"]).iterdir()]
    end = time.monotonic() + 1
    while living := [pid for pid in workers if os.path.exists(f"/proc/{pid}")]:
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    return {"asked": len(workers), "living": living}


def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    for rank, of_rank in facts.items():
        if of_rank["living"]:
            yield HELD.fail(
                f"{len(of_rank['living'])} of {of_rank['asked']} live, expected none", **run.job.where(rank)
            )


def draw(facts: Mapping[int, Any], run: Run) -> Iterator[str]:
    for rank, of_rank in facts.items():
        yield f"rank {rank} asked {of_rank['asked']} OK"
