"""The six collectives: how each is called, what its ranks send, and what must arrive.

`n` is the number of ranks, and ranks are numbers of the group. A message of S bytes is nccl-tests' (doc/PERFORMANCE.md,
"Bandwidth"), which has the bus factors, too: all-gather's and reduce-scatter's S is the total over all ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from preflight.checks.comm.shared import payload_copy, payload_sum
from preflight.checks.comm.shared.payload_copy import Tag
from preflight.checks.comm.shared.readings import KIB, Wrong

if TYPE_CHECKING:
    import torch

ALIGNED = 16
"""Bytes: nccl-tests cuts messages so that each rank's part begins at a multiple of them."""
ROOTS, MANY_ROOTS_UP_TO = 8, 64 * KIB
"""Of a broadcast, whose results are compared, and up to which size: more would take a slow network too long."""

Call = Callable[["torch.Tensor", "torch.Tensor", Any, int], Callable[[], None]]
"""(what is sent, what arrives, group, root): does it once, and returns when it is done or enqueued on the device."""


@dataclass(frozen=True)
class Operation:
    name: str
    factor: Callable[[int], float]
    """busbw / algbw, by the number of ranks."""
    call: Call
    in_parts: bool = True
    """Whether S is made of equal parts, one of each rank."""
    in_place: bool = False
    part_sent: bool = False
    part_received: bool = False
    """Whether it is one part of S only."""
    sent: Callable[[int, int, int], Sequence[Tag]] | None = None
    """Tags of the chunks that a rank sends, from (rank, n, root); None where values are summed."""
    received: Callable[[int, int, int], Sequence[Tag]] | None = None
    addressed: bool = False
    """Whether each receiver is sent something else."""
    many_roots: bool = False
    from_ranks: int = 1
    """Fewest ranks among which it is something."""

    def size(self, wished: int, ranks: int) -> int:
        """Bytes of the message nearest to the size wished that all ranks' parts allow."""
        if not self.in_parts:
            return wished
        return max(ALIGNED, wished // ranks // ALIGNED * ALIGNED) * ranks

    def bandwidths(self, size: int, seconds: float, ranks: int) -> tuple[float, float]:
        """(algbw, busbw) in GB/s."""
        algbw = size / seconds / 1e9
        return algbw, algbw * self.factor(ranks)


class Message:
    """What one rank sends and receives in one operation of so many bytes. Raises torch's OutOfMemoryError."""

    def __init__(
        self, operation: Operation, size: int, dtype: str, rank: int, ranks: int, device: "torch.device"
    ) -> None:  # fmt: skip
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
        """What is sent, and nothing yet where it arrives."""
        operation = self.operation
        self.received.fill_(payload_copy.EMPTY)
        if operation.sent is None:
            payload_sum.fill(self.sent, self.rank, self.ranks)
        elif tags := operation.sent(self.rank, self.ranks, root):
            payload_copy.fill(self.sent, tags)

    def compare(self, root: int) -> Wrong | None:
        """After the operation; ranks in it are the group's."""
        operation = self.operation
        if operation.received is not None:
            tags = operation.received(self.rank, self.ranks, root)
            return payload_copy.compare(self.received, tags, self.ranks, operation.addressed)
        chunk = self.part if operation.part_received else 0
        return payload_sum.compare(self.received, self.rank * chunk, chunk, self.ranks)

    def ready(self, group: Any, root: int = 0) -> Callable[[], None]:
        """The operation alone: each call does it once."""
        return self.operation.call(self.sent, self.received, group, root)

    def clear(self) -> None:
        """Zeros: repeated sums of anything else would grow to infinity."""
        self.sent.zero_()

    def roots(self, size: int) -> list[int]:
        """Spread over the ranks, and the first among them; of a large message the first alone."""
        many = min(ROOTS, self.ranks) if self.operation.many_roots and size <= MANY_ROOTS_UP_TO else 1
        return [self.ranks * number // many for number in range(many)]


def finish(device: "torch.device") -> None:
    """Waits until the device has done what it was given."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


# Calls: looked up in torch.distributed when they are made ready, and then nothing but themselves


def _all_reduce(_sent: "torch.Tensor", received: "torch.Tensor", group: Any, _root: int) -> Callable[[], None]:
    from torch import distributed as dist

    return lambda: dist.all_reduce(received, group=group)


def _all_gather(sent: "torch.Tensor", received: "torch.Tensor", group: Any, _root: int) -> Callable[[], None]:
    from torch import distributed as dist

    return lambda: dist.all_gather_into_tensor(received, sent, group=group)


def _reduce_scatter(sent: "torch.Tensor", received: "torch.Tensor", group: Any, _root: int) -> Callable[[], None]:
    from torch import distributed as dist

    return lambda: dist.reduce_scatter_tensor(received, sent, group=group)


def _all_to_all(sent: "torch.Tensor", received: "torch.Tensor", group: Any, _root: int) -> Callable[[], None]:
    from torch import distributed as dist

    return lambda: dist.all_to_all_single(received, sent, group=group)


def _broadcast(_sent: "torch.Tensor", received: "torch.Tensor", group: Any, root: int) -> Callable[[], None]:
    from torch import distributed as dist

    return lambda: dist.broadcast(received, root, group=group)


def _send_recv(sent: "torch.Tensor", received: "torch.Tensor", group: Any, _root: int) -> Callable[[], None]:
    from torch import distributed as dist

    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    both = [
        dist.P2POp(dist.isend, sent, (rank + 1) % ranks, group),
        dist.P2POp(dist.irecv, received, (rank - 1) % ranks, group),
    ]

    def exchange() -> None:
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return exchange


# What is sent, and what must arrive


def _to_all(rank: int, _ranks: int, _root: int) -> list[Tag]:
    return [(rank, 0)]


def _of_all(_rank: int, ranks: int, _root: int) -> list[Tag]:
    return [(other, 0) for other in range(ranks)]


def _to_each(rank: int, ranks: int, _root: int) -> list[Tag]:
    return [(rank, other) for other in range(ranks)]


def _of_each(rank: int, ranks: int, _root: int) -> list[Tag]:
    return [(other, rank) for other in range(ranks)]


def _by_root(rank: int, _ranks: int, root: int) -> list[Tag]:
    return [(root, 0)] if rank == root else []


def _of_root(_rank: int, _ranks: int, root: int) -> list[Tag]:
    return [(root, 0)]


def _to_next(rank: int, ranks: int, _root: int) -> list[Tag]:
    return [(rank, (rank + 1) % ranks)]


def _of_previous(rank: int, ranks: int, _root: int) -> list[Tag]:
    return [((rank - 1) % ranks, rank)]


def _once(_ranks: int) -> float:
    return 1.0


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("all_reduce", lambda n: 2 * (n - 1) / n, _all_reduce, in_parts=False, in_place=True),
        Operation("all_gather", _others, _all_gather, part_sent=True, sent=_to_all, received=_of_all),
        Operation("reduce_scatter", _others, _reduce_scatter, part_received=True),
        Operation("all_to_all", _others, _all_to_all, sent=_to_each, received=_of_each, addressed=True),
        Operation(
            "broadcast", _once, _broadcast, in_parts=False, in_place=True, sent=_by_root, received=_of_root,
            many_roots=True,
        ),
        Operation(
            "send_recv", _once, _send_recv, in_parts=False, sent=_to_next, received=_of_previous, addressed=True,
            from_ranks=2,
        ),
    )
}  # fmt: skip
