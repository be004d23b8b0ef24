"""Clock: the nodes' clocks agree.

One rank per node asks the first node for its time over the store, one node after the other. The shortest of several
round trips counts: the answer was given within it, so the error is half of it (Cristian's algorithm).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from preflight.check import Code, Context, Finding, Job, Level, Plan, Run, Scope, option, ranges, words

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


def _deadline(job: Job) -> float:
    """A node takes a few milliseconds; the store's client waits up to 70 % of this for its turn."""
    return 20.0 + len(job.nodes) / 20


PLAN = Plan(Scope.WORLD, Level.STANDARD, deadline_s=_deadline, estimate_s=0.5)

MAX_SKEW_S = option(float, 1.0, "warn if a clock differs from most nodes' by more than this many seconds")
"""NTP or PTP keeps a clock right to milliseconds; without them it drifts by a second in a day or two (20 ppm). Beyond
that, the logs of several nodes and the times of shared files sort in the wrong order."""

SKEWED = Code(
    "A node's clock is wrong.",
    fix="On that node: chronyc tracking (or timedatectl timesync-status); start its time daemon.",
)

ROUND_TRIPS = 5


class Facts(TypedDict):
    ahead_s: float | None
    """How far this clock is ahead of the first node's; None on ranks that do not ask."""
    error_s: float | None
    """The true value is within this much of `ahead_s`."""


def measure(ctx: Context) -> Facts:
    first, *others = ctx.job.one_per_node(ctx.members)
    if ctx.rank not in (first, *others):
        return {"ahead_s": None, "error_s": None}
    if not others:
        return {"ahead_s": 0.0, "error_s": 0.0}
    ctx.doing("connecting to the store")
    store = ctx.store()
    with ctx.collective("clock exchange", ranges.count(len(others) + 1, "node")):
        ahead_s, error_s = _answer(store, others) if ctx.rank == first else _ask(store, ctx.rank)
    return {"ahead_s": ahead_s, "error_s": error_s}


def _answer(store: "Store", others: Sequence[int]) -> tuple[float, float]:
    """Gives each node its turn, so that no two compete for the store's only thread."""
    for rank in others:
        store.set(f"turn/{rank}", "")
        for number in range(ROUND_TRIPS):
            store.wait([f"asked/{rank}/{number}"])
            store.set(f"answer/{rank}/{number}", repr(time.time()))
    return 0.0, 0.0


def _ask(store: "Store", rank: int) -> tuple[float, float]:
    """(how far this clock is ahead, its error), in seconds."""
    store.wait([f"turn/{rank}"])
    found = []
    for number in range(ROUND_TRIPS):
        start = time.perf_counter()
        store.set(f"asked/{rank}/{number}", "")
        store.wait([f"answer/{rank}/{number}"])
        local_s, half_s = time.time(), (time.perf_counter() - start) / 2
        found.append((half_s, local_s - half_s - float(store.get(f"answer/{rank}/{number}"))))
    half_s, ahead_s = min(found)
    return ahead_s, half_s


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    clocks, error_s = _clocks(facts)
    middle = sorted(clocks.values())[(len(clocks) - 1) // 2] if clocks else 0.0
    wrong = {rank: ahead for rank, ahead in clocks.items() if abs(ahead - middle) > run[MAX_SKEW_S] + error_s}
    expected = f"expected at most {run[MAX_SKEW_S]:g} s (the error is {words.duration(error_s)})"
    if 2 * len(wrong) < len(clocks):
        for rank, ahead in wrong.items():
            side = "ahead of" if ahead > middle else "behind"
            text = f"the clock is {words.duration(abs(ahead - middle))} {side} most nodes', {expected}"
            yield SKEWED.warn(text, node=run.job.node_of(rank).node)
    elif wrong:
        last, first = max(clocks, key=clocks.__getitem__), min(clocks, key=clocks.__getitem__)
        apart = f"the clock of {run.job.node_of(last).node} is {words.duration(clocks[last] - clocks[first])} ahead"
        yield SKEWED.warn(f"{apart} of that of {run.job.node_of(first).node}, {expected}; either may be wrong")


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    clocks, error_s = _clocks(facts)
    if len(clocks) < 2:
        return "one node: nothing to compare"
    apart = words.duration(max(clocks.values()) - min(clocks.values()))
    return f"the clocks of {len(clocks):,} nodes are within {apart} (error {words.duration(error_s)})"


def _clocks(facts: Mapping[int, Facts]) -> tuple[dict[int, float], float]:
    """(seconds each node is ahead of the first, by the rank that asked; error of the difference of any two)."""
    clocks = {rank: measured["ahead_s"] for rank, measured in facts.items() if measured["ahead_s"] is not None}
    return clocks, sum(sorted(measured["error_s"] or 0.0 for measured in facts.values())[-2:])
