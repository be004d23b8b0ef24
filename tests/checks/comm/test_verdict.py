"""Whom the judge of collectives names, on made-up facts of many ranks; sick ranks are in test_sick_ranks.py."""

import os
import subprocess
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import pytest

from preflight import testing
from preflight.check import Job, Node, Outcome, Run
from preflight.checks.comm import all_gather, all_reduce, all_to_all, broadcast, reduce_scatter, send_recv
from preflight.checks.comm.all_reduce import straggler
from preflight.checks.comm.shared import expected, judge_collective
from preflight.checks.comm.shared.operations import OPERATIONS
from preflight.checks.comm.shared.readings import Whose, Wrong, nominal
from preflight.planning import registry
from tests.history import past
from tests.large import timed

KIB, MIB, GIB = 1024, 1024**2, 1024**3
SUMS, COPIES, ADDRESSED = (all_reduce, reduce_scatter), (all_gather, broadcast), (all_to_all, send_recv)
ALL = (*SUMS, *COPIES, *ADDRESSED)
NODES = {"node-0": (0, 1, 2, 3), "node-1": (4, 5, 6, 7)}
FIRST: Wrong = {
    "elements": 3, "of": 262144, "index": 1234, "got": 35.0, "expected": 36.0, "sender": None, "whose": None
}  # fmt: skip


def sound(world: int = 8, seconds: float = 0.01, planned: int = MIB) -> dict[int, Any]:
    sizes = [(dtype, size) for size in (KIB, MIB) for dtype in ("fp32", "bf16")]
    timed = [
        {"dtype": dtype, "bytes": size, "seconds": seconds, "repeats": 20, "wrong": None} for dtype, size in sizes
    ]  # fmt: skip
    latency = {"bytes": KIB, "p50_s": 0.00015, "p99_s": 0.0004, "repeats": 100}
    facts = {"latency": latency, "planned": planned, "arrival": {"busy_s": 0.002, "wait_s": 0.0005, "core_wait_s": 0.0}}
    return {rank: {**facts, "sizes": [dict(size) for size in timed]} for rank in range(world)}


def times(rank: int, count: float = 0.0) -> Whose:
    return {"what": "times", "rank": rank, "other": None, "times": count}


def wrong_on(facts: dict[int, Any], ranks: Iterable[int], size: int = 2, **more: Any) -> dict[int, Any]:
    for rank in ranks:
        facts[rank]["sizes"][size]["wrong"] = {**FIRST, **more}
    return wrong_again(facts)


def wrong_again(facts: dict[int, Any]) -> dict[int, Any]:
    """What is wrong on any rank was computed once more, and all got the same."""
    tried = {number for of in facts.values() for number, size in enumerate(of["sizes"]) if size["wrong"]}
    for of in facts.values():
        sizes = [of["sizes"][number] for number in sorted(tried)]
        of["second"] = [{key: size[key] for key in ("dtype", "bytes", "wrong")} for size in sizes]
    return facts


def judged(module: ModuleType, facts: dict[int, Any], **more: Any) -> list[dict[str, Any]]:
    return testing.judge(module, facts, **{"nodes": NODES if len(facts) == 8 else None, **more})


def named(module: ModuleType, facts: dict[int, Any]) -> list[tuple[int | None, str]]:
    """(rank, who noticed) of all wrong results."""
    found = judged(module, facts)
    name = module.__name__.rpartition(".")[2]
    assert {(finding["severity"], finding["code"]) for finding in found} <= {("fail", f"comm.{name}.wrong_result")}
    return [(finding["where"].get("rank"), finding["noticed_by"]) for finding in found]


@pytest.mark.parametrize("module", ALL)
@pytest.mark.parametrize("world", [1, 2, 8, 1024])
def test_right_results_give_no_finding(module: ModuleType, world: int) -> None:
    nodes = {f"node-{first // 8}": range(first, min(world, first + 8)) for first in range(0, world, 8)}
    assert judged(module, sound(world), nodes=nodes, backend="nccl") == []


