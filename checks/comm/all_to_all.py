"""All-to-all: every rank gets from each what was meant for it, and how fast it is.

`all_to_all_single` with equal parts, as experts exchange tokens. Its bus factor is (n-1)/n (nccl-tests,
doc/PERFORMANCE.md). What is sent, and how a wrong element tells whose it is: payload_copy.py.
"""

from functools import partial

from preflight.check import Level, Plan, Scope
from preflight.checks.comm.shared import expected, judge_collective, sweep

PARTS = (sweep, judge_collective)
PLAN = Plan(
    Scope.WORLD, Level.FULL, deadline_s=90, estimate_s=5.0, needs=("comm.init",), uses=expected.READS,
    baseline=True,
)  # fmt: skip

measure = partial(sweep.run, operation="all_to_all")
judge = partial(judge_collective.judge, operation="all_to_all")
summarize = partial(judge_collective.summarize, operation="all_to_all")
