"""Times of steps: which phase they count for, and how much communication is exposed."""

import gzip
import itertools
import json
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from preflight.train_smoke.speed import timed_task, trace
from preflight.train_smoke.speed.step_clock import StepClock, StepTimes
from preflight.train_smoke.speed.timed_task import TimedTask
from preflight.train_smoke.speed.training import TimedTraining, flops
from preflight.train_smoke.trainer.names import PHASES

CPU = torch.device("cpu")


def _span(name: str, start: float, end: float, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": start, "dur": end - start}


# Exposed communication


@pytest.mark.parametrize(
    ("intervals", "merged"),
    [([], []), ([(0, 2), (1, 3)], [(0, 3)]), ([(4, 5), (0, 1)], [(0, 1), (4, 5)]), ([(0, 9), (1, 2)], [(0, 9)])],
)
def test_a_union_covers_each_moment_once(intervals: Any, merged: Any) -> None:
    assert trace.union(intervals) == merged


def test_what_two_unions_both_cover() -> None:
    assert trace.common([(0, 4), (6, 9)], [(1, 2), (3, 7)]) == [(1, 2), (3, 4), (6, 7)]
    assert trace.common([(0, 1)], []) == []


def test_communication_that_computation_covers_is_not_exposed() -> None:
    """Two steps: 4 s of collectives, of which two overlap each other, and 1 s of computation beneath them."""
    seconds = 1e6
    events = [
        _span("gloo:all_reduce", 0, 2 * seconds, "user_annotation"),
        _span("gloo:all_reduce", 1 * seconds, 4 * seconds, "user_annotation"),
        _span("aten::mm", 0.5 * seconds, 1.5 * seconds),
        _span("c10d::allreduce_", 2 * seconds, 4 * seconds),
        _span("autograd::engine::evaluate_function: AddmmBackward0", 0, 4 * seconds),
        _span("AddmmBackward0", 0, 4 * seconds),
    ]
    found = trace.exposed(events)
    assert (found["collectives"], found["exposed"], found["count"]) == (2.0, 1.5, 1)


def test_on_a_gpu_kernels_count() -> None:
    events = [
        _span("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 4e6, "kernel"),
        _span("ampere_bf16_gemm", 3e6, 5e6, "kernel"),
        _span("aten::mm", 0, 4e6),
    ]
    found = trace.exposed(events)
    assert (found["collectives"], found["exposed"]) == (2.0, 1.5)


def test_a_large_trace_loses_its_shortest_events() -> None:
    events = [_span(f"aten::op{number}", number, number + 1) for number in range(60_000)]
    events += [_span("gloo:all_reduce", 0, 5e6, "user_annotation"), {"ph": "M", "name": "process_name"}]
    packed = trace.packed(events)
    kept = json.loads(gzip.decompress(packed))["traceEvents"]
    assert len(packed) <= trace.LARGEST and [event["name"] for event in kept] == [
        "gloo:all_reduce",
        "process_name",
    ]


# Phases


class _SlowBackward(nn.Module):
    """A model that takes this long in the backward pass of its first layer."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self._seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: Any = self.first(x)
        hidden.register_hook(lambda _gradient: time.sleep(self._seconds))
        out: torch.Tensor = self.last(hidden)
        return out


def _task(seconds: float) -> TimedTask:
    def batches() -> Any:
        while True:
            yield torch.ones(2, 4)

    return TimedTask(lambda: _SlowBackward(seconds), lambda model, x: model(x).sum(), batches, 2, 0, CPU)


def test_what_backward_takes_is_told_as_backward() -> None:
    training = TimedTraining(_task(0.03), None, None)
    training.warm_up(2)
    found = training.run(3)
    assert max(found["phases"], key=lambda phase: found["phases"][phase]) == "backward"
    assert found["phases"]["wait"] == 0.0 and all(own >= 0.025 for own in found["own"])


def net(times: StepTimes, phase: str) -> float:
    """Without what this process has waited for a core: other tests run beside it."""
    return times.wall[phase] - times.core_wait[phase]


def test_after_the_last_gradient_a_rank_waits() -> None:
    """As under DDP, whose module's hooks come before the model's own."""
    clock, plain = StepClock(CPU), _SlowBackward(0.0)
    outer = nn.Sequential(plain)
    clock.watch(outer, plain)
    for _ in range(2):
        clock.phase("data")
        clock.phase("forward")
        loss = outer(torch.ones(2, 4)).sum()
        clock.phase("backward")
        loss.backward()
        time.sleep(0.03)
        clock.end_of_backward()
        clock.phase("optimizer")
        clock.end()
    for times in clock.read():
        assert times.wall["wait"] >= 0.03 > net(times, "backward")
        assert sum(times.wall.values()) == pytest.approx(times.whole) and set(times.wall) == set(PHASES)
        assert times.own < times.whole - 0.025


def test_hooks_on_gradients_are_the_ranks_own() -> None:
    """As DDP's communication hook: they come after the last gradient, and before anybody waits."""
    task = _task(0.0)
    clock, plain = StepClock(CPU), task.new()
    first = next(plain.parameters())
    first.register_post_accumulate_grad_hook(lambda _: time.sleep(0.03))  # type: ignore[no-untyped-call]
    outer = nn.Sequential(plain)
    clock.watch(outer, plain)
    for _ in range(3):
        clock.phase("data")
        clock.phase("forward")
        loss = outer(torch.ones(2, 4)).sum()
        clock.phase("backward")
        loss.backward()
        clock.end_of_backward()
        clock.phase("optimizer")
        clock.end()
    for times in clock.read()[1:]:
        assert times.wall["backward"] >= 0.03 > net(times, "wait")


def test_where_a_loader_begins_anew_is_noted() -> None:
    batches = itertools.repeat([torch.ones(2, 4)] * 2)
    task = replace(_task(0.0), batches=lambda: iter(next(batches)))
    training = TimedTraining(task, None, None)
    training.warm_up(2)
    assert training.run(5)["begun"] == [0, 2, 4]
    empty = TimedTraining(replace(task, batches=lambda: iter(())), None, None)
    with pytest.raises(ValueError, match="an iterable that can be read again"):
        empty.warm_up(1)


def test_the_built_in_task_is_each_ranks_own() -> None:
    first, second = (timed_task.built_in(rank, CPU) for rank in (0, 1))
    some = [next(task.batches()) for task in (first, first, second)]
    assert some[0].equal(some[1]) and not some[0].equal(some[2])
    assert len({batch.shape for batch in first.batches()}) == 1 and len([*first.batches()]) == timed_task.EPOCH
    assert first.new().tokens.weight.equal(second.new().tokens.weight)  # type: ignore[operator, union-attr, arg-type]
    assert flops(first) > 6 * 128 * 128 * 12 * 4 * 8 * 32 * 0.9


def test_parameters_without_a_gradient_are_left_as_they_are() -> None:
    model = _task(0.0).without({"first.bias"}).new()
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == ["first.bias"]