@pytest.mark.parametrize("module", [all_reduce, *COPIES])
def test_where_all_others_got_it_right_one_is_named(module: ModuleType) -> None:
    assert named(module, wrong_on(sound(), (2,))) == [(2, "")]


@pytest.mark.parametrize("module", [all_reduce, *COPIES])
@pytest.mark.parametrize(("ranks", "node"), [((1, 3), "node-0"), ((0, 1, 2, 3), "node-0"), ((3, 4, 5), None)])
def test_of_several_that_may_have_passed_it_on_none_is_named(
    module: ModuleType, ranks: tuple[int, ...], node: str | None
) -> None:
    """In a ring rank 2 may have altered what it sent on to ranks 3 to 5, and has it right itself."""
    (found,) = judged(module, wrong_on(sound(), ranks))
    assert found["where"] == ({"node": node} if node else {}) and found["noticed_by"] == ""
    assert f"{8 - len(ranks)} other ranks right: one of them, or a rank that sends to them" in found["message"]


def test_half_of_1024_ranks_are_one_finding() -> None:
    assert named(all_gather, wrong_on(sound(1024), range(100, 612))) == [(None, "")]


def test_what_is_told_of_a_rank() -> None:
    (found,) = judged(all_reduce, wrong_on(sound(), (5,)))
    assert found["where"] == {"node": "node-1", "rank": 5}
    assert found["message"] == (
        "1 MiB fp32: 3 of 262,144 elements are wrong, the first at 1,234: 35, expected 36; "
        "no rank's contribution explains it; 7 other ranks got it right"
    )
    assert found["evidence"] == {"dtype": "fp32", "bytes": MIB, **FIRST, "confirmed": "2 of 2"}


@pytest.mark.parametrize("module", ALL)
@pytest.mark.parametrize("ranks", [range(5), range(8)])
def test_where_most_are_wrong_and_nothing_explains_it_nobody_is_named(module: ModuleType, ranks: range) -> None:
    (found,) = judged(module, wrong_on(sound(), ranks))
    assert found["where"] == {} and found["noticed_by"] == ""
    assert f"ranks 0-{len(ranks) - 1} of 8 see wrong results, and no rank can be named" in found["message"]
    assert "this rank" not in found["fix"]


@pytest.mark.parametrize("module", ALL)
def test_a_world_of_one_has_nobody_else_to_blame(module: ModuleType) -> None:
    assert named(module, wrong_on(sound(1), (0,))) == [(None, "")]


@pytest.mark.parametrize("module", ALL)
def test_one_of_two_is_not_named_but_the_node_of_both(module: ModuleType) -> None:
    (found,) = judged(module, wrong_on(sound(2), (1,)), nodes={"a": (0, 1)})
    assert found["where"] == {"node": "a"}
    assert found["message"].endswith("rank 1 got it from rank 0: either of them, or their link")
    for sender in (None, 0):
        (found,) = judged(module, wrong_on(sound(2), (1,), sender=sender), nodes={"a": (0,), "b": (1,)})
        assert found["where"] == {}


# Whose contribution


@pytest.mark.parametrize("module", SUMS)
def test_the_rank_whose_contribution_is_wrong_for_all_is_named(module: ModuleType) -> None:
    facts = wrong_on(sound(), range(8), whose=times(3))
    assert named(module, facts) == [(3, "0-2,4-7")]
    assert "rank 3's contribution is missing; 8 of 8 ranks" in judged(module, facts)[0]["message"]
    assert named(module, wrong_on(sound(3), range(3), whose=times(1, 2.0))) == [(1, "0,2")]
    assert named(module, wrong_on(sound(), range(5), whose=times(3))) == [(3, "0-2,4")]


@pytest.mark.parametrize("module", SUMS)
def test_of_two_the_other_one_may_not_have_added_it(module: ModuleType) -> None:
    (found,) = judged(module, wrong_on(sound(2), range(2), whose=times(1)))
    assert found["where"] == {} and found["noticed_by"] == ""
    assert found["message"].endswith("both ranks see wrong results: either of them, or their link")


