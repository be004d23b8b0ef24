"""How long a step takes on a device."""

import itertools
import time
from collections.abc import Callable

import torch

FEWEST, MOST = 3, 20


def seconds_of(step: Callable[[], object], device: torch.device, budget_s: float) -> list[float]:
    """Seconds of each of 3 to 20 repeats, as many as fit the budget, after two warm-ups: the first loads code.

    `device`: the GPU on whose current stream the step runs.
    """
    clock = _by_events if device.type == "cuda" else _by_the_clock
    once = clock(step, 2, device)[1]
    return clock(step, max(FEWEST, min(MOST, int(budget_s / max(once, 1e-6)))), device)


def _by_events(step: Callable[[], object], repeats: int, device: torch.device) -> list[float]:
    """Times on the GPU's own clock: a launch only enqueues work."""
    with torch.cuda.device(device):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]  # type: ignore[no-untyped-call]
        marks[0].record()
        for mark in marks[1:]:
            step()
            mark.record()
        marks[-1].synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(marks)]


def _by_the_clock(step: Callable[[], object], repeats: int, _device: torch.device) -> list[float]:
    marks = [time.perf_counter()]
    for _ in range(repeats):
        step()
        marks.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(marks)]
