"""Broadcast: what a root sends reaches all ranks unaltered, and how fast it is.

`broadcast` from up to eight roots in turn at small sizes; it is timed from the first rank. Its bus factor is 1
(nccl-tests, doc/PERFORMANCE.md). payload_copy.py has what is sent, and how a wrong element tells its source. A wrong
result is recomputed from the same data (`confirmed` in the evidence); being wrong once is already a failure.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.comm.shared import judge_collective, plotted, sweep

PARTS = (sweep, judge_collective)
PLAN = sweep.plan(Level.FULL)

measure = partial(sweep.run, operation="broadcast")
judge = partial(judge_collective.judge, operation="broadcast")
record = partial(judge_collective.record, operation="broadcast")
summarize = partial(judge_collective.summarize, operation="broadcast")
plot = partial(plotted.collective, operation="broadcast")
