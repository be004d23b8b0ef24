"""What a sweep decides before and after it measures; the measuring is in test_sick_ranks.py."""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from preflight.check import Skip
from preflight.checks.comm.shared import sweep
from preflight.checks.comm.shared.operations import OPERATIONS, Message
from preflight.checks.comm.shared.readings import Wrong
from preflight.checks.comm.shared.sweep import MAX_MIB, Sweep

KIB, MIB, GIB = 1024, 1024**2, 1024**3
WRONG: Wrong = {
    "elements": 1, "of": 2, "index": 0, "got": 1.0, "expected": 2.0, "sender": None, "whose": None,
}  # fmt: skip


class Asked(dict[Any, Any]):
    """A context: its options, and what else is asked of it."""

    def __init__(self, backend: str, wished: int, members: tuple[int, ...]) -> None:
        super().__init__({MAX_MIB: wished})
        self.job, self.members = SimpleNamespace(backend=backend), members


class Alone(Sweep):
    """A sweep of one rank that agrees with itself."""

    def __init__(self, name: str, backend: str = "nccl", wished: int = 0, members: tuple[int, ...] = (0,)) -> None:
        context: Any = Asked(backend, wished, members)
        self.ctx, self.operation, self.group = context, OPERATIONS[name], None

    def agreed(self, value: float) -> float:
        return value


class Simulated(Sweep):
    """One rank's sweep over a network of known times, which are the same for all; its results may be wrong."""

    def __init__(self, seconds: Callable[[str, int], float], is_wrong: bool) -> None:
        context: Any = Measured("gloo", 0, (0, 1))
        self.ctx, self.operation, self.group = context, OPERATIONS["all_reduce"], None
        self.rank, self.ranks, self.device = 0, 2, torch.device("cpu")
        self.results, self.in_time = [], []
        self.took, self.is_wrong = seconds, is_wrong
        self.collectives: list[str] = []

    def compared(self, message: Message, size: int, what: str) -> Wrong | None:  # noqa: ARG002
        self.collectives.append(f"compared {what}")
        return WRONG if self.is_wrong else None

    def timed(self, call: Callable[[], None], times: int) -> float:  # noqa: ARG002
        dtype, size = self.results[-1]["dtype"], self.results[-1]["bytes"]
        self.collectives.append(f"timed {times} x {dtype} {size}")
        return times * self.took(dtype, size)

    def latency(self, size: int, each_s: float) -> None:  # noqa: ARG002
        self.collectives.append(f"latency {size}")

    def agreed(self, value: float) -> float:
        return value


class Measured(Asked):
    deadline_s = 90.0

    def doing(self, *_: object, **__: object) -> None:
        pass

    def collective(self, *_: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@pytest.mark.parametrize("slow", [KIB, 64 * KIB, MIB, 16 * MIB])
@pytest.mark.parametrize("dtypes", [("fp32",), ("bf16",), ("fp32", "bf16")])
def test_a_rank_that_is_wrong_where_it_is_too_slow_to_be_timed_begins_what_the_others_begin(
    slow: int, dtypes: tuple[str, ...]
) -> None:
    """Else it would be in a collective alone, until the deadline."""
    begun = []
    for is_wrong in (False, True):
        rank = Simulated(lambda dtype, size: 8.0 if size == slow and dtype in dtypes else 0.01, is_wrong)
        rank.all_sizes(16 * MIB, 16 * MIB, [])
        begun.append(rank.collectives)
    assert begun[0] == begun[1]


@pytest.mark.parametrize(
    ("name", "backend", "wished", "free", "top"),
    [
        ("all_reduce", "nccl", 0, 140 * GIB, 8 * GIB),
        ("all_reduce", "nccl", 0, 70 * GIB, 8 * GIB),
        ("all_reduce", "nccl", 0, 40 * GIB, 4 * GIB),
        ("all_reduce", "nccl", 256, 40 * GIB, 256 * MIB),
        ("all_reduce", "gloo", 0, 40 * GIB, 16 * MIB),
        ("reduce_scatter", "gloo", 0, 40 * GIB, 16 * MIB),
        ("reduce_scatter", "gloo", 0, 100 * MIB, MIB),
        ("reduce_scatter", "gloo", 1024, 16 * GIB, 1024 * MIB),
        ("reduce_scatter", "gloo", 0, 0, 1024),
    ],
)
def test_the_largest_message_is_what_memory_allows(
    name: str, backend: str, wished: int, free: int, top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "free_memory", lambda *_: free)
    assert Alone(name, backend, wished).top() == top


def test_ranks_of_the_group_become_those_of_the_job() -> None:
    """After rank 1 was lost, rank 2 is the group's 1."""
    wrong: Wrong = {
        "elements": 1, "of": 2, "index": 0, "got": 1.0, "expected": 2.0, "sender": 1,
        "whose": {"what": "instead", "rank": 2, "other": 1, "times": None},
    }  # fmt: skip
    told = Alone("all_reduce", members=(0, 2, 5)).in_the_job(wrong)
    assert told["sender"] == 2
    assert told["whose"] == {"what": "instead", "rank": 5, "other": 2, "times": None}


def test_a_driver_that_does_not_support_something_is_no_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("CUDA error: operation not supported")

    monkeypatch.setattr(sweep, "Sweep", lambda ctx, operation: Alone(operation.name, ctx.job.backend))
    monkeypatch.setattr(Alone, "top", lambda _: MIB, raising=False)
    monkeypatch.setattr(Alone, "all_sizes", fails, raising=False)
    monkeypatch.setattr(Alone, "ranks", 1, raising=False)
    for backend, error in (("nccl", RuntimeError), ("gloo", Skip)):
        context: Any = Asked(backend, 0, (0,))
        with pytest.raises(error, match="not supported"):
            sweep.run(context, operation="all_reduce")


def test_nothing_of_before_stands_where_a_result_arrives() -> None:
    for operation in OPERATIONS.values():
        message = Message(operation, KIB, "fp32", 1, 2, torch.device("cpu"))
        message.received.fill_(7.0)
        message.fill(0)
        assert 7.0 not in message.received or operation.name == "all_reduce"
        assert message.compare(0) is not None
