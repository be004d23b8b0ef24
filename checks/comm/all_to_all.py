"""All-to-all: every rank gets from each what was meant for it, and how fast it is.

`all_to_all_single` with equal parts, as experts exchange tokens. Its bus factor is (n-1)/n (nccl-tests,
doc/PERFORMANCE.md). What is sent, and how a wrong element tells whose it is: copies.py.
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
    return sweep.run(ctx, "all_to_all")


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    return verdict.judge("all_to_all", facts, run)


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    return verdict.summarize("all_to_all", facts)
