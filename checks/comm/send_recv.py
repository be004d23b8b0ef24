"""Send and receive: in a ring every rank gets what the one before it sent, and how fast it is.

`batch_isend_irecv`: each rank sends to the next and receives from the one before, all at once, as pipeline stages do.
Its bus factor is 1 (nccl-tests, doc/PERFORMANCE.md). What is sent, and how a wrong element tells whose it is:
copies.py.
"""

from collections.abc import Iterator, Mapping

from preflight.check import Context, Finding, Level, Plan, Run, Scope
from preflight.checks.comm import expected, sweep, verdict
from preflight.checks.comm.readings import Facts
from preflight.checks.comm.sweep import MAX_MIB as MAX_MIB
from preflight.checks.comm.verdict import BASELINE_SHARE as BASELINE_SHARE
from preflight.checks.comm.verdict import BELOW_EXPECTED as BELOW_EXPECTED
from preflight.checks.comm.verdict import SLOWER_THAN_BASELINE as SLOWER_THAN_BASELINE
from preflight.checks.comm.verdict import TOO_SLOW as TOO_SLOW
from preflight.checks.comm.verdict import WRONG_RESULT as WRONG_RESULT

PLAN = Plan(
    Scope.WORLD, Level.FULL, deadline_s=90, estimate_s=5.0, needs=("comm.init",), uses=expected.READS,
    baseline=True,
)  # fmt: skip


def measure(ctx: Context) -> Facts:
    return sweep.run(ctx, "send_recv")


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    return verdict.judge("send_recv", facts, run)


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    return verdict.summarize("send_recv", facts)
