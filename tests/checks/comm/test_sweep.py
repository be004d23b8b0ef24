"""What a sweep decides before and after it measures; the measuring is in test_sick_ranks.py."""

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


@pytest.mark.parametrize(
    ("name", "backend", "wished", "free", "top"),
    [
        ("all_reduce", "nccl", 0, 140 * GIB, 8 * GIB),
        ("all_reduce", "nccl", 0, 70 * GIB, 8 * GIB),
        ("all_reduce", "nccl", 0, 40 * GIB, 4 * GIB),
        ("all_reduce", "nccl", 256, 40 * GIB, 256 * MIB),
        ("all_reduce", "gloo", 0, 40 * GIB, 16 * MIB),
        ("reduce_scatter", "gloo", 0, 40 * GIB, 64 * MIB),
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
