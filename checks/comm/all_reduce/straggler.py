"""Does a rank compute late, or is the network slow? Runs steps like training: compute, then reduce.

Each rank times its own computation, which is the same on all, and its wait in the all-reduce that follows. A rank that
computes long does not wait, and all others wait for it; over a slow link all wait, and none computes longer.
If a rank is late, all repeat it: the cause may have been brief.
"""

import contextlib
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from preflight.check import Context, option, words
from preflight.checks.comm.shared.operations import finish
from preflight.checks.comm.shared.readings import Latency
from preflight.checks.comm.shared.sweep import agreed, agreed_each
from preflight.sdk.files import core_wait_s

if TYPE_CHECKING:
    import torch

LATE_S = option(
    float, 0.03, "warn if a rank computes this many seconds per step longer than the others, and twice as long"
)
"""With five ranks and three busy loops on two cores, the ranks' medians differ by 10 ms."""
TIMES = 2.0
"""Times the others' median; 1.4 at most in that measurement."""
WAITED = 0.5
"""Share of the extra time: the others must have waited at least this much for the rank, and the rank itself for a core
if that is the reason."""
STEPS, FEWEST_STEPS = 20, 3
FIRST_S = 3.0
"""For the messages of these steps, by what a small one takes: where it takes long there are fewer steps. Where one rank
has to wait for a core, too, all messages take long: that is no slow network."""
ENOUGH = 8
"""Steps after which none is needed if no step of any rank was long enough to be late: of a rank that is late in half of
its steps, 8 that are not are a matter of 1 in 256."""
AGAIN_S = 6.0
"""Time for further steps, and for the repeat; there is none if a step takes longer than a third of it."""
SIDE = {"cpu": 640, "cuda": 4096}
"""Side of the square matrices to multiply: about 10 ms on a core, or on a GPU in fp32. The kernel lets a task that has
waited run for some milliseconds: a shorter time would not show that others compete for the core."""


class Arrival(TypedDict):
    """Medians over the steps."""

    busy_s: float
    wait_s: float
    core_wait_s: float
    """The part of `busy_s` in which the rank waited for a core."""


def measure(ctx: Context, latency: Latency | None) -> Arrival | None:
    """The rank's times; None if the network is too slow for a few steps."""
    if latency is None or len(ctx.members) < 2:
        return None
    steps = int(FIRST_S / (2 * agreed(ctx, ctx.process_group(), latency["p50_s"])))
    return _measured(ctx, min(STEPS, steps)) if steps >= FEWEST_STEPS else None


def measure_again(ctx: Context, own: Arrival) -> tuple[bool, Arrival | None]:
    """(whether any rank was late, the repeat's times); None if no rank was, or a step takes too long."""
    group = ctx.process_group()
    if not agreed(ctx, group, float(any(late(_everyones(ctx, own), ctx[LATE_S])))):
        return False, None
    steps = int(AGAIN_S / agreed(ctx, group, own["busy_s"] + own["wait_s"]))
    return True, _measured(ctx, min(steps, STEPS)) if steps >= FEWEST_STEPS else None


def _everyones(ctx: Context, own: Arrival) -> dict[int, Arrival]:
    """The times of all members, on every member."""
    import torch
    from torch import distributed as dist

    times = torch.tensor([own["busy_s"], own["wait_s"], own["core_wait_s"]], device=ctx.device, dtype=torch.float64)
    by_all = torch.empty(3 * len(ctx.members), device=ctx.device, dtype=torch.float64)
    with ctx.collective("all_gather", "3 elements"):
        dist.all_gather_into_tensor(by_all, times, group=ctx.process_group())
        rows = by_all.view(-1, 3).tolist()
    return {
        rank: {"busy_s": busy_s, "wait_s": wait_s, "core_wait_s": core_wait_s}
        for rank, (busy_s, wait_s, core_wait_s) in zip(ctx.members, rows, strict=True)
    }


