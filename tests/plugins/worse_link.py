"""Links get worse in mid-run.

After net.rdma has read them, files of a node's made-up /sys change: TEST_WORSE holds `PATH=TEXT` lines.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from preflight.check import After, Context, Finding, Level, Plan, Run, Scope

PLAN = Plan(Scope.NODE, Level.QUICK, after={"net.rdma": After.READS})


def measure(ctx: Context) -> Any:
    for line in ctx.environ.get("TEST_WORSE", "").splitlines():
        path, _, text = line.partition("=")
        assert os.path.exists(path), path
        Path(path).write_text(f"{text}\n")
    return {}


def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    return iter(())
