"""The six collectives: how to call each, what its ranks send, and what must arrive.

`n` is the number of ranks, and ranks are those of the group. The size S of a message is defined as in nccl-tests
(doc/PERFORMANCE.md, "Bandwidth"; also the bus factors): for all-gather and reduce-scatter the total over all ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from preflight.checks.comm.shared import payload_copy, payload_sum
from preflight.checks.comm.shared.payload_copy import Tag
from preflight.checks.comm.shared.readings import KIB, Wrong

if TYPE_CHECKING:
    import torch

ALIGNED = 16
"""Bytes: like nccl-tests, each rank's part starts at a multiple of this."""
ROOTS, MANY_ROOTS_UP_TO = 8, 64 * KIB
"""Roots of a broadcast to compare, and up to which size: more would take too long on a slow network."""

Call = Callable[[Any, "torch.Tensor", "torch.Tensor", Any, int], Callable[[], None]]
"""(torch.distributed, what is sent, what arrives, group, root) -> the bare call, so that nothing else is timed. It
returns when the operation is done or enqueued on the device."""


@dataclass(frozen=True)
class Operation:
    name: str
    factor: Callable[[int], float]
    """busbw / algbw, by the number of ranks."""
    call: Call
    in_parts: bool = True
    """Whether S consists of equal parts, one per rank."""
    in_place: bool = False
    part_sent: bool = False
    part_received: bool = False
    """Whether a rank receives only one part of S."""
    sent: Callable[[int, int, int], Sequence[Tag]] | None = None
    """Tags of the chunks that a rank sends, from (rank, n, root); None if values are summed."""
    received: Callable[[int, int, int], Sequence[Tag]] | None = None
    addressed: bool = False
    """Whether each receiver is sent different data."""
    many_roots: bool = False
    from_ranks: int = 1
    """The fewest ranks for which the operation does something."""

    def size(self, wished: int, ranks: int) -> int:
        """The size in bytes closest to `wished` that divides into all ranks' parts."""
        if not self.in_parts:
            return wished
        return max(ALIGNED, wished // ranks // ALIGNED * ALIGNED) * ranks

    def bandwidths(self, size: int, seconds: float, ranks: int) -> tuple[float, float]:
        """(algbw, busbw) in GB/s."""
        algbw = size / seconds / 1e9
        return algbw, algbw * self.factor(ranks)


class Message:
    """What one rank sends and receives in an operation of `size` bytes. Raises torch's OutOfMemoryError."""

    def __init__(
        self, operation: Operation, size: int, dtype: str, rank: int, ranks: int, device: "torch.device"
    ) -> None:
        import torch

        of = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
        elements = size // of.itemsize
        self.operation, self.rank, self.ranks = operation, rank, ranks
        self.part = elements // ranks
        self.sent = torch.empty(self.part if operation.part_sent else elements, dtype=of, device=device)
        self.received = self.sent
        if not operation.in_place:
            self.received = torch.empty(self.part if operation.part_received else elements, dtype=of, device=device)

    def fill(self, root: int) -> None:
        """Fills the data to send, and clears the result."""
        operation = self.operation
        self.received.fill_(payload_copy.EMPTY)
        if operation.sent is None:
            payload_sum.fill(self.sent, self.rank, self.ranks)
        elif tags := operation.sent(self.rank, self.ranks, root):
            payload_copy.fill(self.sent, tags)

    def compare(self, root: int) -> Wrong | None:
        """What is wrong after the operation, in ranks of the group; None if nothing."""
        operation = self.operation
        if operation.received is not None:
            tags = operation.received(self.rank, self.ranks, root)
            return payload_copy.compare(self.received, tags, self.ranks, operation.addressed)
        chunk = self.part if operation.part_received else 0
        return payload_sum.compare(self.received, self.rank * chunk, chunk, self.ranks)

    def ready(self, group: Any, root: int = 0) -> Callable[[], None]:
        """A function that runs just the operation, once per call."""
        from torch import distributed as dist

        return self.operation.call(dist, self.sent, self.received, group, root)

    def clear(self) -> None:
        """Sets all to zero: repeated sums of anything else would grow to infinity."""
        self.sent.zero_()

    def roots(self, size: int) -> list[int]:
        """Roots to compare: the first rank and others spread evenly; for large messages only the first."""
        many = min(ROOTS, self.ranks) if self.operation.many_roots and size <= MANY_ROOTS_UP_TO else 1
        return [self.ranks * number // many for number in range(many)]


def finish(device: "torch.device") -> None:
    """Waits until the device has finished its work."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _exchange(dist: Any, sent: "torch.Tensor", received: "torch.Tensor", group: Any, _root: int) -> Callable[[], None]:
    """Exchanges with both neighbors in the ring."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    both = [
        dist.P2POp(dist.isend, sent, (rank + 1) % ranks, group),
        dist.P2POp(dist.irecv, received, (rank - 1) % ranks, group),
    ]

    def exchange() -> None:
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return exchange


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation(
            "all_reduce", lambda n: 2 * (n - 1) / n, in_parts=False, in_place=True,
            call=lambda dist, _sent, received, group, _root: partial(dist.all_reduce, received, group=group),
        ),
        Operation(
            "all_gather", _others, part_sent=True,
            call=lambda dist, sent, got, group, _root: partial(dist.all_gather_into_tensor, got, sent, group=group),
            sent=lambda rank, _n, _root: [(rank, 0)], received=lambda _, n, _root: [(other, 0) for other in range(n)],
        ),
        Operation(
            "reduce_scatter", _others, part_received=True,
            call=lambda dist, sent, got, group, _root: partial(dist.reduce_scatter_tensor, got, sent, group=group),
        ),
        Operation(
            "all_to_all", _others, addressed=True,
            call=lambda dist, sent, got, group, _root: partial(dist.all_to_all_single, got, sent, group=group),
            sent=lambda rank, n, _root: [(rank, other) for other in range(n)],
            received=lambda rank, n, _root: [(other, rank) for other in range(n)],
        ),
        Operation(
            "broadcast", lambda _: 1.0, in_parts=False, in_place=True, many_roots=True,
            call=lambda dist, _sent, received, group, root: partial(dist.broadcast, received, root, group=group),
            sent=lambda rank, _n, root: [(root, 0)] if rank == root else [], received=lambda _, _n, root: [(root, 0)],
        ),
        Operation(
            "send_recv", lambda _: 1.0, _exchange, in_parts=False, addressed=True, from_ranks=2,
            sent=lambda rank, n, _root: [(rank, (rank + 1) % n)],
            received=lambda rank, n, _root: [((rank - 1) % n, rank)],
        ),
    )
}  # fmt: skip
