"""Times single links while all links of a step are busy, and the all-reduce of a part of the world.

A link is timed where its data arrives, from the word that asks for them: its sender has said before that it is ready,
so a rank that computes, or comes, late does not make its links look slow. An all-reduce of a part takes what it takes
the last one to come: nobody finishes before all have begun, so the least of its members' times is the part's own.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from preflight.check import Context
from preflight.checks.comm.shared.meetings import Step
from preflight.checks.comm.shared.operations import OPERATIONS, finish
from preflight.checks.comm.shared.readings import KIB, MIB
from preflight.checks.comm.shared.sweep import agreed

if TYPE_CHECKING:
    import torch

PROBE = 256 * KIB
"""Four times what a shaper may let pass at once (tc-tbf(8): its burst), and 20 ms at 100 Mbit/s."""
MOST = {"nccl": 64 * MIB}
MOST_ELSEWHERE = 4 * MIB
LEAST_PASSES, MOST_PASSES = 3, 30
UNEVEN = {"nccl": 1.5}
UNEVEN_ELSEWHERE = 3.0
"""Where the slowest link takes so many times as long as the quickest it is all done again while there is time: a busy
core may have cost the slow one its moment. Below what is found slow (see localize.py)."""


class Facts(TypedDict):
    bytes: int
    """Of one transfer."""
    links: list[tuple[int, float]]
    """(the rank that sent to this one, seconds): the best of all passes."""
    reduce_s: float | None
    """Of an all-reduce of as many bytes in this rank's part of the world, as it took the last one to come, the best;
    None where it is alone in its part."""


@dataclass
class _Way:
    """What goes between two ranks of the world group."""

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
        """Says that it is ready, waits until it is asked, and sends."""
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
        """In a batch: NCCL then uses the communicator that it has, and makes none for the pair."""
        from torch import distributed as dist

        number = self.ctx.members.index(peer)
        for work in dist.batch_isend_irecv([dist.P2POp(getattr(dist, how), values, number, self.group)]):
            work.wait()
        finish(self.ctx.device)

    def meet(self) -> None:
        """All members are here."""
        from torch import distributed as dist

        dist.all_reduce(self.word, group=self.group)
        finish(self.ctx.device)


def measure(
    ctx: Context, part: Sequence[int], steps: Sequence[Step], budget_s: float, *, reduces: bool = True
) -> Facts:
    """`part`: this rank and those that it all-reduces with, if it `reduces`. Takes about `budget_s` where links are
    slow, much less on sound ones. A link that is all too slow still gets its least passes: three of 256 KiB."""
    group = ctx.process_group()
    ctx.doing("trying the links with little")
    _times(ctx, group, steps, PROBE)  # the first use of a link connects it
    first_s = max(_times(ctx, group, steps, PROBE).values(), default=0.0)
    slowest_s = agreed(ctx, group, first_s)
    most = MOST.get(ctx.job.backend, MOST_ELSEWHERE)
    size = _size(slowest_s, budget_s / (LEAST_PASSES * max(len(steps), 1)), most)
    ctx.doing("timing links", size=f"{size // KIB} KiB")
    best = _repeated(ctx, group, partial(_times, ctx, group, steps, size), budget_s)
    links = [(peer, _short(seconds)) for peer, seconds in sorted(best.items())]
    return {"bytes": size, "links": links, "reduce_s": _part_s(ctx, part, size, budget_s) if reduces else None}


def _part_s(ctx: Context, part: Sequence[int], size: int, budget_s: float) -> float | None:
    ctx.doing("timing the parts", size=f"{size // KIB} KiB")
    group = ctx.process_group()
    once = partial(_reduced, ctx, group, ctx.part(tuple(part)), size)
    once()
    best = _repeated(ctx, group, once, budget_s)
    return _short(best[0]) if best else None


def _size(probe_s: float, for_one_s: float, most: int) -> int:
    """Bytes that take so long at most on the slowest link: a power of two between PROBE and `most`."""
    size = most
    while size > PROBE and probe_s * size / PROBE > for_one_s:
        size //= 2
    return size


def _times(ctx: Context, group: Any, steps: Sequence[Step], size: int) -> dict[int, float]:
    """Seconds by the rank that sent to this one."""
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
    """{0: the part's seconds}, {} of a part of one."""
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
    """The best of each. All members decide alike."""
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
    """(the largest, the smallest) of those of all members."""
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
    """GB/s of the all-reduce in a part of so many ranks; None where it was not timed."""
    seconds = reading["reduce_s"]
    return OPERATIONS["all_reduce"].bandwidths(reading["bytes"], seconds, ranks)[1] if seconds else None
