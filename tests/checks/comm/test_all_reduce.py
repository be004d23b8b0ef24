import pytest
import torch

from preflight import registry, testing
from preflight.check import Job, Run
from preflight.checks.comm import all_reduce
from preflight.checks.comm.all_reduce import Facts, Wrong, bandwidths, pattern

KIB, MIB = 1024, 1024 * 1024
WRONG: Wrong = {"elements": 3, "index": 1234, "got": 35.0, "expected": 36.0}
NODES = {"node-0": (0, 1), "node-1": (2, 3)}


def sound(world: int, seconds: float = 0.01) -> dict[int, Facts]:
    return {
        rank: {"sizes": [{"bytes": size, "seconds": seconds, "wrong": None} for size in (KIB, MIB)], "planned": MIB}
        for rank in range(world)
    }


def wrong_on(*ranks: int, world: int = 4) -> dict[int, Facts]:
    facts = sound(world)
    for rank in ranks:
        facts[rank]["sizes"][1]["wrong"] = WRONG
    return facts


@pytest.mark.parametrize("world", [1, 2, 8, 16, 1024])
def test_right_sums_give_no_finding(world: int) -> None:
    nodes = {f"node-{first // 8}": range(first, min(world, first + 8)) for first in range(0, world, 8)}
    assert testing.judge(all_reduce, sound(world), nodes=nodes, backend="nccl") == []


def test_a_rank_with_wrong_sums_is_named() -> None:
    (found,) = testing.judge(all_reduce, wrong_on(2), nodes=NODES)
    assert (found["severity"], found["code"]) == ("fail", "comm.all_reduce.wrong_result")
    assert found["where"] == {"node": "node-1", "rank": 2}
    assert found["noticed_by"] == ""
    assert found["evidence"] == WRONG
    assert found["message"] == "3 of 262,144 sums are wrong, the first at 1,234: 35.0, expected 36"


def test_half_of_the_ranks_are_named_each() -> None:
    assert [one["where"]["rank"] for one in testing.judge(all_reduce, wrong_on(1, 3), nodes=NODES)] == [1, 3]


@pytest.mark.parametrize("ranks", [(0, 1, 2), (0, 1, 2, 3)])
def test_where_most_see_wrong_sums_one_sends_them_and_nobody_is_named(ranks: tuple[int, ...]) -> None:
    (found,) = testing.judge(all_reduce, wrong_on(*ranks), nodes=NODES)
    assert found["where"] == {}
    assert found["noticed_by"] == f"0-{len(ranks) - 1}"
    assert found["message"].endswith(f"{len(ranks)} of 4 ranks see wrong sums: one sends wrong values")


def test_a_world_of_one_has_nobody_else_to_blame() -> None:
    (found,) = testing.judge(all_reduce, wrong_on(0, world=1))
    assert found["where"] == {}


def test_the_smallest_wrong_message_is_told() -> None:
    facts = wrong_on(2)
    facts[2]["sizes"][0]["wrong"] = {**WRONG, "elements": 1, "index": 0}
    (found,) = testing.judge(all_reduce, facts)
    assert found["message"].startswith("1 of 256 sums are wrong")


def test_every_code_is_tested_here() -> None:
    assert set(registry.load(registry.sources()["comm.all_reduce"]).codes) == {"too_slow", "wrong_result"}


@pytest.mark.parametrize(
    ("size", "seconds", "ranks", "algbw", "busbw"),
    [
        (10**9, 1.0, 2, 1.0, 1.0),
        (10**9, 0.01, 8, 100.0, 175.0),
        (4 * 10**9, 0.02, 4, 200.0, 300.0),
        (2**30, 0.005, 1024, 214.7483648, 429.0773109),
        (10**9, 1.0, 1, 1.0, 0.0),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(size: int, seconds: float, ranks: int, algbw: float, busbw: float) -> None:
    """doc/PERFORMANCE.md: algbw = S/t; busbw of an all-reduce = algbw * 2*(n-1)/n; GB is 10^9 bytes."""
    assert bandwidths(size, seconds, ranks) == pytest.approx((algbw, busbw))


def test_the_summary_is_the_slowest_rank_at_the_largest_size_of_all() -> None:
    facts = sound(4)
    facts[2]["sizes"][1]["seconds"] = 0.1
    facts[3]["sizes"].append({"bytes": 16 * MIB, "seconds": 9.0, "wrong": None})
    run = Run(Job("env", 4, "gloo", ()), (0, 1, 2, 3), {})
    assert all_reduce.summarize(facts, run).startswith("1 MiB: algbw 10.5 MB/s, busbw 15.7 MB/s")


# What is sent

CPU = torch.device("cpu")
MOST = 8192


def test_the_sums_of_8192_ranks_are_exact_in_float32() -> None:
    """All partial sums are whole numbers below 2^24, in whatever order they are added."""
    exact = sum(pattern(26, rank, CPU).to(torch.int64) for rank in range(MOST))
    forward = sum(pattern(26, rank, CPU) for rank in range(MOST))
    backward = sum(pattern(26, rank, CPU) for rank in reversed(range(MOST)))
    assert isinstance(exact, torch.Tensor) and isinstance(forward, torch.Tensor)
    assert forward.dtype == torch.float32
    assert torch.equal(forward, exact.to(torch.float32)) and torch.equal(forward.to(torch.int64), exact)
    assert torch.equal(forward, torch.as_tensor(backward))
    assert 0 < int(exact.max()) < 2**24


def test_what_is_sent_differs_along_the_message_and_between_ranks() -> None:
    assert pattern(14, 0, CPU).tolist() == [*range(1, 14), 1]
    assert pattern(3, 63, CPU).tolist() == [64, 128, 192]
    assert torch.equal(pattern(5, 64, CPU), pattern(5, 0, CPU))


@pytest.mark.parametrize("ranks", [1, 2, 64, 65, 1000])
def test_the_right_sum_is_found_right(ranks: int) -> None:
    total = torch.stack([pattern(100, rank, CPU) for rank in range(ranks)]).sum(0)
    assert all_reduce._compare(total, ranks) is None


def test_a_wrong_element_is_found() -> None:
    total = pattern(100, 0, CPU) + pattern(100, 1, CPU)
    total[40] += 1
    total[70] += 1
    assert all_reduce._compare(total, 2) == {"elements": 2, "index": 40, "got": 7.0, "expected": 6.0}


def test_a_sum_that_is_no_number_is_wrong() -> None:
    total = pattern(100, 0, CPU)
    total[7] = float("nan")
    wrong = all_reduce._compare(total, 1)
    assert wrong == {"elements": 1, "index": 7, "got": "nan", "expected": 8.0}
    facts = sound(2)
    facts[1]["sizes"][0]["wrong"] = wrong
    assert "the first at 7: nan, expected 8" in testing.judge(all_reduce, facts)[0]["message"]


def test_a_link_too_slow_for_the_larger_sizes_is_a_warning() -> None:
    facts = sound(4, seconds=2.0)
    for one in facts.values():
        one["planned"] = 16 * MIB
    (found,) = testing.judge(all_reduce, facts)
    assert (found["severity"], found["code"], found["where"]) == ("warn", "comm.all_reduce.too_slow", {})