@pytest.mark.parametrize("module", SUMS)
def test_ranks_that_disagree_on_whose_it_was_name_nobody(module: ModuleType) -> None:
    facts = wrong_on(wrong_on(sound(), range(8), whose=times(3)), (6,), whose=times(2))
    assert named(module, facts) == [(None, "")]
    facts = wrong_on(wrong_on(sound(), range(8), whose=times(3)), (6,), whose=None)
    assert named(module, facts) == [(None, "")]
    facts = wrong_on(wrong_on(sound(), range(8), whose=times(3)), (6,), size=3, whose=times(2))
    assert named(module, facts) == [(None, "")]


def test_ranks_that_lack_what_others_have_got_are_named_themselves() -> None:
    assert named(all_reduce, wrong_on(sound(), (5,), whose=times(3))) == [(5, "")]
    assert named(all_reduce, wrong_on(sound(), (5, 6), whose=times(3))) == [(None, "")]


def test_of_a_wrong_part_of_a_sum_its_receiver_is_not_named_for_it() -> None:
    """Nobody else has seen that part: any rank on its way may have altered it."""
    assert named(reduce_scatter, wrong_on(sound(), (5,))) == [(None, "")]
    assert named(reduce_scatter, wrong_on(sound(), (5,), whose=times(3))) == [(None, "")]
    assert named(reduce_scatter, wrong_on(sound(), (5, 6), whose=times(3))) == [(3, "5-6")]
    assert named(reduce_scatter, wrong_on(sound(), (5,), whose=times(5))) == [(5, "")]
    meant: Whose = {"what": "meant", "rank": 3, "other": None, "times": None}
    assert named(reduce_scatter, wrong_on(sound(), (5,), whose=meant)) == [(5, "")]


def test_the_size_that_says_whose_it_was_is_told() -> None:
    facts = wrong_on(wrong_on(sound(), range(8), size=0), range(8), whose=times(3))
    assert "1 MiB fp32: " in judged(all_reduce, facts)[0]["message"]


@pytest.mark.parametrize("module", COPIES)
def test_the_sender_of_what_is_wrong_everywhere_is_named(module: ModuleType) -> None:
    assert named(module, wrong_on(sound(), range(8), sender=3)) == [(3, "0-2,4-7")]
    others = [rank for rank in range(8) if rank != 3]
    assert named(module, wrong_on(sound(), others, sender=3)) == [(3, "0-2,4-7")]


@pytest.mark.parametrize("module", COPIES)
def test_a_sender_whose_data_some_got_right_is_not_named(module: ModuleType) -> None:
    """It was altered on the way to the others."""
    assert named(module, wrong_on(sound(), (4, 5, 6, 7, 0), sender=3)) == [(None, "")]
    assert named(module, wrong_on(sound(), (4, 5), sender=3)) == [(None, "")]


@pytest.mark.parametrize("module", ADDRESSED)
def test_of_a_pair_neither_is_named(module: ModuleType) -> None:
    (found,) = judged(module, wrong_on(sound(), (5,), sender=4))
    assert found["where"] == {"node": "node-1"}
    (found,) = judged(module, wrong_on(sound(), (4,), sender=3))
    assert found["where"] == {} and "rank 4 got it from rank 3" in found["message"]


def test_the_common_end_of_bad_pairs_is_named() -> None:
    assert named(all_to_all, wrong_on(sound(), (1, 5, 6), sender=3)) == [(3, "1,5-6")]
    assert named(all_to_all, wrong_on(sound(), (5,))) == [(5, "")]
    assert named(all_to_all, wrong_on(sound(), (5,), sender=5)) == [(5, "")]
    assert named(all_to_all, wrong_on(sound(), range(8), sender=3)) == [(3, "0-2,4-7")]


