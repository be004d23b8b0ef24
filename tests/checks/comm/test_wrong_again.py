"""What is wrong is computed once more: what two looks say together, and when a second one is taken. On real ranks it is
in test_sick_ranks.py."""

from types import ModuleType
from typing import Any

import pytest

from preflight.checks.comm import all_reduce, all_to_all, broadcast
from preflight.checks.comm.shared import sweep
from preflight.checks.comm.shared.readings import Computed
from tests.checks.comm.test_sweep import Alone
from tests.checks.comm.test_verdict import FIRST, KIB, MIB, judged, named, sound, times, wrong_on


def again(facts: dict[int, Any], ranks: tuple[int, ...], **more: Any) -> dict[int, Any]:
    """In the second look these ranks got it wrong, and no other."""
    for rank, of in facts.items():
        wrong = {**FIRST, **more} if rank in ranks else None
        of["second"] = [{**result, "wrong": wrong} for result in of["second"]]
    return facts


def test_wrong_both_times_is_confirmed() -> None:
    (found,) = judged(all_reduce, wrong_on(sound(), (5,)))
    assert found["evidence"]["confirmed"] == "2 of 2" and found["message"].endswith("got it right")


@pytest.mark.parametrize("module", [all_reduce, broadcast])
def test_wrong_once_is_a_failure_and_intermittent(module: ModuleType) -> None:
    (found,) = judged(module, again(wrong_on(sound(), (5,)), ()))
    assert (found["severity"], found["where"]["rank"]) == ("fail", 5)
    assert found["evidence"]["confirmed"] == "1 of 2"
    assert found["message"].endswith("it was wrong once: the fault is intermittent, a run that passes proves nothing")


@pytest.mark.parametrize("module", [all_reduce, broadcast])
def test_where_another_rank_gets_it_wrong_the_second_time_neither_is_named(module: ModuleType) -> None:
    """Who sends to both may alter it."""
    (found,) = judged(module, again(wrong_on(sound(), (2,)), (5,)))
    assert found["where"] == {} and found["evidence"]["confirmed"] == "2 of 2"
    assert "ranks 2,5 got it wrong, 6 other ranks right" in found["message"]


def test_what_was_wrong_the_second_time_says_whose_it_is() -> None:
    facts = again(wrong_on(sound(), range(8)), tuple(range(8)), whose=times(3))
    assert named(all_reduce, facts) == [(3, "0-2,4-7")]


def test_each_finding_has_its_own_proof() -> None:
    found = judged(all_to_all, again(wrong_on(sound(), (1, 5)), (5,)))
    assert [(it["where"]["rank"], it["evidence"]["confirmed"]) for it in found] == [(1, "1 of 2"), (5, "2 of 2")]


def test_without_time_it_is_not_confirmed() -> None:
    facts = wrong_on(sound(), (5,))
    for of in facts.values():
        of["second"] = []
    (found,) = judged(all_reduce, facts)
    assert found["message"].endswith("; not confirmed: there was no time to recompute it")
    assert (found["where"]["rank"], found["evidence"]["confirmed"]) == (5, "1 of 1")
    for of in facts.values():
        del of["second"]  # a report from before
    (found,) = judged(all_reduce, facts)
    assert found["message"].endswith("; not confirmed: it was computed once")


class Again(Alone):
    """Has been through two sizes, of which this rank got so many wrong."""

    def __init__(self, wrong: int, deadline_s: float) -> None:
        super().__init__("all_reduce")
        self.ctx.deadline_s, self.started, self.tried = deadline_s, 0.0, list[int]()  # type: ignore[misc]
        sizes = [(KIB, wrong > 0), (MIB, wrong > 1)]
        self.results: list[Any] = [{"dtype": "fp32", "bytes": size, "wrong": bad} for size, bad in sizes]

    def once_more(self, size: int, dtype: str) -> Computed:
        self.tried.append(size)
        return {"dtype": dtype, "bytes": size, "wrong": None}


@pytest.mark.parametrize(
    ("own", "others", "deadline_s", "tried"),
    [
        (0, (0.0, 0.0), 1e12, None),
        (1, (0.0, 0.0), 1e12, [KIB]),
        (0, (0.0, 1.0), 1e12, [MIB]),
        (1, (0.0, 1.0), 1e12, [KIB, MIB]),
        (2, (1.0, 1.0), 0.0, []),
    ],
)
def test_all_ranks_compute_again_what_was_wrong_on_any(
    own: int, others: tuple[float, float], deadline_s: float, tried: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agreed_each(_ctx: object, _group: object, values: list[float]) -> list[float]:
        return [max(pair) for pair in zip(values, others, strict=True)]

    monkeypatch.setattr(sweep, "agreed_each", agreed_each)
    alone = Again(own, deadline_s)
    found = alone.computed_again()
    assert (found is None) == (tried is None) and alone.tried == (tried or [])
    assert [result["bytes"] for result in found or []] == (tried or [])
