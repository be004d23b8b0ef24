"""How fast each two nodes exchange bytes, where communication takes most of a step.

All ranks of an all-reduce wait for its slowest link, so its time names no node. Where most of a step under DDP is
exposed communication, and there are three nodes, each two of them exchange as many bytes as the gradients have, all
ranks of a node at once. What is slow is measured again, and the better of both counts.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from preflight.check import Context, pairs
from preflight.checks.train.shared.gathering import gathered

if TYPE_CHECKING:
    from preflight.train_smoke.speed.trace import Exposed

MOST_OF_STEP = 0.5
"""Exposed communication of so much of a step is what its time is lost to."""
FEWEST_NODES = 3
"""Of two nodes there is one pair, and nothing to compare it with."""
ALL_PAIRS = 16
"""Up to so many nodes each meets each; above, twice log2 of their number."""
MOST_BYTES, LEAST_BYTES = {"nccl": 2**26, "gloo": 2**22}, 2**18
"""The least is four times what a shaper may let pass at once (tc-tbf(8): its burst)."""
BUDGET_S, FEWEST_PASSES, MOST_PASSES = 4.0, 2, 5


def times_slower(backend: str) -> float:
    """A link is slow where it is so many times slower than the others: as in comm.rails; on a CPU twice that, since
    ranks that share few cores exchange bytes whenever they get one."""
    return 4.0 if backend == "nccl" else 8.0


NodeRates = Sequence[tuple[int, float]]
"""(the rank that this one exchanged bytes with, bytes a second that came from it): the best of all passes."""


def measure(ctx: Context, exposed: "Exposed", gradients: int) -> NodeRates:
    """All members together; () where communication is no concern, or nothing could be compared."""
    nodes = [ranks for node in ctx.job.nodes if (ranks := [rank for rank in node.ranks if rank in ctx.members])]
    if len(nodes) < FEWEST_NODES:
        return ()
    rows = gathered(ctx, [exposed["exposed"] / max(exposed["step"], 1e-9), exposed["collectives"]])
    if max(row[0] for row in rows) < MOST_OF_STEP:
        return ()
    partners = _partners(ctx, nodes)
    size = _size(ctx, gradients, min(row[1] for row in rows) * len(partners))
    best = _look(ctx, partners, size)
    if _has_slow(gathered(ctx, [*best.values()]), ctx.job.backend):
        again = _look(ctx, partners, size)
        best = {peer: max(rate, best[peer]) for peer, rate in again.items()}
    return [(peer, float(f"{rate:.4g}")) for peer, rate in best.items() if peer >= 0]


def _partners(ctx: Context, nodes: Sequence[Sequence[int]]) -> list[int]:
    """With whom this rank exchanges bytes in each round: the rank with its place on another node; -1, -2, ... where
    there is none."""
    mine = next(number for number, ranks in enumerate(nodes) if ctx.rank in ranks)
    place = nodes[mine].index(ctx.rank)
    met = pairs.partners(mine, len(nodes), ALL_PAIRS)
    return [
        nodes[other][place] if other is not None and place < len(nodes[other]) else -1 - turn
        for turn, other in enumerate(met)
    ]


def _size(ctx: Context, gradients: int, all_s: float) -> int:
    """Bytes of which all passes take about the budget. `all_s`: what the gradients take in all rounds, as they have
    travelled until now."""
    size = max(LEAST_BYTES, min(gradients, MOST_BYTES.get(ctx.job.backend, LEAST_BYTES)))
    while size > LEAST_BYTES and all_s * size / max(gradients, 1) * FEWEST_PASSES > BUDGET_S / 2:
        size //= 2
    return max(size, LEAST_BYTES)


def _look(ctx: Context, partners: Sequence[int], size: int) -> dict[int, float]:
    """Bytes a second by partner, 0.0 where there is none; the best of all passes, of which all members make as many."""
    import torch

    sent, received = (torch.zeros(size // 4, device=ctx.device) for _ in range(2))
    begin, best = time.monotonic(), dict.fromkeys(partners, 0.0)
    for number in range(1, MOST_PASSES + 1):
        for peer in partners:
            gathered(ctx, [0.0])  # all are here
            with ctx.collective("send and receive", f"{size // 1024} KiB"):
                best[peer] = max(best[peer], size / _exchange(ctx, peer, sent, received) if peer >= 0 else 0.0)
        late = max(row[0] for row in gathered(ctx, [time.monotonic() - begin]))
        if number >= FEWEST_PASSES and late > BUDGET_S / 2:
            break
    return best


def _exchange(ctx: Context, peer: int, sent: Any, received: Any) -> float:
    """Seconds until all had come."""
    import torch
    from torch import distributed as dist

    group, number = ctx.process_group(), ctx.members.index(peer)
    begin = time.perf_counter()
    both = [dist.P2POp(dist.isend, sent, number, group), dist.P2POp(dist.irecv, received, number, group)]
    *sending, last = dist.batch_isend_irecv(both)  # nccl has one for both
    last.wait()
    if ctx.device.type == "cuda":
        torch.cuda.synchronize(ctx.device)
    seconds = time.perf_counter() - begin
    for work in sending:
        work.wait()
    return max(seconds, 1e-9)


def _has_slow(rows: Sequence[Sequence[float]], backend: str) -> bool:
    """Whether any rank's rate is far below the others', by all of them: the same on all ranks."""
    rates = [rate for row in rows for rate in row if rate]
    return bool(rates) and min(rates) * times_slower(backend) < max(rates)
