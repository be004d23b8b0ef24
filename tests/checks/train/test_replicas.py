"""Replicas whose bits differ are the cause, whatever else differs: on made-up facts."""

from typing import TYPE_CHECKING

import pytest
import torch

from preflight.train_smoke.trainer import replicas
from tests.checks.train.made_trainings import STEPS, apart, bend, furthest, measured, sound, spoil
from tests.checks.train.test_beyond import VARIANT, gradient, judge, made

if TYPE_CHECKING:
    from preflight.train_smoke.strategies.training import Facts

LAST = STEPS - 1


def differ(facts: "dict[int, Facts]", strategy: str, *sides: tuple[list[int], list[int]]) -> None:
    """`sides`: (odd, alike), one parameter each."""
    for rank in facts:
        facts[rank]["variants"][VARIANT[strategy]]["replicas"] = {
            "differing": [
                {"parameter": f"norm.{place}", "odd": odd, "alike": alike} for place, (odd, alike) in enumerate(sides)
            ],
            "count": len(sides),
        }


def test_where_all_numbers_are_right_the_odd_rank_is_named() -> None:
    facts = made("tp")
    differ(facts, "tp", ([1], [0, 2, 3]), ([1], [0, 2, 3]))
    (found,) = judge(facts, "tp")
    assert (found["slug"], found["where"]["rank"], found["noticed_by"]) == ("out_of_sync", 1, "0,2-3")
    words = f"after step {LAST} the bits of norm.0 on rank 1 differ from those on ranks 0,2-3; the same with 1 other"
    assert words in found["message"]


@pytest.mark.parametrize("sides", [([1, 3], [0, 2]), ([1], [0]), ([1, 2, 3], [0])], ids=["2-2", "pair", "all"])
def test_of_sides_of_equal_size_none_is_named_and_none_is_acquitted(sides: tuple[list[int], list[int]]) -> None:
    facts = made("tp")
    differ(facts, "tp", sides)
    (found,) = judge(facts, "tp")
    assert "rank" not in found["where"] and found["noticed_by"] == ""
    gradient(facts, "tp", 2.0, 1.7)
    (found,) = judge(facts, "tp")
    assert found["slug"] == "wrong_gradient" and "rank" not in found["where"]
    assert found["noticed_by"] == ("2-3" if sides == ([1], [0]) else "")
    assert "so the cause is there" in found["message"] and "the bits of norm.0 on rank" in found["message"]


def test_a_wrong_gradient_is_the_odd_ranks() -> None:
    facts = made("tp")
    gradient(facts, "tp", 2.0, 1.7)
    differ(facts, "tp", ([2], [0, 1, 3]))
    (found,) = judge(facts, "tp")
    assert (found["slug"], found["where"]["rank"], found["noticed_by"]) == ("wrong_gradient", 2, "0-1,3")
    assert "170.0% off" in found["message"] and "the bits of norm.0 on rank 2 differ" in found["message"]


def test_of_ranks_that_differ_first_only_the_one_with_other_bits_is_blamed() -> None:
    """Ranks 0 and 1 share the model, rank 3 keeps what rank 1 does."""
    facts = made("hybrid")
    for rank in (0, 1):
        bend(measured(facts, rank, "hsdp"), "losses", 4, 1.5)
        apart(facts, rank, "hsdp")["whole"]["end"] = furthest(0.3, "head.weight")
    assert [found["where"].get("rank") for found in judge(facts, "hybrid")] == [None]
    differ(facts, "hybrid", ([3], [1]))
    assert [found["where"]["rank"] for found in judge(facts, "hybrid")] == [1]


def test_a_rank_that_is_blamed_by_its_numbers_stays_so_beside_another_pair() -> None:
    facts = made("hybrid")
    bend(measured(facts, 0, "hsdp"), "losses", 0, 1.5)
    differ(facts, "hybrid", ([3], [1]))
    assert [found["where"]["rank"] for found in judge(facts, "hybrid")] == [0]


