"""Pairs of nodes: after a finding, which node or pair of nodes is slow.

In rounds each node has one partner; each rank sends to the partner's rank in the same place, then receives from it, all
pairs at once. Up to 32 nodes all pairs meet; above, each node meets twice log2 of their number, near and far ones, so
that each has many witnesses. The receiver times a link, starting when the sender is ready.

Slow links are measured again, together with sound ones; above 32 nodes in log2 of their number more rounds, in half of
which suspects meet each other: if they are fast there, not they are slow, but what lies between them and the others.
Only what is slow in both measurements is blamed (`confirmed: 2 of 2` in the evidence).
"""

from collections.abc import Iterator, Mapping

from preflight.check import (
    Action,
    After,
    Code,
    Context,
    Finding,
    Job,
    Level,
    NotApplicable,
    Plan,
    Run,
    Scope,
    Skip,
    plots,
    ranges,
    words,
)
from preflight.checks.comm.shared import confirmation, localize, meetings, messages, plotted, transfers
from preflight.checks.comm.shared.confirmation import Looks
from preflight.checks.comm.shared.localize import Blame
from preflight.checks.comm.shared.readings import nominal
from preflight.checks.comm.shared.transfers import Facts


def _deadline(job: Job) -> float:
    """A second per round: at 100 Mbit/s three passes of 256 KiB both ways take a fifth of it, and NCCL connects."""
    return 60.0 + len(meetings.rounds_between(len(job.nodes)))


PARTS = (localize, messages, confirmation)
PLAN = Plan(
    Scope.WORLD, Level.STANDARD, deadline_s=_deadline, estimate_s=4.0,
    after={"comm.init": After.NEEDS, **localize.AFTER_SYMPTOMS},
)  # fmt: skip

SLOW_SIDES = Code(
    "Nodes are slow with those of another group, but not within their own.",
    fix="Check the uplinks between the groups: speed, errors, and how far they are oversubscribed by design; "
    "start the job within one group if it fits (Slurm: --switches=1). " + messages.TIME_IT,
    action=Action.NONE,
    see=("net.rdma", "net.rdma_errors", "net.interfaces"),
)

BUDGET_S = 3.0


def measure(ctx: Context) -> Facts:
    if len(ctx.job.nodes) < 2:
        raise NotApplicable("one node: there is no pair")
    steps = meetings.steps_between(ctx.job, ctx.members)
    if not steps:
        raise Skip("one node is left: there is no pair")
    alone = next(ranks for ranks in meetings.group_by_node(ctx.job, ctx.members) if ctx.rank in ranks)
    return transfers.measure(ctx, alone, steps, BUDGET_S, localize.doubt, reduces=False, with_each_other=True)


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    looks = Looks(facts, run, localize.doubt)
    blame = localize.find_blame(looks.facts, run, with_sides=True)
    if blame is not None:
        yield from looks.confirmed(_blamed(blame, run))
        yield from looks.only_once()


def _blamed(blame: Blame, run: Run) -> Iterator[Finding]:
    yield from messages.findings(blame, run)
    if blame.sides:
        yield messages.LinkMessages(blame, run).on_sides(SLOW_SIDES)


record = transfers.record


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    facts = Looks(facts, run, localize.doubt).facts
    blame = localize.find_blame(facts, run)
    if blame is None:
        return "no link was timed"
    size = nominal(max(reading["bytes"] for reading in facts.values()))
    nodes = len({blame.places[rank].node for rank in facts})
    partners = len(meetings.rounds_between(nodes))
    each = f", each with {partners} others" if partners < nodes - 1 else ""
    met = f"{ranges.count(len(blame.rates), 'link')} between {ranges.count(nodes, 'node')}{each}"
    return (
        f"{met}, {size}: {words.rate_of_gb(blame.usual)} median, {words.rate_of_gb(min(blame.rates.values()))} at least"
    )


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    blame = localize.find_blame(Looks(facts, run, localize.doubt).facts, run)
    if blame is not None:
        yield plotted.between_nodes(blame, run, "from the row's node to the column's: the slowest link")
