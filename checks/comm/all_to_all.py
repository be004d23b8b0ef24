"""All-to-all: every rank gets what each other rank sent it, and how fast it is.

`all_to_all_single` with equal parts, as experts exchange tokens. Its bus factor is (n-1)/n (nccl-tests,
doc/PERFORMANCE.md). payload_copy.py has what is sent, and how a wrong element tells its source. A wrong result is
recomputed from the same data (`confirmed` in the evidence); being wrong once is already a failure.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.comm.shared import judge_collective, plotted, sweep

PARTS = (sweep, judge_collective)
PLAN = sweep.plan(Level.FULL)

measure = partial(sweep.run, operation="all_to_all")
judge = partial(judge_collective.judge, operation="all_to_all")
record = partial(judge_collective.record, operation="all_to_all")
summarize = partial(judge_collective.summarize, operation="all_to_all")
plot = partial(plotted.collective, operation="all_to_all")
