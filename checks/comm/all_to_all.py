"""All-to-all: every rank gets from each what was meant for it, and how fast it is.

`all_to_all_single` with equal parts, as experts exchange tokens. Its bus factor is (n-1)/n (nccl-tests,
doc/PERFORMANCE.md). What is sent, and how a wrong element tells whose it is: payload_copy.py. A wrong result is
computed once more with the same data (`confirmed` in the evidence); wrong once is a failure, too.
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
