"""The one comparison with the past, on made-up figures; what collectives and links make of it: tests/checks/comm."""

from dataclasses import replace

import pytest

from preflight.check import Job, Node
from preflight.checks.comm import all_gather
from preflight.history import compare
from preflight.history.reference import OneRun
from tests.checks.comm.test_verdict import sound, wrong_on
from tests.history import past
from tests.history.made import BUSBW, GEMM, figure

PLACES = {"GPU-1": "node-0", "GPU-2": "node-1", "GPU-3": "node-1"}


def test_a_gpu_is_compared_with_itself_and_a_new_one_with_nothing() -> None:
    before = OneRun([figure(GEMM, 600.0, {"GPU-1": 700.0, "GPU-2": 500.0})])
    now = [figure(GEMM, 495.0, {"GPU-1": 500.0, "GPU-2": 495.0, "GPU-3": 1.0})]
    (slow,) = compare.slowest_first(compare.comparisons(now, before))
    assert slow.culprit(PLACES) == {"node": "node-0", "uuid": "GPU-1"}
    assert compare.sentence([slow], "the baseline's") == (
        "bf16 GEMM 500 TFLOP/s is 71% of 700, the baseline's (spread 1.4%), expected at least 80%"
    )


@pytest.mark.parametrize(("spread", "now_gb_per_s", "found"), [(0.01, 200.0, 1), (0.2, 200.0, 0), (0.5, 4.0, 1)])
def test_what_ranks_differ_by_anyway_is_not_slower(spread: float, now_gb_per_s: float, found: int) -> None:
    before, now = (replace(figure(BUSBW, value), spread=spread) for value in (400.0, now_gb_per_s))
    slow = compare.slowest_first(compare.comparisons([now], OneRun([before])))
    assert len(slow) == found


def test_the_one_that_lost_most_is_first_and_less_may_be_better() -> None:
    delay = replace(figure(("comm.all_reduce", "latency", "s"), 1.0), less_is_better=True)
    before = OneRun([figure(BUSBW, 400.0), delay])
    now = [figure(BUSBW, 200.0), replace(delay, value=4.0)]
    slow = compare.slowest_first(compare.comparisons(now, before))
    assert [(each.of[1], each.share) for each in slow] == [("latency", 0.25), ("1 GiB fp32 busbw", 0.5)]
    assert compare.sentence(slow, "before").endswith("; 1 more of its figures are slower")


def test_a_record_that_raises_costs_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("sizes")

    monkeypatch.setattr(compare, "recorded", broken)
    job = Job("env", 4, "nccl", (Node("node-0", 0, (0, 1, 2, 3)),))
    answer = past.judged(all_gather, sound(4), wrong_on(sound(4, seconds=1.0), (2,)), job)
    assert [finding["code"] for finding in answer["findings"]] == ["comm.all_gather.wrong_result"]
    assert answer["summary"].endswith("; not compared with the baseline: record() raised KeyError: 'sizes'")
