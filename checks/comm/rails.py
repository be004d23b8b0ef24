"""Rails: each rank's links to the neighboring nodes are as fast as the others', and so is each rail.

A rail consists of the ranks with the same place on their nodes: they share a network card's number and, in
rail-optimized networks, a switch. All rails at once, in steps: each rank sends to the next node's rank in its rail,
then to the previous one's; the receiver times it from when the sender is ready. Then each rail all-reduces by itself,
which reveals a switch that is slow only under load. An all-reduce over all would average this away.

Slow links are measured again, together with sound ones, and only what is slow both times is blamed (`confirmed: 2 of
2` in the evidence). Links are only compared with each other. With two nodes a slow card looks like a slow cable, so
their link is named.
"""

import statistics
from collections.abc import Iterator, Mapping

from preflight.check import (
    Action,
    After,
    Code,
    Context,
    Finding,
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
from preflight.checks.comm.shared.readings import nominal
from preflight.checks.comm.shared.transfers import Doubt, Facts

PARTS = (localize, messages, confirmation)
PLAN = Plan(Scope.WORLD, Level.STANDARD, deadline_s=60, estimate_s=1.5, after={"comm.init": After.NEEDS})

SLOW_TOGETHER = Code(
    "A rail is slow when all its nodes use it at once, although none of its links is slow alone.",
    fix="Check the switch of rail {local_rank}, which joins the network cards near the GPUs of local rank {local_rank} "
    "(nvidia-smi topo -m): its uplinks, congestion (ECN, PFC counters), adaptive routing (NCCL_IB_ADAPTIVE_ROUTING).",
    action=Action.NONE,
    see=("net.rdma", "net.rdma_errors"),
)

BUDGET_S = 2.0
"""Time for slow links, and as much again for slow all-reduces."""
FEWEST_RAILS = 3
"""Of two, either may be the odd one."""


def measure(ctx: Context) -> Facts:
    if len(ctx.job.nodes) < 2:
        raise NotApplicable("one node: no link leads to another")
    rails = meetings.group_by_rail(ctx.job, ctx.members)
    if all(len(rail) < 2 for rail in rails):
        raise Skip("one node is left: no link leads to another")
    mine = next(rail for rail in rails if ctx.rank in rail)
    return transfers.measure(ctx, mine, meetings.ring_steps(rails), BUDGET_S, _doubt)


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    looks = Looks(facts, run, _doubt)
    blame = localize.find_blame(looks.facts, run)
    if blame is not None:
        yield from looks.confirmed([*messages.findings(blame, run), *_together(looks.facts, run)])
        yield from looks.only_once()


def _doubt(facts: Mapping[int, Facts], run: Run) -> Doubt:
    return Doubt(localize.doubt(facts, run).links, frozenset(_slow_together(facts, run)))


def _slow_together(facts: Mapping[int, Facts], run: Run) -> dict[int, float]:
    """GB/s of the rails whose own all-reduce is slow although no link is.

    Rails are compared by bus bandwidth, since they may have different numbers of ranks (nccl-tests,
    doc/PERFORMANCE.md). On gloo all rails share the processors, and scheduling decides: a sound one may be 5
    times slower than another under load."""
    busbw = _busbw(facts, run)
    if len(busbw) < FEWEST_RAILS or run.job.backend != "nccl":
        return {}
    place_of, least = localize.positions(run.job), localize.slow_below(busbw.values(), run)
    touched = {place_of[sender].rail for sender, _ in localize.doubt(facts, run).links}
    return {rail: value for rail, value in busbw.items() if value < least and rail not in touched}


def _together(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    slow = _slow_together(facts, run)
    others = [value for rail, value in _busbw(facts, run).items() if rail not in slow]
    for rail, value in slow.items():
        text = (
            f"the all-reduce of rail {rail} (local rank {rail} of all nodes) has a busbw of {words.rate_of_gb(value)}"
        )
        usual = f"expected about {words.rate_of_gb(statistics.median(others))} as on "
        usual += ranges.count(len(others), "other rail")
        yield SLOW_TOGETHER.warn(f"{text}, though each of its links is sound alone; {usual}", local_rank=rail)


def _busbw(facts: Mapping[int, Facts], run: Run) -> dict[int, float]:
    """GB/s of 10^9 bytes, by rail."""
    rail_of, found = localize.positions(run.job), {}
    size: dict[int, int] = {}
    for rank in facts:
        size[rail_of[rank].rail] = size.get(rail_of[rank].rail, 0) + 1
    for rank, reading in facts.items():
        rail = rail_of[rank].rail
        value = transfers.busbw(reading, size[rail])
        if value:
            found[rail] = value
    return dict(sorted(found.items()))


record = transfers.record


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    facts = Looks(facts, run, _doubt).facts
    blame = localize.find_blame(facts, run)
    if blame is None:
        return "no link was timed"
    size = nominal(max(reading["bytes"] for reading in facts.values()))
    rails = ranges.count(len({blame.places[rank].rail for rank in facts}), "rail")
    slowest = words.rate_of_gb(min(blame.rates.values()))
    links = ranges.count(len(blame.rates), "link")
    return f"{links} on {rails}, {size}: {words.rate_of_gb(blame.usual)} median, {slowest} at least"


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    blame = localize.find_blame(Looks(facts, run, _doubt).facts, run)
    if blame is not None:
        yield plotted.by_rail(blame, run, "node by rail: the slower of the best that it sends and receives")
