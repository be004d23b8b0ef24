from contextlib import nullcontext
from typing import Any, Literal

import pytest

from preflight import testing
from preflight.check import Job, Node, Outcome
from preflight.checks.comm import init
from preflight.checks.comm.init import Facts
from preflight.planning import registry
from tests.checks.net import made_hcas


def sound(world: int, late: dict[int, float] | None = None) -> dict[int, Facts]:
    """Everybody waits 40 s for the last; those in `late` waited so much less."""
    total = world * (world + 1) / 2
    return {
        rank: {"init_s": 40.0 - (late or {}).get(rank, 0.0), "first_s": 0.5, "total": total, "again": total}
        for rank in range(world)
    }


@pytest.mark.parametrize("world", [1, 2, 8, 16, 1024])
def test_a_sound_start_gives_no_finding(world: int) -> None:
    per_node = min(world, 8)
    nodes = {f"node-{first // 8}": range(first, first + per_node) for first in range(0, world, 8)}
    assert testing.judge(init, sound(world), nodes=nodes) == []


def test_a_small_delay_is_normal() -> None:
    assert testing.judge(init, sound(4, {2: 29.0})) == []


def test_the_rank_that_waited_least_came_last() -> None:
    (found,) = testing.judge(init, sound(4, {2: 35.0, 1: 3.0}), nodes={"node-0": (0, 1), "node-1": (2, 3)})
    assert (found["severity"], found["code"]) == ("warn", "comm.init.late_rank")
    assert found["where"] == {"node": "node-1", "rank": 2}
    assert found["noticed_by"] == "0-1,3"
    assert found["message"] == "joined 35.0 s after the first rank, expected less than 30 s"


@pytest.mark.parametrize(("slow_s", "count"), [("10", 1), ("40", 0)])
def test_the_threshold_is_an_option(slow_s: str, count: int) -> None:
    assert len(testing.judge(init, sound(4, {2: 20.0}), settings={"slow_s": slow_s})) == count


def test_a_wrong_sum_names_its_rank() -> None:
    facts = sound(4)
    facts[3] |= {"total": 9.0, "again": 9.0}
    (found,) = testing.judge(init, facts, nodes={"node-0": (0, 1), "node-1": (2, 3)})
    assert (found["severity"], found["code"]) == ("fail", "comm.init.wrong_sum")
    assert found["where"] == {"node": "node-1", "rank": 3}
    assert found["message"] == "the first all-reduce gave 9, expected 10"
    assert found["evidence"] == {"confirmed": "2 of 2"}


@pytest.mark.parametrize("look", ["total", "again"])
def test_a_sum_that_is_wrong_once_is_a_failure_and_intermittent(look: Literal["total", "again"]) -> None:
    facts = sound(4)
    facts[3][look] = 9.0
    (found,) = testing.judge(init, facts)
    assert (found["severity"], found["where"]["rank"], found["evidence"]) == ("fail", 3, {"confirmed": "1 of 2"})
    assert "gave 9, expected 10; " in found["message"] and "the fault is intermittent" in found["message"]


def test_of_a_sum_that_is_wrong_on_other_ranks_the_second_time_nobody_is_named() -> None:
    facts = sound(4)
    for rank, look in ((0, "total"), (1, "total"), (2, "again")):
        facts[rank] |= {look: 9.0}  # type: ignore[misc]
    (found,) = testing.judge(init, facts)
    assert found["where"] == {} and "on 3 of 4 ranks" in found["message"]


def test_a_sum_of_a_report_from_before_is_not_confirmed() -> None:
    facts = sound(4)
    facts[3]["total"] = 9.0
    for reading in facts.values():
        del reading["again"]
    (found,) = testing.judge(init, facts)
    assert found["evidence"] == {"confirmed": "1 of 1"} and found["message"].endswith("it was computed once")


def test_the_sum_of_thousands_of_ranks_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_reduce(value: Any, group: Any) -> None:
        for own in range(2, 8193):
            value += own

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    context = made_hcas.context("comm.init")
    monkeypatch.setattr(type(context), "process_group", lambda _: None)
    monkeypatch.setattr(type(context), "collective", lambda *_: nullcontext())
    facts = init.measure(context)
    assert facts["total"] == facts["again"] == 8192 * 8193 / 2


def test_the_sum_is_that_of_the_members() -> None:
    """After ranks were lost the others are numbered anew."""
    facts = dict(zip((0, 5, 9), sound(3).values(), strict=True))
    assert testing.judge(init, facts, nodes={"node-0": range(10)}) == []


def test_where_some_did_not_measure_sums_are_not_judged() -> None:
    facts: dict[int, Facts] = {rank: {"init_s": 1.0, "first_s": 0.5, "total": 4.0} for rank in (0, 2)}
    assert testing.judge(init, facts, outcomes={1: Outcome("skipped", reason="no library")}) == []
    assert [finding["code"] for finding in testing.judge(init, facts)] == ["comm.init.wrong_sum"]


def test_where_all_see_a_wrong_sum_nobody_is_named() -> None:
    facts: dict[int, Facts] = {rank: {"init_s": 1.0, "first_s": 0.5, "total": 99.0} for rank in range(4)}
    (found,) = testing.judge(init, facts)
    assert (found["where"], found["noticed_by"]) == ({}, "0-3")


def test_every_code_is_tested_here() -> None:
    """Those of a failed start in test_failed_init.py."""
    assert set(registry.load(registry.sources()["comm.init"]).codes) == {
        "late_rank", "wrong_sum", "no_interface", "fabric_manager", "driver", "gpu_failed", "shared_memory", "memlock",
        "rdma", "plugin", "versions", "duplicate_gpu", "unreachable", "imex", "open_files",
    }  # fmt: skip


def test_the_deadline_grows_with_the_world() -> None:
    deadline = init.PLAN.deadline_s
    assert callable(deadline)
    two = (Node("a", 0, (0,)), Node("b", 1, (1,)))
    assert [deadline(Job("env", world, "nccl", two)) for world in (2, 64, 8192)] == [60.03125, 61.0, 188.0]
    assert deadline(Job("env", 64, "nccl", two[:1])) == 41.0
    left_s = 120 - 10 - 20 - 45  # by a run of 120 s: for its end, for what came before, for comm.paths
    assert left_s >= init.PLAN.enough * 60.0
