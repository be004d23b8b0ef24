"""All-reduce: the right sum in every element on every rank, and how fast it is.

Bandwidths are nccl-tests' (its doc/PERFORMANCE.md): algbw = bytes / seconds, busbw = algbw * 2(n-1)/n, in GB/s of
10^9 bytes; the slowest rank's seconds count.
"""

import math
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from preflight.check import Code, Context, Finding, Level, Plan, Run, Scope, option

if TYPE_CHECKING:
    import torch

PLAN = Plan(Scope.WORLD, Level.STANDARD, deadline_s=90, estimate_s=5.0, needs=("comm.init",))


def _mebibytes(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("a whole number of MiB is expected")
    return int(text)


MAX_MIB = option(_mebibytes, 0, "largest message in MiB; 0 is 16 on gloo and 1024 on nccl")

TOO_SLOW = Code(
    "All-reduce is so slow that its larger sizes could not be measured.",
    fix="Look for the slow link: speed and errors of the interfaces between the nodes (ethtool), MTU, the cabling.",
)
WRONG_RESULT = Code(
    "An all-reduce gave wrong sums.",
    fix="Do not train here. Run it again without this rank's node; test its GPU, memory and links.",
)

KIB, MIB = 1024, 1024 * 1024
SIZES = (KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
WARM_UP, TIMED, LEAST_TIMED = 5, 20, 3
SHARE_PER_SIZE = 0.2
"""Of the deadline: a size that would take longer is not begun, nor any larger one."""


class Wrong(TypedDict):
    elements: int
    index: int
    got: float | str
    """Text where it is no JSON number: nan, inf."""
    expected: float


class Size(TypedDict):
    bytes: int
    seconds: float
    """Of one all-reduce on this rank, the mean of all timed ones."""
    wrong: Wrong | None
    """The first of the elements with a wrong sum."""


class Facts(TypedDict):
    sizes: list[Size]
    planned: int
    """Bytes of the largest message that was to be measured."""


def measure(ctx: Context) -> Facts:
    group = ctx.process_group()
    largest = (ctx[MAX_MIB] or (1024 if ctx.job.backend == "nccl" else 16)) * MIB
    sizes: list[Size] = []
    expected_s = 0.0
    planned = [size for size in SIZES if size <= largest]
    for count in planned:
        if sizes:  # as many times as the bytes grow
            expected_s *= count / sizes[-1]["bytes"]
        repeats = _repeats(expected_s, ctx.deadline_s * SHARE_PER_SIZE)
        if repeats < LEAST_TIMED:
            break
        sizes.append(_one_size(ctx, group, count, repeats))
        expected_s = _agreed(ctx, group, sizes[-1]["seconds"])
    return {"sizes": sizes, "planned": max(planned)}


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from _wrong_results(facts, run)
    last, planned = _last_size(facts), max((one["planned"] for one in facts.values()), default=0)
    if last is not None and last[0] < planned:
        took = f"{_human(last[0])} took {last[1]:.2f} s, and nothing larger fitted the check's time"
        yield TOO_SLOW.warn(f"{took}, expected time for {_human(planned)}")


def _last_size(facts: Mapping[int, Facts]) -> tuple[int, float] | None:
    """(bytes, the slowest rank's seconds) of the largest size that all have measured."""
    index = min((len(one["sizes"]) for one in facts.values()), default=0) - 1
    if index < 0:
        return None
    sizes = [one["sizes"][index] for one in facts.values()]
    return sizes[0]["bytes"], max(size["seconds"] for size in sizes)


def _wrong_results(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    wrong = {rank: found for rank, one in facts.items() if (found := _first_wrong(one))}
    if 0 < len(wrong) <= len(facts) / 2:  # the others got it right, so what was sent was right
        for rank, (size, first) in wrong.items():
            yield WRONG_RESULT.fail(_told(size, first), evidence=dict(first), **run.job.where(rank))
    elif wrong:
        size, first = next(iter(wrong.values()))
        seen = f"{_told(size, first)}; {len(wrong)} of {len(facts)} ranks see wrong sums: one sends wrong values"
        yield WRONG_RESULT.fail(seen, noticed_by=tuple(wrong), evidence=dict(first))


def _told(size: int, wrong: Wrong) -> str:
    first = f"the first at {wrong['index']:,}: {wrong['got']}, expected {wrong['expected']:g}"
    return f"{wrong['elements']:,} of {size // 4:,} sums are wrong, {first}"


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    last = _last_size(facts)
    if last is None:
        return "no size was measured"
    if len(facts) == 1:
        return f"sums right up to {_human(last[0])}; 1 rank has no bandwidth"
    algbw, busbw = bandwidths(*last, len(facts))
    return f"{_human(last[0])}: algbw {_rate(algbw)}, busbw {_rate(busbw)}"


def _rate(gigabytes: float) -> str:
    return f"{gigabytes:.2f} GB/s" if gigabytes >= 0.1 else f"{gigabytes * 1000:.3g} MB/s"


def bandwidths(size: int, seconds: float, ranks: int) -> tuple[float, float]:
    """(algbw, busbw) in GB/s for `size` bytes in `seconds` (nccl-tests, doc/PERFORMANCE.md)."""
    algbw = size / seconds / 1e9
    return algbw, algbw * 2 * (ranks - 1) / ranks


def _first_wrong(one: Facts) -> tuple[int, Wrong] | None:
    """(bytes of the message, what is wrong), of the smallest wrong one."""
    return next(((size["bytes"], size["wrong"]) for size in one["sizes"] if size["wrong"]), None)


def _repeats(expected_s: float, budget_s: float) -> int:
    """How many timed all-reduces fit beside the warm-up."""
    fit = int(budget_s / expected_s) - WARM_UP if expected_s > 0 else TIMED
    return min(TIMED, fit)


def _one_size(ctx: Context, group: Any, size: int, repeats: int) -> Size:
    """Checks one sum, then times zeros: repeated sums of anything else would grow to infinity."""
    import torch
    from torch import distributed as dist

    ctx.doing("all_reduce", size=_human(size))
    values = pattern(size // 4, ctx.group_rank, ctx.device)
    with ctx.collective("all_reduce", _human(size)):
        dist.all_reduce(values, group=group)
        wrong = _compare(values, len(ctx.members))
    values.zero_()
    with ctx.collective(f"all_reduce x{repeats}", _human(size)):
        _loop(values, group, min(WARM_UP, repeats))
        start = time.perf_counter()
        _loop(values, group, repeats)
        seconds = (time.perf_counter() - start) / repeats
    del values
    if ctx.device.type == "cuda":
        torch.cuda.empty_cache()
    return {"bytes": size, "seconds": seconds, "wrong": wrong}


def _loop(values: "torch.Tensor", group: Any, times: int) -> None:
    """All-reduces one after the other; returns when the device has finished them."""
    import torch
    from torch import distributed as dist

    for _ in range(times):
        dist.all_reduce(values, group=group)
    if values.device.type == "cuda":
        torch.cuda.synchronize()


def pattern(elements: int, group_rank: int, device: "torch.device") -> "torch.Tensor":
    """What a rank sends: whole numbers 1 to 13 along the message, times 1 to 64 by rank. Sums over 8,192 ranks stay
    below 2^24, so float32 holds every partial sum exactly and the order of summing cannot matter."""
    import torch

    along = torch.arange(elements, device=device, dtype=torch.int32).remainder_(13).add_(1)
    return along.to(torch.float32).mul_(group_rank % 64 + 1)


def _compare(values: "torch.Tensor", ranks: int) -> Wrong | None:
    unit = pattern(values.numel(), 0, values.device)
    expected = unit.mul_(math.fsum(rank % 64 + 1 for rank in range(ranks)))
    bad = (values != expected).nonzero().flatten()
    if bad.numel() == 0:
        return None
    index = int(bad[0])
    got = float(values[index])
    shown = got if math.isfinite(got) else str(got)
    return {"elements": bad.numel(), "index": index, "got": shown, "expected": float(expected[index])}


def _agreed(ctx: Context, group: Any, seconds: float) -> float:
    """The slowest rank's time: all must take the same decision about the next size."""
    import torch
    from torch import distributed as dist

    slowest = torch.tensor([seconds], device=ctx.device, dtype=torch.float64)
    with ctx.collective("all_reduce", "1 element"):
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
        return float(slowest.item())


def _human(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"
