"""Broadcast: what a root sends reaches all ranks unaltered, and how fast it is.

`broadcast` from up to eight roots in turn at small sizes; it is timed from the first rank. Its bus factor is 1
(nccl-tests, doc/PERFORMANCE.md). What is sent, and how a wrong element tells whose it is: payload_copy.py.
"""

from functools import partial

from preflight.check import Level, Plan, Scope
from preflight.checks.comm.shared import expected, judge_collective, sweep

PARTS = (sweep, judge_collective)
PLAN = Plan(
    Scope.WORLD, Level.FULL, deadline_s=90, estimate_s=5.0, needs=("comm.init",), uses=expected.READS,
    baseline=True,
)  # fmt: skip

measure = partial(sweep.run, operation="broadcast")
judge = partial(judge_collective.judge, operation="broadcast")
summarize = partial(judge_collective.summarize, operation="broadcast")
