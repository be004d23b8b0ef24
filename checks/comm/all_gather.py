"""All-gather: every rank gets every other's part unaltered, and how fast it is.

`all_gather_into_tensor`, as FSDP collects parameters. Its bus factor is (n-1)/n (nccl-tests, doc/PERFORMANCE.md);
bytes are the total over all ranks. payload_copy.py has what is sent, and how a wrong element tells its source. A wrong
result is recomputed from the same data (`confirmed` in the evidence); being wrong once is already a failure.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.comm.shared import judge_collective, plotted, sweep

PARTS = (sweep, judge_collective)
PLAN = sweep.plan(Level.STANDARD)

measure = partial(sweep.run, operation="all_gather")
judge = partial(judge_collective.judge, operation="all_gather")
record = partial(judge_collective.record, operation="all_gather")
summarize = partial(judge_collective.summarize, operation="all_gather")
plot = partial(plotted.collective, operation="all_gather")
