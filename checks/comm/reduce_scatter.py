"""Reduce-scatter: the right sum in every element of every rank's part, and how fast it is.

`reduce_scatter_tensor`, as FSDP sums gradients. Its bus factor is (n-1)/n (nccl-tests, doc/PERFORMANCE.md); bytes are
the total over all ranks. payload_sum.py has what is sent, and how a wrong element tells its source. A wrong result is
recomputed from the same data (`confirmed` in the evidence); being wrong once is already a failure.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.comm.shared import judge_collective, plotted, sweep

PARTS = (sweep, judge_collective)
PLAN = sweep.plan(Level.FULL)

measure = partial(sweep.run, operation="reduce_scatter")
judge = partial(judge_collective.judge, operation="reduce_scatter")
record = partial(judge_collective.record, operation="reduce_scatter")
summarize = partial(judge_collective.summarize, operation="reduce_scatter")
plot = partial(plotted.collective, operation="reduce_scatter")
