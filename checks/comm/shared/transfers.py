"""Times single links while all links of a step are busy, and the all-reduce of parts of the world.

The receiver times a link, starting with its request for data: the sender has said before that it is ready, so a rank
that is late does not make its links look slow. An all-reduce of a part takes as long as it takes the last to arrive: no
rank finishes before all have started, so the shortest of its members' times is the part's.

Before a rank is blamed, what was slow is measured again: all ranks then know all times, and choose the same.
"""

import statistics
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from preflight.check import Context, Figure, Job, Run, pairs
from preflight.checks.comm.shared.meetings import Step, steps_again
from preflight.checks.comm.shared.operations import OPERATIONS, finish
from preflight.checks.comm.shared.readings import KIB, MIB
from preflight.checks.comm.shared.sweep import agreed

if TYPE_CHECKING:
    import torch

PROBE = 256 * KIB
"""Four times a shaper's usual burst (tc-tbf(8)), and 20 ms at 100 Mbit/s."""
MOST = {"nccl": 64 * MIB}
MOST_ELSEWHERE = 4 * MIB
LEAST_PASSES, MOST_PASSES = 3, 30
KEPT = {"nccl": 0.8, "gloo": 0.2}
"""The share of its rate (best of all passes) that a sound link keeps between runs."""
UNEVEN = {"nccl": 1.5}
UNEVEN_ELSEWHERE = 3.0
"""If the slowest link takes this many times as long as the fastest, all is repeated while there is time: a busy core
may have delayed the slow one. Below the limit in localize.py."""
TIME_FOR_TWO = 0.3
"""Share of the deadline: only what took no longer is measured again. The process group gives up at 0.7 of it."""


class Look(TypedDict):
    links: list[tuple[int, float]]
    """(the rank that sent to this one, seconds): the best of all passes."""
    reduce_s: float | None
    """Best time of an all-reduce of as many bytes in this rank's part of the world, for the last to arrive; None if the
    rank is alone in its part, or it was not timed."""


class Facts(Look):
    bytes: int
    """Size of one transfer."""
    again: NotRequired[Look | None]
    """A second measurement of what was slow; None if there was no time. Absent if nothing was slow."""


@dataclass(frozen=True)
class Doubt:
    """What would be blamed after the first measurement."""

    links: frozenset[pairs.Pair] = frozenset()
    parts: frozenset[int] = frozenset()
    """Parts of the world (rails or nodes) whose own all-reduce is slow."""

    def __bool__(self) -> bool:
        return bool(self.links or self.parts)


Doubting = Callable[[Mapping[int, Facts], Run], Doubt]


def record(reading: Facts, job: Job) -> Iterator[Figure]:
    if seconds := [seconds for _, seconds in reading["links"] if seconds > 0]:
        speed = reading["bytes"] / statistics.median(seconds) / 1e9
        yield Figure("rate of a link", speed, "GB/s", least=KEPT[job.backend])


