"""Rails: each rank's links to the neighbouring nodes are as fast as the others', and so is each rail.

A rail is the ranks with one place among their node's: they share a network card's number and, in rail-optimised
networks, a switch. All rails at once, in steps: each rank sends to the next node's rank in its rail, then to the one
before, and the receiver times it from the moment when the sender is ready. Then each rail all-reduces by itself, which
shows a switch that is slow only under load. An all-reduce over all would average all this away.

The links are compared with each other only. With two nodes a slow card looks as a slow cable: their link is named.
"""

import statistics
from collections.abc import Iterator, Mapping

from preflight.check import Code, Context, Finding, Level, NotApplicable, Plan, Run, Scope, Skip, ranges
from preflight.checks.comm.shared import heatmap, localize, meetings, messages, transfers
from preflight.checks.comm.shared.localize import MUCH_SLOWER, SLOWER
from preflight.checks.comm.shared.readings import nominal, rate
from preflight.checks.comm.shared.transfers import Facts

PARTS = (localize, messages)
PLAN = Plan(
    Scope.WORLD, Level.STANDARD, deadline_s=60, estimate_s=1.5, needs=("comm.init",), baseline=True
)  # fmt: skip

SLOW_TOGETHER = Code(
    "A rail is slow when all its nodes use it at once, though none of its links is slow alone.",
    fix="See the switch of rail {local_rank}, which joins the network cards near the GPUs of local rank {local_rank} "
    "(nvidia-smi topo -m): its uplinks, congestion (ECN, PFC counters), adaptive routing (NCCL_IB_ADAPTIVE_ROUTING).",
)

BUDGET_S = 2.0
"""For the links, and as much for the all-reduces, where they are slow."""
FEWEST_RAILS = 3
"""Of two nobody can tell which is odd."""


def measure(ctx: Context) -> Facts:
    if len(ctx.job.nodes) < 2:
        raise NotApplicable("one node: no link leads to another")
    rails = meetings.group_by_rail(ctx.job, ctx.members)
    if all(len(rail) < 2 for rail in rails):
        raise Skip("one node is left: no link leads to another")
    mine = next(rail for rail in rails if ctx.rank in rail)
    return transfers.measure(ctx, mine, meetings.ring_steps(rails), BUDGET_S)


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    blame = localize.find_blame(facts, run)
    if blame is None:
        return
    yield from messages.findings(blame, run)
    touched = {blame.places[a].rail for a, _ in blame.bad}
    yield from _together(facts, touched, run)
    factor = run[SLOWER] if run.job.backend == "nccl" else run[MUCH_SLOWER]
    yield from messages.slower_than(localize.link_rates(run.baseline("comm.rails")), blame.rates, factor)


def _together(facts: Mapping[int, Facts], touched: set[int], run: Run) -> Iterator[Finding]:
    """Rails are compared by bus bandwidth, since they may have different numbers of ranks (nccl-tests,
    doc/PERFORMANCE.md). Those with a slow link are told already. On gloo all rails share the processors, and whose
    turn it is there decides: a sound one is 5 times slower than another under load."""
    busbw = _busbw(facts, run)
    if len(busbw) < FEWEST_RAILS or run.job.backend != "nccl":
        return
    least = localize.slow_below(busbw.values(), run)
    slow = {rail: value for rail, value in busbw.items() if value < least and rail not in touched}
    for rail, value in slow.items():
        others = [other for number, other in busbw.items() if number not in slow]
        text = f"the all-reduce of rail {rail} (local rank {rail} of all nodes) has a busbw of {rate(value)}"
        usual = f"expected about {rate(statistics.median(others))} as on {ranges.count(len(others), 'other rail')}"
        yield SLOW_TOGETHER.warn(f"{text}, though its links are sound one by one; {usual}", local_rank=rail)


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


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    blame = localize.find_blame(facts, run)
    if blame is None:
        return "no link was timed"
    size = nominal(max(reading["bytes"] for reading in facts.values()))
    rails = ranges.count(len({blame.places[rank].rail for rank in facts}), "rail")
    slowest = rate(min(blame.rates.values()))
    links = ranges.count(len(blame.rates), "link")
    return f"{links} on {rails}, {size}: {rate(blame.usual)} in the middle, {slowest} at least"


def draw(facts: Mapping[int, Facts], run: Run) -> Iterator[str]:
    blame = localize.find_blame(facts, run)
    if blame is not None:
        yield from heatmap.by_rank(blame, run)