@pytest.mark.parametrize(
    ("whose", "sender", "words"),
    [
        (times(3), None, "rank 3's contribution is missing"),
        (times(3, 2.0), None, "rank 3's contribution is counted 2 times"),
        (
            {"what": "instead", "rank": 3, "other": 4, "times": None}, None,
            "rank 4's values are in the place of rank 3's",
        ),
        ({"what": "meant", "rank": 3, "other": None, "times": None}, None, "it is the part meant for rank 3"),
        (
            {"what": "sent", "rank": 3, "other": None, "times": None}, 4,
            "it is what rank 3 sent, and should be what rank 4 sent",
        ),
        ({"what": "sent", "rank": 3, "other": 6, "times": None}, 3, "it is what rank 3 sent to rank 6; "),
        (None, 4, "it should be what rank 4 sent"),
    ],
)  # fmt: skip
def test_whose_it_was_is_told(whose: Whose | None, sender: int | None, words: str) -> None:
    (found,) = judged(all_gather, wrong_on(sound(), (5,), whose=whose, sender=sender))
    assert words in found["message"]


# Slow


def test_sizes_that_did_not_fit_the_time_are_a_warning() -> None:
    (found,) = judged(all_reduce, sound(4, seconds=2.0, planned=16 * MIB))
    assert (found["severity"], found["code"], found["where"]) == ("warn", "comm.all_reduce.too_slow", {})
    assert found["message"] == ("fp32: 1 MiB took 2 s, and nothing larger fit the check's time, expected 16 MiB to fit")


def test_a_type_that_was_not_measured_is_told() -> None:
    facts = sound(4)
    for of_rank in facts.values():
        of_rank["sizes"] = [size for size in of_rank["sizes"] if (size["dtype"], size["bytes"]) != ("bf16", MIB)]
    (found,) = judged(all_reduce, facts)
    assert found["message"].startswith("bf16: 1 KiB took") and found["message"].endswith("expected 1 MiB to fit")
    for of_rank in facts.values():
        of_rank["planned"] = 16 * MIB
        of_rank["sizes"] = [{**size, "bytes": 16 * MIB} if size["bytes"] == MIB else size for size in of_rank["sizes"]]
        of_rank["sizes"].append({"dtype": "bf16", "bytes": MIB - 16, "seconds": 0.1, "repeats": 3, "wrong": None})
    assert judged(all_reduce, facts) == []


def test_not_even_the_smallest_size_fitted() -> None:
    facts = sound(4)
    for of_rank in facts.values():
        of_rank["sizes"] = []
    (found,) = judged(all_reduce, facts)
    assert "not even the smallest size was timed" in found["message"]


def test_a_type_that_the_backend_lacks_is_not_slow() -> None:
    facts = sound(4)
    for of_rank in facts.values():
        of_rank["sizes"] = [size for size in of_rank["sizes"] if size["dtype"] == "fp32"]
        del of_rank["arrival"]
    skipped = {rank: Outcome("skipped", reason="no bf16") for rank in facts}
    assert judged(all_reduce, facts, outcomes=skipped) == []


def larger(facts: dict[int, Any]) -> dict[int, Any]:
    """Messages of 64 KiB and 64 MiB."""
    for reading in facts.values():
        reading["sizes"] = [{**size, "bytes": 64 * size["bytes"]} for size in reading["sizes"]]
    return facts


def of_ranks(world: int, backend: str = "nccl") -> Job:
    return Job("env", world, backend, (Node("node-0", 0, tuple(range(world))),))


@pytest.mark.parametrize(
    ("backend", "now_s", "found"), [("nccl", 0.012, 0), ("nccl", 0.013, 1), ("gloo", 0.19, 0), ("gloo", 0.21, 1)]
)
def test_a_collective_slower_than_in_the_baseline(backend: str, now_s: float, found: int) -> None:
    before, now, job = larger(sound(4)), larger(sound(4, seconds=now_s)), of_ranks(4, backend)
    told = past.slower(all_gather, before, now, job)
    assert len(told) == found
    least = {"nccl": 80, "gloo": 5}[backend]
    for message in told:
        assert message.startswith("64 MiB fp32 busbw ") and f"expected at least {least}%; 1 more of its" in message


@pytest.mark.parametrize(("now_s", "found"), [(0.019, 0), (0.021, 1)])
def test_small_messages_may_vary_more(now_s: float, found: int) -> None:
    assert len(past.slower(all_gather, sound(4), sound(4, seconds=now_s), of_ranks(4))) == found