@dataclass
class _Way:
    """Transfers between two ranks of the world group."""

    ctx: Context
    group: Any
    size: int
    word: "torch.Tensor" = field(init=False)
    values: "torch.Tensor" = field(init=False)

    def __post_init__(self) -> None:
        import torch

        self.word = torch.zeros(1, device=self.ctx.device)
        self.values = torch.zeros(self.size // 4, device=self.ctx.device)

    def send(self, peer: int) -> None:
        """Says that it is ready, waits for the request, and sends."""
        self.ctx.doing(f"sending {self.size // KIB} KiB", peer_rank=peer)
        self._pass("isend", self.word, peer)
        self._pass("irecv", self.word, peer)
        self._pass("isend", self.values, peer)

    def receive(self, peer: int) -> float:
        """Seconds."""
        self.ctx.doing(f"receiving {self.size // KIB} KiB", peer_rank=peer)
        self._pass("irecv", self.word, peer)
        start = time.perf_counter()
        self._pass("isend", self.word, peer)
        self._pass("irecv", self.values, peer)
        return time.perf_counter() - start

    def _pass(self, how: str, values: "torch.Tensor", peer: int) -> None:
        """Sends or receives in a batch: NCCL then uses its existing communicator and creates none for the pair."""
        from torch import distributed as dist

        number = self.ctx.members.index(peer)
        for work in dist.batch_isend_irecv([dist.P2POp(getattr(dist, how), values, number, self.group)]):
            work.wait()
        finish(self.ctx.device)

    def meet(self) -> None:
        """Waits until all members are here."""
        from torch import distributed as dist

        dist.all_reduce(self.word, group=self.group)
        finish(self.ctx.device)


def measure(
    ctx: Context,
    part: Sequence[int],
    steps: Sequence[Step],
    budget_s: float,
    doubt: Doubting,
    *,
    reduces: bool = True,
    with_each_other: bool = False,
) -> Facts:
    """`part`: this rank and those it all-reduces with, if it `reduces`. Takes about `budget_s` if links are slow, much
    less on sound ones; as long again if the facts of all ranks are in `doubt`. Even a very slow link gets the minimum:
    three passes of 256 KiB. `with_each_other`: see meetings.steps_again."""
    started = time.perf_counter()
    group = ctx.process_group()
    ctx.doing("trying the links with little")
    _times(ctx, group, steps, PROBE)  # the first use of a link connects it
    first_s = max(_times(ctx, group, steps, PROBE).values(), default=0.0)
    slowest_s = agreed(ctx, group, first_s)
    most = MOST.get(ctx.job.backend, MOST_ELSEWHERE)
    size = _size(slowest_s, budget_s / (LEAST_PASSES * max(len(steps), 1)), most)
    first = _look(ctx, part if reduces else (), steps, size, budget_s)
    own: Facts = {"bytes": size, "links": first["links"], "reduce_s": first["reduce_s"]}
    doubted = doubt(_everyones(ctx, steps, own), Run(ctx.job, ctx.members, {}, ctx.options))
    more = steps_again(steps, doubted.links, ctx.job, with_each_other=with_each_other)
    if not _is_same(ctx, [more, bool(doubted.parts)]) or not doubted:
        return own
    if agreed(ctx, group, time.perf_counter() - started) > TIME_FOR_TWO * ctx.deadline_s:
        return {**own, "again": None}
    return {**own, "again": _look(ctx, part if doubted.parts else (), more, size, budget_s)}


def _look(ctx: Context, part: Sequence[int], steps: Sequence[Step], size: int, budget_s: float) -> Look:
    """One measurement. `part`: () if no all-reduce is to be timed."""
    group = ctx.process_group()
    ctx.doing("timing links", size=f"{size // KIB} KiB")
    best = _repeated(ctx, group, partial(_times, ctx, group, steps, size), budget_s)
    links = [(peer, _short(seconds)) for peer, seconds in sorted(best.items())]
    return {"links": links, "reduce_s": _part_s(ctx, part, size, budget_s) if part else None}


def _is_same(ctx: Context, what: object) -> bool:
    """Whether all members have the same value. If a sick rank got different times, a second measurement would hang."""
    most, least = _span(ctx, ctx.process_group(), [float(zlib.crc32(repr(what).encode()))])
    return most == least


def _everyones(ctx: Context, steps: Sequence[Step], own: Facts) -> dict[int, Facts]:
    """The facts of all members, on every member."""
    import torch
    from torch import distributed as dist

    group, mine = ctx.process_group(), dict(own["links"])
    senders = [{receiver: sender for sender, receiver in step.items()} for step in steps]
    times = [mine.get(sender_of.get(ctx.rank, -1), 0.0) for sender_of in senders]
    local_times = torch.tensor([*times, own["reduce_s"] or 0.0], device=ctx.device, dtype=torch.float64)
    times_by_all = torch.empty(len(ctx.members) * len(local_times), device=ctx.device, dtype=torch.float64)
    with ctx.collective("all_gather", f"{len(local_times)} elements"):
        dist.all_gather_into_tensor(times_by_all, local_times, group=group)
        rows = times_by_all.view(len(ctx.members), -1).tolist()
    found: dict[int, Facts] = {}
    for rank, row in zip(ctx.members, rows, strict=True):
        links = [(of[rank], seconds) for of, seconds in zip(senders, row, strict=False) if rank in of]
        found[rank] = {"bytes": own["bytes"], "links": links, "reduce_s": row[-1] or None}
    return found


def _part_s(ctx: Context, part: Sequence[int], size: int, budget_s: float) -> float | None:
    ctx.doing("timing the parts", size=f"{size // KIB} KiB")
    group = ctx.process_group()
    once = partial(_reduced, ctx, group, ctx.part(tuple(part)), size)
    once()
    best = _repeated(ctx, group, once, budget_s)
    return _short(best[0]) if best else None


def _size(probe_s: float, for_one_s: float, most: int) -> int:
    """Bytes that take at most `for_one_s` on the slowest link: a power of two between PROBE and `most`."""
    size = most
    while size > PROBE and probe_s * size / PROBE > for_one_s:
        size //= 2
    return size


def _times(ctx: Context, group: Any, steps: Sequence[Step], size: int) -> dict[int, float]:
    """Seconds by sending rank."""
    way, found = _Way(ctx, group, size), {}
    for step in steps:
        senders = {receiver: sender for sender, receiver in step.items()}
        with ctx.collective("all_reduce, send and receive", f"{size // KIB} KiB"):
            way.meet()
            if ctx.rank in step:
                way.send(step[ctx.rank])
            elif ctx.rank in senders:
                found[senders[ctx.rank]] = way.receive(senders[ctx.rank])
    return found


def _reduced(ctx: Context, group: Any, part_group: Any, size: int) -> dict[int, float]:
    """{0: the part's seconds}; {} for a part of one."""
    import torch
    from torch import distributed as dist

    values, seconds = torch.zeros(size // 4, device=ctx.device), torch.zeros(1, device=ctx.device, dtype=torch.float64)
    with ctx.collective("all_reduce in all parts", f"{size // KIB} KiB"):
        dist.all_reduce(seconds, group=group)  # all members are here
        finish(ctx.device)
        start = time.perf_counter()
        dist.all_reduce(values, group=part_group)
        finish(ctx.device)
        seconds.fill_(time.perf_counter() - start)
        dist.all_reduce(seconds, op=dist.ReduceOp.MIN, group=part_group)
        return {0: float(seconds.item())} if part_group.size() > 1 else {}


def _repeated(ctx: Context, group: Any, once: Callable[[], dict[int, float]], budget_s: float) -> dict[int, float]:
    """The best time of each. All members decide the same."""
    started = time.perf_counter()
    best: dict[int, float] = {}
    for number in range(1, MOST_PASSES + 1):
        best = {key: min(seconds, best.get(key, seconds)) for key, seconds in once().items()}
        took_s = (time.perf_counter() - started) * (number + 1) / number
        if number < LEAST_PASSES:
            continue
        slowest, quickest = _span(ctx, group, [*best.values()])
        late = agreed(ctx, group, took_s)
        uneven = UNEVEN.get(ctx.job.backend, UNEVEN_ELSEWHERE)
        if slowest < uneven * quickest or late > budget_s:
            break
    return best


def _span(ctx: Context, group: Any, values: Sequence[float]) -> tuple[float, float]:
    """(largest, smallest) of all members' values."""
    import torch
    from torch import distributed as dist

    ends = [max(values, default=0.0), -min(values, default=float("inf"))]
    both = torch.tensor(ends, device=ctx.device, dtype=torch.float64)
    with ctx.collective("all_reduce", "2 elements"):
        dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
        return float(both[0].item()), -float(both[1].item())


def _short(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def busbw(reading: Facts, ranks: int) -> float | None:
    """GB/s of the all-reduce in a part of `ranks` ranks; None if it was not timed."""
    seconds = reading["reduce_s"]
    return OPERATIONS["all_reduce"].bandwidths(reading["bytes"], seconds, ranks)[1] if seconds else None
