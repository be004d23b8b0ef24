"""Send and receive: in a ring every rank gets what the previous one sent, and how fast it is.

`batch_isend_irecv`: each rank sends to the next and receives from the one before, all at once, as pipeline stages do.
Its bus factor is 1 (nccl-tests, doc/PERFORMANCE.md). payload_copy.py has what is sent, and how a wrong
element tells its source. A wrong result is recomputed from the same data (`confirmed` in the evidence); being wrong
once is already a failure.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.comm.shared import judge_collective, plotted, sweep

PARTS = (sweep, judge_collective)
PLAN = sweep.plan(Level.FULL)

measure = partial(sweep.run, operation="send_recv")
judge = partial(judge_collective.judge, operation="send_recv")
record = partial(judge_collective.record, operation="send_recv")
summarize = partial(judge_collective.summarize, operation="send_recv")
plot = partial(plotted.collective, operation="send_recv")