def test_the_share_of_the_baseline_is_an_option() -> None:
    now, job = sound(4, seconds=0.03), of_ranks(4)
    assert past.slower(all_gather, sound(4), now, job, baseline_share=0.3) == []
    assert len(past.slower(all_gather, sound(4), sound(4, seconds=0.012), job, baseline_share=0.9)) == 1


def test_the_median_rank_counts_and_the_type_that_lost_most_is_told() -> None:
    facts = sound(4)
    facts[3]["sizes"][2]["seconds"] = 0.1
    assert past.slower(all_gather, sound(4), facts, of_ranks(4)) == []
    for reading in facts.values():
        reading["sizes"][2]["seconds"], reading["sizes"][3]["seconds"] = 0.025, 0.03
    judged = past.judged(all_gather, sound(4), facts, of_ranks(4))["findings"]
    (found,) = judged
    assert (found["severity"], found["code"], found["where"]) == ("warn", "comm.all_gather.slower_than_baseline", {})
    assert found["message"] == (
        "1 MiB bf16 busbw 0.0262 GB/s is 33% of 0.0786, the baseline's (spread 0.0%), expected at least 50%; "
        "1 more of its figures are slower"
    )
    assert found["fix"].startswith("Run preflight diff")


def test_runs_are_compared_at_the_largest_message_that_both_measured() -> None:
    then = sound(4, seconds=0.0001)
    for reading in then.values():
        reading["sizes"] = [size for size in reading["sizes"] if size["bytes"] == KIB]
    (told,) = past.slower(all_gather, then, sound(4), of_ranks(4))
    assert told.startswith("1 KiB ")
    for reading in then.values():
        reading["sizes"] = [{**size, "bytes": 7 * KIB} for size in reading["sizes"]]
    assert past.slower(all_gather, then, sound(4), of_ranks(4)) == []
    assert past.slower(all_gather, sound(1, seconds=0.0001), sound(1), of_ranks(1)) == []


def test_slower_than_the_links_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def busbw(operation: str, size: int, _run: Run) -> expected.ExpectedBusbw:
        asked.append((operation, size))
        return expected.ExpectedBusbw(0.1, (0.12, 0.2), "made up")

    monkeypatch.setattr(expected, "busbw", busbw)
    run = Run(of_ranks(4), tuple(range(4)), {})
    (found,) = all_gather.judge(sound(4), run)
    assert (found.severity, found.code, found.where) == ("warn", judge_collective.BELOW_EXPECTED, {})
    assert found.message == (
        "1 MiB fp32: busbw 78.6 MB/s, expected at least 100 MB/s (usual are 120 MB/s to 200 MB/s: made up)"
    )
    assert asked == [("all_gather", MIB)]
    assert [*all_gather.judge(sound(4, seconds=0.007), run)] == []  # less than usual, and not too little
    assert [*all_gather.judge(sound(4, seconds=0.001), run)] == []  # faster than usual is normal: NVLS
    assert [*all_gather.judge(sound(1), Run(of_ranks(1), (0,), {}))] == []


# Figures


@pytest.mark.parametrize(
    ("name", "size", "seconds", "ranks", "algbw", "busbw"),
    [
        ("all_reduce", 10**9, 1.0, 2, 1.0, 1.0),
        ("all_reduce", 10**9, 0.01, 8, 100.0, 175.0),
        ("all_reduce", 2**30, 0.005, 1024, 214.7483648, 429.0773109),
        ("all_reduce", 10**9, 1.0, 1, 1.0, 0.0),
        ("all_gather", 10**9, 0.01, 8, 100.0, 87.5),
        ("reduce_scatter", 10**9, 0.01, 8, 100.0, 87.5),
        ("all_to_all", 10**9, 0.01, 8, 100.0, 87.5),
        ("broadcast", 10**9, 0.01, 8, 100.0, 100.0),
        ("send_recv", 10**9, 0.01, 8, 100.0, 100.0),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(
    name: str, size: int, seconds: float, ranks: int, algbw: float, busbw: float
) -> None:  # fmt: skip
    """doc/PERFORMANCE.md, "Bus Bandwidth"; GB is 10^9 bytes."""
    assert OPERATIONS[name].bandwidths(size, seconds, ranks) == pytest.approx((algbw, busbw))


@pytest.mark.parametrize(
    ("name", "wished", "ranks", "size"),
    [
        ("all_reduce", KIB, 3, KIB),
        ("all_gather", KIB, 3, 1008),
        ("all_gather", 64 * KIB, 1000, 64000),
        ("all_to_all", KIB, 1024, 16 * KIB),
    ],
)
def test_each_rank_has_an_equal_part_of_at_least_16_bytes(name: str, wished: int, ranks: int, size: int) -> None:
    assert OPERATIONS[name].size(wished, ranks) == size


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (960, "1 KiB"),
        (1024, "1 KiB"),
        (64000, "62.5 KiB"),
        (16 * MIB - 48, "16 MiB"),
        (8 * GIB, "8 GiB"),
        (100, "100 B"),
    ],
)
def test_sizes_are_told_as_they_were_meant(size: int, words: str) -> None:
    assert nominal(size) == words or (size == 64000 and nominal(size) == "62 KiB")


