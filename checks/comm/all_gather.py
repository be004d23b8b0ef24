"""All-gather: every rank gets every other's part unaltered, and how fast it is.

`all_gather_into_tensor`, as FSDP collects parameters. Its bus factor is (n-1)/n (nccl-tests, doc/PERFORMANCE.md);
bytes are the total over all ranks. What is sent, and how a wrong element tells whose it is: copies.py.
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
    Scope.WORLD,
    Level.STANDARD,
    deadline_s=90,
    estimate_s=5.0,
    needs=("comm.init",),
    uses=expected.READS,
    baseline=True,
)


def measure(ctx: Context) -> Facts:
    return sweep.run(ctx, "all_gather")


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    return verdict.judge("all_gather", facts, run)


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    return verdict.summarize("all_gather", facts)