def _measured(ctx: Context, steps: int) -> Arrival:
    times = _steps(ctx, min(steps, ENOUGH))
    if further := _further(ctx, times, steps - ENOUGH):
        times += _steps(ctx, further)
    busy, wait, core_wait = (statistics.median(own) for own in zip(*times, strict=True))
    return {"busy_s": busy, "wait_s": wait, "core_wait_s": core_wait}


def _further(ctx: Context, times: Sequence[tuple[float, float, float]], left: int) -> int:
    """How many of the steps that are left to make, the same on all: those that there is time for, where any rank may
    have computed too long by the longest and the shortest step of all."""
    if left <= 0:
        return 0
    busy = [busy_s for busy_s, _, _ in times]
    whole = statistics.fmean(busy_s + wait_s for busy_s, wait_s, _ in times)
    longest, shortest, each_s = agreed_each(ctx, ctx.process_group(), [max(busy), -min(busy), whole])
    return min(left, int(AGAIN_S / each_s)) if _is_late(longest, -shortest, ctx[LATE_S]) else 0


def _steps(ctx: Context, steps: int) -> list[tuple[float, float, float]]:
    """(busy_s, wait_s, core_wait_s) of each."""
    import torch
    from torch import distributed as dist

    group, device = ctx.process_group(), ctx.device
    side = SIDE.get(device.type, 256)
    factor, value = torch.zeros(side, side, device=device), torch.zeros(256, device=device)
    times = []
    ctx.doing("steps: compute, then all_reduce")
    with _on_one_core(), ctx.collective(f"all_reduce x{steps}, after computing", "1 KiB"):
        for _ in range(steps):
            dist.all_reduce(value, group=group)  # all start together
            finish(device)
            start, waited_s = time.perf_counter(), core_wait_s()
            compute(factor)
            finish(device)
            computed, core_wait = time.perf_counter(), core_wait_s() - waited_s
            dist.all_reduce(value, group=group)
            finish(device)
            times.append((computed - start, time.perf_counter() - computed, core_wait))
    return times


@contextlib.contextmanager
def _on_one_core() -> Iterator[None]:
    """Computes on one core: on a busy machine threads that wait for each other would delay a random rank."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def compute(factor: "torch.Tensor") -> None:
    """A rank's work in a step, the same on all ranks."""
    import torch

    for _ in range(2):
        torch.mm(factor, factor)


def late(arrivals: Mapping[int, Arrival], late_s: float) -> Iterator[tuple[int, tuple[int, ...], str, bool]]:
    """(rank, the others, message, whether other processes use its core) for each late rank. At most half can be late,
    since the lower median is the usual time."""
    if len(arrivals) < 2:
        return
    usual = statistics.median_low(arrival["busy_s"] for arrival in arrivals.values())
    slow = [rank for rank, arrival in arrivals.items() if _is_late(arrival["busy_s"], usual, late_s)]
    on_time = tuple(rank for rank in arrivals if rank not in set(slow))
    waited = statistics.median_low(arrivals[rank]["wait_s"] for rank in on_time)
    for rank in slow:
        longer = arrivals[rank]["busy_s"] - usual
        if waited >= WAITED * longer:
            starved = arrivals[rank]["core_wait_s"] >= WAITED * longer
            yield rank, on_time, _message(arrivals[rank], usual, waited, starved), starved


def _message(arrival: Arrival, usual_s: float, waited_s: float, starved: bool) -> str:
    busy, core, usual, waited = (
        words.duration(seconds) for seconds in (arrival["busy_s"], arrival["core_wait_s"], usual_s, waited_s)
    )
    times = f"computes {busy} per step, the others {usual}, expected about the same"
    why = f"it waits {core} of that for a CPU core that other processes use; " * starved
    return f"{times}: {why}the others wait {waited} for it, not for the network"


def _is_late(busy_s: float, usual_s: float, late_s: float) -> bool:
    return busy_s - usual_s >= late_s and busy_s >= TIMES * usual_s
