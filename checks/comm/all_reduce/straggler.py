"""Does a rank compute late, or is the network slow? Steps like those of a training: compute, then reduce.

Each rank times its own computation, which is the same on all, and its wait in the all-reduce that follows. A rank that
computes long waits for nobody, and all others wait for it; over a slow link all wait, and nobody computes longer.
"""

import contextlib
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypedDict

from preflight.check import Context, option
from preflight.checks.comm.shared.operations import finish
from preflight.checks.comm.shared.readings import Latency
from preflight.checks.comm.shared.timing import LATENCIES

if TYPE_CHECKING:
    import torch

LATE_S = option(float, 0.03, "warn of a rank that computes so many seconds a step longer than the others, and twice")
"""Five ranks and three busy loops on two cores: the medians of the ranks differ by 10 ms."""
TIMES = 2.0
"""As long as the others' median: there 1.4 at most."""
WAITED = 0.5
"""Of what it computes longer: the others must have waited at least so much of it, and the rank itself for a core
where that is the reason."""
STEPS, FEWEST_STEPS = 20, 3
"""The fewest, where the network has no time for a hundred small messages."""
SIDE = {"cpu": 640, "cuda": 4096}
"""Of the square matrices that are multiplied: about 10 ms on a core, and on a GPU in fp32. The kernel lets a task that
has waited run for some milliseconds at once: less would not show that others want its core."""


class Arrival(TypedDict):
    """Medians over the steps."""

    busy_s: float
    wait_s: float
    core_wait_s: float
    """Of `busy_s`: until the kernel gave the rank a core."""


def measure(ctx: Context, latency: Latency | None) -> Arrival | None:
    """None where the network is too slow for some steps."""
    import torch
    from torch import distributed as dist

    if latency is None or latency["repeats"] < STEPS or len(ctx.members) < 2:
        return None
    steps = STEPS if latency["repeats"] >= LATENCIES else FEWEST_STEPS
    group, device = ctx.process_group(), ctx.device
    side = SIDE.get(device.type, 256)
    factor, value = torch.zeros(side, side, device=device), torch.zeros(256, device=device)
    busy, wait, core_wait = [], [], []
    ctx.doing("steps: compute, then all_reduce")
    with _on_one_core(), ctx.collective(f"all_reduce x{steps}, after computing", "1 KiB"):
        for _ in range(steps):
            dist.all_reduce(value, group=group)  # all begin together
            finish(device)
            start, waited_s = time.perf_counter(), core_wait_s()
            compute(factor)
            finish(device)
            computed = time.perf_counter()
            core_wait.append(core_wait_s() - waited_s)
            dist.all_reduce(value, group=group)
            finish(device)
            busy.append(computed - start)
            wait.append(time.perf_counter() - computed)
    return {
        "busy_s": statistics.median(busy),
        "wait_s": statistics.median(wait),
        "core_wait_s": statistics.median(core_wait),
    }


def core_wait_s() -> float:
    """For how long this thread has waited in the run queue since it began (sched-stats.rst of the kernel); 0 where the
    kernel does not count that."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


@contextlib.contextmanager
def _on_one_core() -> Iterator[None]:
    """Threads that wait for each other take any rank's time, by chance, where a machine has other work, too."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def compute(factor: "torch.Tensor") -> None:
    """What a rank does in a step: the same on all ranks."""
    import torch

    for _ in range(2):
        torch.mm(factor, factor)


def late(arrivals: Mapping[int, Arrival], late_s: float) -> Iterator[tuple[int, tuple[int, ...], str, bool]]:
    """(rank, the others, what is said of it, whether other processes have its core) of each that is late. More than
    half are never late: the (lower) median is what is usual."""
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
    times = f"computes {_ms(arrival['busy_s'])} a step, the others {usual_s * 1000:,.1f} ms, expected about the same"
    core = f"it waits {_ms(arrival['core_wait_s'])} of that for a CPU core that other processes use; " * starved
    return f"{times}: {core}the others wait {_ms(waited_s)} for it, and not for the network"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def _is_late(busy_s: float, usual_s: float, late_s: float) -> bool:
    return busy_s - usual_s >= late_s and busy_s >= TIMES * usual_s