def test_the_summary_is_the_slowest_ranks() -> None:
    facts = sound(4)
    facts[2]["sizes"][2]["seconds"] = 0.1
    facts[1]["latency"] = {"bytes": KIB, "p50_s": 0.0123, "p99_s": 0.2, "repeats": 100}
    facts[3]["sizes"].append({"dtype": "fp32", "bytes": 16 * MIB, "seconds": 9.0, "repeats": 3, "wrong": None})
    run = Run(Job("env", 4, "gloo", ()), (0, 1, 2, 3), {})
    assert all_reduce.summarize(facts, run) == (
        "1 MiB: algbw 10.5 MB/s, busbw 15.7 MB/s; bf16 157 MB/s; 1 KiB in 12.3 ms (p99 200 ms)"
    )
    assert all_reduce.summarize(sound(1), run) == "right up to 1 MiB; 1 rank has no bandwidth"


# Arrival


def arrivals(busy_ms: dict[int, float], world: int = 8, wait_ms: float = 50.0) -> dict[int, Any]:
    facts = sound(world)
    for rank, of_rank in facts.items():
        late = rank in busy_ms
        of_rank["arrival"] = {
            "busy_s": busy_ms.get(rank, 2.0) / 1000,
            "wait_s": 0.0001 if late else wait_ms / 1000,
            "core_wait_s": 0.0,
        }
    return facts


def test_a_late_rank_is_named_and_the_others_noticed() -> None:
    (found,) = judged(all_reduce, arrivals({5: 52.0}))
    assert (found["severity"], found["code"]) == ("warn", "comm.all_reduce.late_rank")
    assert found["where"] == {"node": "node-1", "rank": 5} and found["noticed_by"] == "0-4,6-7"
    assert found["message"] == (
        "computes 52 ms per step, the others 2 ms, expected about the same: "
        "the others wait 50 ms for it, not for the network; "
        "not confirmed: there was no time to measure it again"
    )
    assert found["evidence"]["confirmed"] == "1 of 1"
    assert found["evidence"]["starved"] is False
    assert [finding["where"]["rank"] for finding in judged(all_reduce, arrivals({1: 52.0}, world=2))] == [1]


