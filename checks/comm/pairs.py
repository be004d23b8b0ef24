"""Pairs of nodes: after a finding, which node or pair of nodes is slow.

In rounds each node has one partner; each of its ranks sends to the one in its place there, then receives from it, all
pairs at once. Up to 32 nodes all pairs meet; above, each node meets twice log2 of their number, near and far ones, so
that every one has many witnesses. A link is timed where its data arrives, from the moment when its sender is ready.
"""

from collections.abc import Iterator, Mapping

from preflight.check import Context, Finding, Job, Level, NotApplicable, Plan, Run, Scope, Skip, ranges
from preflight.checks.comm.shared import heatmap, localize, meetings, messages, transfers
from preflight.checks.comm.shared.localize import MUCH_SLOWER, SLOWER
from preflight.checks.comm.shared.readings import nominal, rate
from preflight.checks.comm.shared.transfers import Facts


def _deadline(job: Job) -> float:
    """A second a round: at 100 Mbit/s three passes of 256 KiB both ways take a fifth of one, and NCCL connects."""
    return 60.0 + len(meetings.rounds_between(len(job.nodes)))


PARTS = (localize, messages)
PLAN = Plan(
    Scope.WORLD, Level.STANDARD, deadline_s=_deadline, estimate_s=4.0, needs=("comm.init",), when=localize.SYMPTOMS,
    baseline=True,
)  # fmt: skip

BUDGET_S = 3.0


def measure(ctx: Context) -> Facts:
    if len(ctx.job.nodes) < 2:
        raise NotApplicable("one node: there is no pair")
    steps = meetings.steps_between(ctx.job, ctx.members)
    if not steps:
        raise Skip("one node is left: there is no pair")
    alone = next(ranks for ranks in meetings.group_by_node(ctx.job, ctx.members) if ctx.rank in ranks)
    return transfers.measure(ctx, alone, steps, BUDGET_S, reduces=False)


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    blame = localize.find_blame(facts, run)
    if blame is not None:
        yield from messages.findings(blame, run)
        factor = run[SLOWER] if run.job.backend == "nccl" else run[MUCH_SLOWER]
        yield from messages.slower_than(localize.link_rates(run.baseline("comm.pairs")), blame.rates, factor)


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    blame = localize.find_blame(facts, run)
    if blame is None:
        return "no link was timed"
    size = nominal(max(reading["bytes"] for reading in facts.values()))
    nodes = len({blame.places[rank].node for rank in facts})
    partners = len(meetings.rounds_between(nodes))
    each = f", each with {partners} others" if partners < nodes - 1 else ""
    met = f"{ranges.count(len(blame.rates), 'link')} between {ranges.count(nodes, 'node')}{each}"
    return f"{met}, {size}: {rate(blame.usual)} in the middle, {rate(min(blame.rates.values()))} at least"


def draw(facts: Mapping[int, Facts], run: Run) -> Iterator[str]:
    blame = localize.find_blame(facts, run)
    if blame is not None:
        yield from heatmap.by_node(blame, run)
