"""Some steps under torch.profiler: how long collectives took, and how much of that is not covered by computation."""

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from torch.profiler import ProfilerActivity, profile

STEPS = 2
LARGEST = 128 * 1024
"""The most bytes of a packed trace, which is sent with the facts. From a larger one the shortest events are dropped."""
LEAST_US = (0, 10, 100, 1000)
NO_WORK = ("c10d", "_c10d_functional", "c10d_functional", "autograd", "torch")
"""Prefixes of CPU operations that only start collectives, wait for them, or enclose other operations."""
Event = Mapping[str, Any]
"""An event in Chrome's trace format: `ts` and `dur` in microseconds."""
Interval = tuple[float, float]


class Exposed(TypedDict):
    """Seconds per step, under the profiler."""

    step: float
    collectives: float
    """Time in which at least one collective was running on this rank."""
    exposed: float
    """The part of it in which nothing was computed."""
    count: int
    """The number of collectives."""


def traced(step: Callable[[], None], folder: str) -> tuple[Exposed, list[Event]]:
    """`folder`: for a file that is removed at once; "": the temporary folder."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            step()
    with tempfile.TemporaryDirectory(prefix="preflight-", dir=folder or None) as private:
        path = os.path.join(private, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path) as file:
            events: list[Event] = json.load(file)["traceEvents"]
    return exposed(events), events


def exposed(events: Iterable[Event]) -> Exposed:
    """The values for STEPS steps; their time is left at 0. On a GPU NCCL's kernels are compared with all others, on a
    CPU gloo's spans with operations that are not collectives."""
    spans = [event for event in events if event.get("ph") == "X"]
    on_gpu = [event for event in spans if event.get("cat") == "kernel"]
    if on_gpu:
        own = [event for event in on_gpu if event["name"].startswith("nccl")]
        work = [event for event in on_gpu if not event["name"].startswith("nccl")]
    else:
        own = [event for event in spans if event["name"].startswith("gloo:")]
        work = [event for event in spans if event.get("cat") == "cpu_op" and _computes(event["name"])]
    collectives = union(map(_interval, own))
    apart = length(collectives) - length(common(collectives, union(map(_interval, work))))
    return Exposed(step=0.0, collectives=length(collectives) / STEPS, exposed=apart / STEPS, count=len(own) // STEPS)


def _computes(name: str) -> bool:
    first, colons, _ = name.partition("::")
    return bool(colons) and first not in NO_WORK


def _interval(event: Event) -> Interval:
    return event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The union as disjoint intervals, in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def common(these: Sequence[Interval], those: Sequence[Interval]) -> list[Interval]:
    """The intersection of two unions."""
    found, mine, theirs = [], 0, 0
    while mine < len(these) and theirs < len(those):
        start, end = max(these[mine][0], those[theirs][0]), min(these[mine][1], those[theirs][1])
        if start < end:
            found.append((start, end))
        if these[mine][1] < those[theirs][1]:
            mine += 1
        else:
            theirs += 1
    return found


def length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)


def packed(events: Sequence[Event]) -> bytes:
    """trace.json.gz, for Perfetto or chrome://tracing."""
    for least in LEAST_US:
        kept = [event for event in events if event.get("dur", least) >= least]
        made = gzip.compress(json.dumps({"traceEvents": kept}).encode(), 6, mtime=0)
        if len(made) <= LARGEST:
            return made
    return b""