@pytest.mark.parametrize(
    ("longest_ms", "shortest_ms", "each_s", "asked"),
    [(12.0, 6.0, 0.02, [8]), (75.0, 40.0, 0.1, [8]), (40.0, 9.0, 0.1, [8, 12]), (900.0, 9.0, 1.0, [8, 6])],
    ids=["sound", "all slow", "one may be late", "no time for all"],
)
def test_no_further_steps_where_none_was_long_enough_to_be_late(
    longest_ms: float, shortest_ms: float, each_s: float, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    class MadeUp(dict[Any, Any]):
        def process_group(self) -> None:
            return None

    def steps(_ctx: object, count: int) -> list[tuple[float, float, float]]:
        made.append(count)
        return [(0.01, 0.0, 0.0)] * count

    monkeypatch.setattr(straggler, "_steps", steps)
    monkeypatch.setattr(straggler, "agreed_each", lambda *_: [longest_ms / 1000, -shortest_ms / 1000, each_s])
    ctx: Any = MadeUp({straggler.LATE_S: straggler.LATE_S.default})
    assert straggler._measured(ctx, 20)["busy_s"] == 0.01
    assert made == asked


def test_a_rank_that_is_late_once_is_not_blamed() -> None:
    first, again = arrivals({2: 52.0, 5: 52.0}), arrivals({5: 52.0})
    for rank, of_rank in first.items():
        of_rank["again"] = again[rank]["arrival"]
    blamed, cleared = sorted(judged(all_reduce, first), key=lambda finding: finding["severity"], reverse=True)
    assert blamed["where"]["rank"] == 5 and blamed["evidence"]["confirmed"] == "2 of 2"
    assert (cleared["severity"], cleared["code"], cleared["where"]) == ("info", "comm.all_reduce.late_once", {})
    assert (
        cleared["message"].endswith("in the repeat it computes 2 ms: it is not blamed")
        and "rank 2 computes 52 ms per" in (cleared["message"])
    )


def test_a_rank_whose_core_others_use_is_told_as_that() -> None:
    facts = arrivals({5: 52.0})
    facts[5]["arrival"]["core_wait_s"] = 0.045
    (found,) = judged(all_reduce, facts)
    assert "it waits 45 ms of that for a CPU core that other processes use; the others wait 50 ms" in found["message"]
    assert found["evidence"]["starved"] is True


def test_the_wait_for_a_core_is_counted() -> None:
    """Beside three processes on the same core."""
    core = min(os.sched_getaffinity(0))
    words = ["taskset", "--cpu-list", str(core), sys.executable, "-c"]
    burners = [subprocess.Popen([*words, "while True: pass"]) for _ in range(3)]
    code = (
        "import time; from preflight.sdk.files import core_wait_s as waits\n"
        "start = time.perf_counter(), time.thread_time(), waits()\n"
        "while time.thread_time() - start[1] < 0.2: pass\n"
        "print(waits() - start[2], time.perf_counter() - start[0] - (time.thread_time() - start[1]))"
    )
    try:
        printed = subprocess.run([*words, code], capture_output=True, text=True, check=True, timeout=300).stdout
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    counted, off_core = map(float, printed.split())
    assert off_core > 0.1 and 0.8 < counted / off_core < 1.2


@pytest.mark.parametrize(
    "facts",
    [
        arrivals({}, wait_ms=500.0),  # a slow network: all wait, nobody computes longer
        arrivals({5: 20.0}, wait_ms=18.0),  # below LATE_S
        arrivals({5: 52.0}, wait_ms=1.0),  # nobody waits for it
        arrivals(dict.fromkeys(range(5), 52.0)),  # more than half: nobody is odd
        arrivals({5: 52.0}, world=8, wait_ms=0.1),
    ],
)
def test_nobody_is_late(facts: dict[int, Any]) -> None:
    assert judged(all_reduce, facts) == []


def test_slower_hardware_of_another_generation_is_not_late() -> None:
    facts = arrivals({5: 150.0})
    for rank, of_rank in facts.items():
        of_rank["arrival"]["busy_s"] = 0.150 if rank == 5 else 0.080
    assert judged(all_reduce, facts) == []


def test_1024_ranks_are_judged() -> None:
    facts = wrong_on(arrivals({77: 60.0}, world=1024), range(1024), whose=times(3))
    run = Run(Job("env", 1024, "nccl", ()), tuple(range(1024)), {})
    with timed("comm.all_reduce, 1,024 ranks"):
        assert len([*all_reduce.judge(facts, run)]) == 2


@pytest.mark.parametrize("module", ALL)
def test_every_code_is_tested_here(module: ModuleType) -> None:
    shared = {"too_slow", "wrong_result", "below_expected", "slower_than_baseline"}
    name = f"comm.{module.__name__.rpartition('.')[2]}"
    own = {"late_rank", "late_once"} if module is all_reduce else set()
    assert set(registry.load(registry.sources()[name]).codes) == shared | own
