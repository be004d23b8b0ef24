"""Reduce-scatter: the right sum in every element of every rank's part, and how fast it is.

`reduce_scatter_tensor`, as FSDP sums gradients. Its bus factor is (n-1)/n (nccl-tests, doc/PERFORMANCE.md); bytes are
the total over all ranks. What is sent, and how a wrong element tells whose it is: sums.py.
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
    return sweep.run(ctx, "reduce_scatter")


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    return verdict.judge("reduce_scatter", facts, run)


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    return verdict.summarize("reduce_scatter", facts)
