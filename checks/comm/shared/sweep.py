"""Runs one collective over all sizes and types. Compares every element of the result on every rank, times it, then
compares again: a fault may come with heat, or with the reuse of buffers. Times only the collective's calls, on zeros: a
result left over from a timed call shows in the next comparison; one that is wrong only in a timed call does not. All
ranks recompute at the end what was wrong on any."""

import math
import statistics
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from preflight.check import After, Context, Level, NotApplicable, Plan, Scope, Skip, option, ranges
from preflight.checks.comm.shared import expected, smaller_groups
from preflight.checks.comm.shared.operations import OPERATIONS, Message, Operation, finish
from preflight.checks.comm.shared.readings import (
    BF16_FIRST,
    GIB,
    KIB,
    MIB,
    Computed,
    Facts,
    Latency,
    Size,
    SmallerGroup,
    Wrong,
    largest,
    nominal,
)
from preflight.checks.comm.shared.timing import SHARE, Pace, latencies

if TYPE_CHECKING:
    import torch


def _mebibytes(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("expected a whole number of MiB")
    if int(text) > MOST // MIB:
        raise ValueError(f"at most {MOST // MIB} MiB are measured")
    return int(text)


MAX_MIB = option(
    _mebibytes, 0,
    "largest message in MiB, as far as memory allows; 0 is 8192 on nccl, 16 on gloo",
)  # fmt: skip

SIZES = (KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB, 2 * GIB, 4 * GIB, 8 * GIB)
MOST = SIZES[-1]
ON_GLOO = 16 * MIB
"""A run on CPUs takes no longer than it must: two copies of larger messages show memory more than the network."""
OWED, BEYOND_S = {"nccl": 64 * MIB, "gloo": 16 * MIB}, {"nccl": 15.0, "gloo": 1.0}
"""Bytes that every sound network has time for: on 1 Gbit/s an all-reduce of 64 MiB takes a second. A larger size is
measured if it takes at most this many seconds in all."""
SHARE_OF_MEMORY = 8
"""A message takes at most an eighth of free memory: there are two copies, and the backend needs room."""
UNSUPPORTED = ("not support", "not implemented", "calar type", "no backend type")
"""Parts of torch's messages if gloo lacks an operation or a type. NCCL has them all: a driver that lacks something says
"operation not supported", which is a fault."""


def plan(level: Level, facts_version: int = 1) -> Plan:
    """The plan of each check of a collective."""
    after = {"comm.init": After.NEEDS, **dict.fromkeys(expected.READS, After.USES)}
    return Plan(Scope.WORLD, level, deadline_s=90, estimate_s=5.0, after=after, facts_version=facts_version)


def run(ctx: Context, *, operation: str) -> Facts:
    """`measure` for a check of this operation. Raises Skip if the backend does not have it."""
    if len(ctx.members) < OPERATIONS[operation].from_ranks:
        raise NotApplicable("1 rank has no other to send to")
    sweep = Sweep(ctx, OPERATIONS[operation])
    top = sweep.top()
    owed = top if ctx[MAX_MIB] else min(top, max(size for size in SIZES if size <= OWED[ctx.job.backend]))
    facts: Facts = {"sizes": [], "latency": None, "planned": sweep.operation.size(owed, sweep.ranks)}
    try:
        facts["latency"] = sweep.all_sizes(top, owed, facts["sizes"])
        if (second := sweep.computed_again()) is not None:
            facts["second"] = second
            if (groups := sweep.in_smaller_groups(second)) and sweep.rank == 0:  # all ranks have the same
                facts["groups"] = groups
    except (NotImplementedError, RuntimeError) as error:
        if ctx.job.backend != "gloo" or not any(words in str(error) for words in UNSUPPORTED):
            raise
        words = str(error).strip().partition("\n")[0]
        raise Skip(f"{ctx.job.backend} cannot: {words}", facts if facts["sizes"] else None) from None
    return facts


class Sweep:
    """One operation on one rank."""

    def __init__(self, ctx: Context, operation: Operation) -> None:
        self.ctx, self.operation = ctx, operation
        self.group: Any = ctx.process_group()
        self.device = ctx.device
        self.rank, self.ranks = ctx.group_rank, len(ctx.members)
        self.started = time.perf_counter()
        self.results: list[Computed] = []
        """Of all sizes that were begun: the same ones on all ranks."""
        self.in_time: list[tuple[str, int]] = []
        """Types and bytes of those that could be timed: the same on all ranks. (What a rank has found is not: it keeps
        a wrong result that could not be timed.)"""

    def top(self) -> int:
        """Of SIZES the largest that all ranks have memory for."""
        usual = MOST if self.ctx.job.backend == "nccl" else ON_GLOO
        wished = self.ctx[MAX_MIB] * MIB or usual
        free = -self.agreed(-float(free_memory(self.ctx, self.group)))
        return max(size for size in SIZES if size <= max(KIB, min(wished, free / SHARE_OF_MEMORY)))

    def all_sizes(self, top: int, owed: int, found: list[Size]) -> Latency | None:
        """Adds results to `found` as it goes: all sizes in float32, from small to large; in bfloat16 one, and a large
        one if that takes little time. Returns the latency of the smallest."""
        beyond_s = BEYOND_S[self.ctx.job.backend]
        sure = {"fp32": owed, "bf16": min(owed, BF16_FIRST)}
        paces = {
            dtype: Pace(self.ctx.deadline_s, self.operation.size(size, self.ranks), beyond_s)
            for dtype, size in sure.items()
        }
        latency = None
        for wished in (size for size in SIZES if size <= top):
            each_s = self.next_size("fp32", wished, paces, found)
            if each_s is not None and latency is None and self.in_time:
                latency = self.latency(self.in_time[0][1], each_s)
            if wished == min(BF16_FIRST, top):
                self.next_size("bf16", wished, paces, found)
        for size in (largest(self.in_time, "fp32"), owed):
            if self.next_size("bf16", size, paces, found) is not None:
                break
        return latency

    def next_size(self, dtype: str, wished: int, paces: dict[str, Pace], found: list[Size]) -> float | None:
        """Seconds of one operation; None where the size is not begun, or was begun before. All ranks decide alike."""
        size, pace = self.operation.size(wished, self.ranks), paces[dtype]
        begun = (dtype, size) in ((result["dtype"], result["bytes"]) for result in self.results)
        if begun or (dtype == "bf16" and largest(self.in_time, "fp32") < size) or not pace.begins(size):
            return None
        measured, each_s = self.one_size(size, dtype, pace)
        found += [measured] if measured else []
        for other in paces.values():
            other.spent_s = pace.spent_s
        return each_s

    def one_size(self, size: int, dtype: str, pace: Pace) -> tuple[Size | None, float]:
        """(result, seconds of one operation); the result is None if it was right, but took too long to be timed."""
        what = f"{nominal(size)} {dtype}"
        self.ctx.doing(self.operation.name, size=what)
        message = Message(self.operation, size, dtype, self.rank, self.ranks, self.device)
        wrong = self.compared(message, size, what)
        result: Computed = {"dtype": dtype, "bytes": size, "wrong": wrong}
        self.results.append(result)
        message.clear()
        call = message.ready(self.group)
        with self.ctx.collective(f"{self.operation.name}, warm-up", what):
            each_s = self.agreed(self.timed(call, 1))
        more, repeats = pace.note(size, each_s)
        if not repeats:
            return {**result, "seconds": each_s, "repeats": 1} if wrong else None, each_s
        self.in_time.append((dtype, size))
        with self.ctx.collective(f"{self.operation.name} x{repeats}", what):
            self.timed(call, more)
            seconds = self.timed(call, repeats) / repeats
        pace.surer(self.agreed(seconds))
        later = self.compared(message, size, what)  # on all ranks, even if the first result was wrong
        result["wrong"] = wrong or later
        del message, call
        _let_go(self.device)
        return {**result, "seconds": seconds, "repeats": repeats}, each_s

    def computed_again(self) -> list[Computed] | None:
        """Recomputes what was wrong on any rank, from small to large, while there is time; None if all was right."""
        flags = [float(bool(result["wrong"])) for result in self.results]
        anywhere = agreed_each(self.ctx, self.group, flags)
        doubted = [result for result, flag in zip(self.results, anywhere, strict=True) if flag]
        again: list[Computed] = []
        for result in doubted:
            if self.agreed(time.perf_counter() - self.started) > SHARE * self.ctx.deadline_s:
                break
            again.append(self.once_more(result["bytes"], result["dtype"]))
        return again if doubted else None

    def in_smaller_groups(self, second: Sequence[Computed]) -> list[SmallerGroup]:
        """Sums in smaller groups, if the smallest wrong size does not reveal the source."""
        flags = [float(bool(it["wrong"] and not it["wrong"]["whose"])) for it in second]
        if self.operation.received is not None or not second:
            return []
        anywhere = agreed_each(self.ctx, self.group, flags)
        unknown = next((it for it, flag in zip(second, anywhere, strict=True) if flag), None)
        tried: list[SmallerGroup] = []
        while unknown and (parts := smaller_groups.next_parts(self.ctx.members, tried)):
            if self.agreed(time.perf_counter() - self.started) > SHARE * self.ctx.deadline_s:
                break
            mine = next(part for part in parts if self.ctx.rank in part)
            wrong = self.wrong_among(mine, unknown["bytes"], unknown["dtype"])
            own = [float(flag and part == mine) for part in parts for flag in wrong]
            each = [flag > 0 for flag in agreed_each(self.ctx, self.group, own)]
            more = smaller_groups.tried_groups(parts, (each[: len(wrong)], each[len(wrong) :]))
            if more is None:
                return []
            tried += more
        return tried

    def wrong_among(self, part: tuple[int, ...], wished: int, dtype: str) -> list[bool]:
        """Whether this rank gets a wrong sum in a group of these ranks, for each of several times."""
        group, size = self.ctx.part(part), self.operation.size(wished, len(part))
        what = f"{nominal(size)} {dtype}"
        self.ctx.doing(f"{self.operation.name} in a smaller group", size=what)
        message = Message(self.operation, size, dtype, part.index(self.ctx.rank), len(part), self.device)
        call, wrong = message.ready(group), []
        for _ in range(smaller_groups.TIMES):
            message.fill(0)
            with self.ctx.collective(f"{self.operation.name} in smaller groups", what):
                call()
                wrong.append(message.compare(0) is not None)
        return wrong

    def once_more(self, size: int, dtype: str) -> Computed:
        what = f"{nominal(size)} {dtype}"
        self.ctx.doing(f"{self.operation.name}, once more", size=what)
        message = Message(self.operation, size, dtype, self.rank, self.ranks, self.device)
        wrong = self.compared(message, size, what)
        del message
        _let_go(self.device)
        return {"dtype": dtype, "bytes": size, "wrong": wrong}

    def compared(self, message: Message, size: int, what: str) -> Wrong | None:
        """The first wrong result of all roots, in ranks of the job; None if all are right."""
        first = None
        for root in message.roots(size):
            message.fill(root)
            call = message.ready(self.group, root)
            with self.ctx.collective(self.operation.name, what):
                call()
                wrong = message.compare(root)
            first = first or wrong
        return self.in_the_job(first) if first else None

    def in_the_job(self, wrong: Wrong) -> Wrong:
        """Translates ranks of the group, which are places among the members, to ranks of the job."""
        members, whose, sender = self.ctx.members, wrong["whose"], wrong["sender"]
        if whose:
            other = None if whose["other"] is None else members[whose["other"]]
            whose = {**whose, "rank": members[whose["rank"]], "other": other}
        return {**wrong, "sender": None if sender is None else members[sender], "whose": whose}

    def timed(self, call: Callable[[], None], times: int) -> float:
        """Seconds of `times` calls, until the device has done them."""
        import torch

        if self.device.type != "cuda":
            start = time.perf_counter()
            for _ in range(times):
                call()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def latency(self, size: int, each_s: float) -> Latency | None:
        """Times each operation separately, from the call until the device has done it."""
        repeats = latencies(each_s, self.ctx.deadline_s)
        if not repeats:
            return None
        message = Message(self.operation, size, "fp32", self.rank, self.ranks, self.device)
        message.clear()
        call = message.ready(self.group)
        found = []
        with self.ctx.collective(f"{self.operation.name} x{repeats}", nominal(size)):
            for _ in range(repeats):
                start = time.perf_counter()
                call()
                finish(self.device)
                found.append(time.perf_counter() - start)
        found.sort()
        p99_s = found[math.ceil(0.99 * len(found)) - 1]
        return {"bytes": size, "p50_s": statistics.median(found), "p99_s": p99_s, "repeats": repeats}

    def agreed(self, value: float) -> float:
        """The largest of all ranks' values, so that all make the same decision."""
        return agreed(self.ctx, self.group, value)


def agreed(ctx: Context, group: Any, value: float) -> float:
    """The largest of all ranks' values."""
    return agreed_each(ctx, group, [value])[0]


def agreed_each(ctx: Context, group: Any, values: Sequence[float]) -> list[float]:
    """Elementwise the largest of all ranks' values."""
    import torch
    from torch import distributed as dist

    most = torch.tensor(values, device=ctx.device, dtype=torch.float64)
    with ctx.collective("all_reduce", ranges.count(len(values), "element")):
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        return [float(value) for value in most.tolist()]


def free_memory(ctx: Context, group: Any) -> int:
    """Bytes available to this rank: its share of its GPU, or of what the machine and the cgroup have left."""
    import psutil
    import torch

    if ctx.device.type == "cuda":
        return int(torch.cuda.mem_get_info(ctx.device)[0]) // _sharing(ctx, group)
    local_ranks = len([rank for rank in ctx.job.node_of(ctx.rank).ranks if rank in ctx.members])
    return int(min(psutil.virtual_memory().available, *_cgroup_leaves())) // max(1, local_ranks)


def _sharing(ctx: Context, group: Any) -> int:
    """How many ranks share this rank's GPU."""
    import torch
    from torch import distributed as dist

    uuid = str(getattr(torch.cuda.get_device_properties(ctx.device), "uuid", ctx.rank))
    own = torch.tensor([zlib.crc32(uuid.encode())], device=ctx.device)
    all_of = torch.empty(len(ctx.members), device=ctx.device, dtype=own.dtype)
    with ctx.collective("all_gather", "1 element"):
        dist.all_gather_into_tensor(all_of, own, group=group)
        return int((all_of == own).sum())


def _cgroup_leaves() -> Iterator[int]:
    """Bytes that the container's cgroup has left, if it has a limit (cgroup v2, v1)."""
    yield 2**62
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            with open(f"/sys/fs/cgroup/{limit}") as most, open(f"/sys/fs/cgroup/{used}") as now:
                yield max(0, int(most.read()) - int(now.read()))
        except (OSError, ValueError):  # not this version, or "max"
            continue


def _let_go(device: "torch.device") -> None:
    """Frees the allocator's cache, so that the next size can use the memory."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()
