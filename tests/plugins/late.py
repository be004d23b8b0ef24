"""In the middle of a run a made-up machine gets worse (tests/standin), and a file is left in /dev/shm."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from preflight.check import After, Context, Finding, Level, Plan, Run, Scope

PLAN = Plan(Scope.RANK, Level.QUICK, after={"gpu.topology": After.READS})


def measure(ctx: Context) -> Any:
    Path(f"{ctx.environ['PREFLIGHT_STANDIN']}.late").touch()
    if mark := ctx.environ.get("TEST_LEAVES"):
        child = os.fork()
        if not child:
            Path(f"/dev/shm/torch_{os.getpid()}_{mark}").write_bytes(bytes(4096))
            os._exit(0)
        os.waitpid(child, 0)
    return {}


def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    return iter(())