def test_a_piece_of_the_gradient_that_alone_is_wrong_names_its_rank_but_for_a_pipelines() -> None:
    for strategy, wanted in (("tp", 2), ("pp", None)):
        facts = made(strategy)
        spoil(facts, 0, 2.0, VARIANT[strategy])
        for rank in facts:
            if strategy == "tp":
                facts[rank]["variants"]["matrices"]["sizes"] = {"tensor-parallel ranks": 4}
            own = {moment: furthest(0.0) for moment in ("start", "gradient", "end", "state")}
            own["gradient"] = furthest(0.3 if rank == 2 else 1e-7, "head.weight")
            apart(facts, rank, VARIANT[strategy])["own"] = own
        (found,) = judge(facts, strategy)
        assert (found["slug"], found["where"].get("rank")) == ("wrong_gradient", wanted)


BITS = torch.randn(1001, generator=torch.Generator().manual_seed(1))


def exchanged(one: int, other: int) -> torch.Tensor:
    values = BITS.clone()
    values[one], values[other] = BITS[other], BITS[one]
    return values


def flipped(place: int, bit: int) -> torch.Tensor:
    values = BITS.clone()
    values.view(torch.int32)[place] ^= 1 << bit
    return values


def test_the_sum_of_bits_sees_order_and_each_bit() -> None:
    others = [BITS.roll(1), BITS.flip(0), exchanged(0, 1000), exchanged(4, 5), BITS.roll(500), -BITS]
    others += [flipped(place, bit) for place in (0, 7, 1000) for bit in (0, 17, 30)]
    sums = [replicas._bits(values) for values in (BITS, *others)]
    assert len(set(sums)) == len(sums) and replicas._bits(BITS.clone()) == sums[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int8, torch.bool])
def test_each_type_has_bits(dtype: torch.dtype) -> None:
    values = (BITS * 50).to(dtype)
    values[0] = values[0] + 1 if dtype is not torch.bool else False
    values[1] = values[0] + 1 if dtype is not torch.bool else True
    swapped = values.clone()
    swapped[0], swapped[1] = values[1].clone(), values[0].clone()
    assert replicas._bits(values) != replicas._bits(swapped)


def test_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = replicas._bits(BITS)
    monkeypatch.setattr(replicas, "AT_ONCE", 100)
    assert replicas._bits(BITS) == whole and replicas._bits(BITS[:0]) == 0 and -(2**63) <= whole < 2**63


def test_ranks_with_equal_pieces_are_silent() -> None:
    assert judge(made("tp"), "tp") == [] and not sound(2)[0]["variants"]["plain"]["replicas"]


# A rank's own part of a layer's product


def first_products(facts: "dict[int, Facts]", strategy: str, **places: int) -> None:
    """`places`: where the first wrong one of a rank is, by "rank_1"."""
    for name, place in places.items():
        facts[int(name.removeprefix("rank_"))]["variants"][VARIANT[strategy]]["product"] = {
            "layer": "blocks.1.down", "step": place // 13, "place": place, "off": 0.25,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("places", "wanted"),
    [
        ({"rank_1": 5, "rank_0": 6, "rank_2": 6, "rank_3": 6}, 1), ({"rank_2": 5}, 2),
        ({"rank_0": 5, "rank_1": 5, "rank_2": 5, "rank_3": 5}, None), ({"rank_0": 5, "rank_2": 5}, None),
        ({"rank_1": 14}, None),
    ],
    ids=["first", "alone", "all", "two", "later"],
)  # fmt: skip
def test_the_rank_whose_own_product_is_wrong_first_is_named(places: dict[str, int], wanted: int | None) -> None:
    facts = made("tp")
    for rank in facts:
        bend(measured(facts, rank, "matrices"), "losses", 0, 1.5)
    first_products(facts, "tp", **places)
    (found,) = judge(facts, "tp")
    assert (found["slug"], found["where"].get("rank")) == ("wrong_step", wanted)
    words = f"first rank {wanted}'s own part of the product in blocks.1.down is 2.5e-01 off, before ranks exchange it"
    assert (words in found["message"]) is (wanted is not None)


def test_a_product_that_is_off_where_all_numbers_are_right_is_silent() -> None:
    facts = made("tp")
    first_products(facts, "tp", rank_1=5)
    assert judge(facts, "tp") == []
