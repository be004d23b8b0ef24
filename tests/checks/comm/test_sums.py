"""Sums made here, without processes, by all kinds of faults: a wrong one is always seen, and says whose it is only
where nothing else explains it."""

from collections.abc import Callable

import pytest
import torch

from preflight.checks.comm.shared import payload_sum, wrong_elements
from preflight.checks.comm.shared.payload_pattern import PERIOD
from preflight.checks.comm.shared.readings import Whose, Wrong
from preflight.checks.comm.shared.wrong_elements import Sample

CPU = torch.device("cpu")
WORLDS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 64, 1000]
TYPES = [torch.float32, torch.bfloat16]
Change = Callable[[int, torch.Tensor], torch.Tensor]


def sent(rank: int, ranks: int, elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.empty(elements, dtype=dtype)
    payload_sum.fill(values, rank, ranks)
    return values


def total(
    ranks: int, elements: int, change: Change = lambda _, values: values, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The sum of what all ranks send, in their own type, where `change` alters what some send."""
    result = torch.zeros(elements, dtype=dtype)
    for rank in range(ranks):
        result += change(rank, sent(rank, ranks, elements, dtype))
    return result


def elements(ranks: int) -> int:
    """Enough for each rank to own some."""
    return max(600, 24 * ranks)


def whose(ranks: int, change: Change, dtype: torch.dtype = torch.float32) -> Whose | None:
    wrong = payload_sum.compare(total(ranks, elements(ranks), change, dtype), 0, 0, ranks)
    assert wrong is not None
    return wrong["whose"]


def test_a_part_that_fits_no_rank_is_nobodys() -> None:
    values = torch.full((24,), 3.5, dtype=torch.float64)
    assert payload_sum._meant(Sample(torch.arange(24), values, is_exact=True), 24, 4) is None


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("ranks", WORLDS)
def test_the_right_sum_is_found_right(ranks: int, dtype: torch.dtype) -> None:
    assert payload_sum.compare(total(ranks, 300, dtype=dtype), 0, 0, ranks) is None


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("ranks", WORLDS[1:])
def test_a_lost_and_a_doubled_contribution_tell_whose_they_are(ranks: int, dtype: torch.dtype) -> None:
    for culprit in {0, ranks // 2, ranks - 1}:
        for times in (0, 2, 3):
            found = whose(ranks, lambda rank, values: values * (times if rank == culprit else 1), dtype)  # noqa: B023
            assert found == {"what": "times", "rank": culprit, "other": None, "times": times}


@pytest.mark.parametrize("ranks", WORLDS[1:])
def test_a_contribution_that_is_scaled_tells_whose_it_is(ranks: int) -> None:
    found = whose(ranks, lambda rank, values: values * (1.25 if rank == 1 else 1))
    assert found == {"what": "times", "rank": 1, "other": None, "times": 1.25}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("ranks", WORLDS[1:])
def test_a_contribution_in_the_place_of_another_tells_whose(ranks: int, dtype: torch.dtype) -> None:
    for rank, other in {(0, 1), (1, 0), (ranks - 1, ranks // 2 - 1)} - {(0, 0)}:
        replaced = sent(other, ranks, elements(ranks), dtype)
        found = whose(ranks, lambda of, values: replaced if of == rank else values, dtype)  # noqa: B023
        assert found == {"what": "instead", "rank": rank, "other": other, "times": None}


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_a_fault_in_a_part_of_the_message_tells_whose_it_is(ranks: int) -> None:
    def lost(rank: int, values: torch.Tensor) -> torch.Tensor:
        if rank == 1:
            values[100:400] = 0
        return values

    assert whose(ranks, lost) == {"what": "times", "rank": 1, "other": None, "times": 0}


@pytest.mark.parametrize("ranks", [2, 3, 8, 64, 1000])
def test_two_ranks_that_change_places_are_no_fault(ranks: int) -> None:
    places = {0: 1, 1: 0}
    swapped = total(ranks, 300, lambda rank, _: sent(places.get(rank, rank), ranks, 300))
    assert payload_sum.compare(swapped, 0, 0, ranks) is None


def noise(rank: int, values: torch.Tensor) -> torch.Tensor:
    return values + torch.rand(values.shape, generator=torch.Generator().manual_seed(1)) if rank == 1 else values


OTHER_FAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": torch.zeros_like,
    "doubled": lambda values: values * 2,
    "one place on": lambda values: values.roll(1),
    "a row on": lambda values: values.roll(PERIOD),
    "in reverse": lambda values: values.flip(0),
    "one more everywhere": lambda values: values + 1,
    "halves change places": lambda values: values.roll(values.numel() // 2),
    "not a number": lambda values: torch.full_like(values, torch.nan),
    "constant": lambda values: torch.full_like(values, 5),
    "an element in ten": lambda values: values + (torch.arange(values.numel()) % 10 == 0),
}


@pytest.mark.parametrize("fault", OTHER_FAULTS)
@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 16, 17, 64])
def test_a_result_that_is_wrong_otherwise_names_nobody(ranks: int, fault: str) -> None:
    right = total(ranks, PERIOD + 1000 if fault == "a row on" else 2000)
    wrong = payload_sum.compare(OTHER_FAULTS[fault](right), 0, 0, ranks)
    assert wrong is not None and wrong["whose"] is None, wrong


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_noise_of_one_rank_names_nobody(ranks: int) -> None:
    assert whose(ranks, noise) is None


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_few_wrong_elements_name_nobody(ranks: int) -> None:
    """The owner of one element would explain any error in it."""
    right = total(ranks, 600)
    for count in (1, 2, 3):
        result = right.clone()
        result[7 : 7 + count * ranks : ranks] += 3
        wrong = payload_sum.compare(result, 0, 0, ranks)
        assert wrong is not None and wrong["elements"] == count and wrong["whose"] is None


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_an_element_in_so_many_as_there_are_ranks_names_nobody(ranks: int) -> None:
    """They all have one owner, whose contribution would explain them."""
    for change in (lambda values: values * 2, torch.zeros_like):
        result = total(ranks, 40 * ranks)
        result[1::ranks] = change(result[1::ranks])
        wrong = payload_sum.compare(result, 0, 0, ranks)
        assert wrong is not None and wrong["elements"] == 40 and wrong["whose"] is None


def test_another_contribution_in_too_few_elements_names_nobody() -> None:
    """One of each owner: what is only likely is not said."""
    result, ranks = total(64, 600), 64
    result[60:130] += sent(3, ranks, 600)[60:130] - sent(40, ranks, 600)[60:130]
    wrong = payload_sum.compare(result, 0, 0, ranks)
    assert wrong is not None and wrong["elements"] > 16 and wrong["whose"] is None


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 32), (torch.bfloat16, 16)])
def test_every_flipped_bit_of_a_result_is_seen(dtype: torch.dtype, bits: int) -> None:
    right = total(3, 300, dtype=dtype)
    whole = {32: torch.int32, 16: torch.int16}[bits]
    for bit in range(bits):
        result = right.clone()
        result.view(whole)[137] ^= torch.tensor(1 << bit if bit < bits - 1 else -(1 << bit)).to(whole)
        wrong = payload_sum.compare(result, 0, 0, 3)
        assert wrong is not None and (wrong["elements"], wrong["index"], wrong["whose"]) == (1, 137, None), bit


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 64])
def test_a_part_that_was_meant_for_another_rank_tells_for_whom(ranks: int) -> None:
    chunk = 200
    right = total(ranks, chunk * ranks).view(ranks, chunk)
    for rank in range(min(ranks, 5)):
        assert payload_sum.compare(right[rank], rank * chunk, chunk, ranks) is None
        other = (rank + 1) % ranks
        wrong = payload_sum.compare(right[other], rank * chunk, chunk, ranks)
        assert wrong is not None
        assert wrong["whose"] == {"what": "meant", "rank": other, "other": None, "times": None}


@pytest.mark.parametrize("ranks", [3, 64])
def test_messages_of_many_rows_are_looked_at_whole(ranks: int) -> None:
    """Where blocks of rows end, and beyond."""
    size = 6 * PERIOD + 123
    result = torch.cat([values for _, _, values in payload_sum.expected(0, size, ranks, CPU)]).to(torch.float32)
    assert torch.equal(total(ranks, size), result)
    for index in (0, PERIOD - 1, PERIOD, 4 * PERIOD - 1, 4 * PERIOD, 6 * PERIOD, size - 1):
        spoilt = result.clone()
        spoilt[index] += 1
        wrong = payload_sum.compare(spoilt, 0, 0, ranks)
        assert wrong is not None and (wrong["elements"], wrong["index"]) == (1, index)
    start = PERIOD - 77  # the part of one rank begins in the middle of a row
    assert payload_sum.compare(result[start:], start, 0, ranks) is None


def test_many_wrong_elements_are_counted_and_some_of_all_looked_at() -> None:
    ranks, size = 5, 10 * PERIOD
    wrong = payload_sum.compare(total(ranks, size, lambda rank, values: values * (rank != 2)), 0, 0, ranks)
    assert wrong is not None and wrong["elements"] == wrong["of"] == size
    assert wrong["whose"] == {"what": "times", "rank": 2, "other": None, "times": 0}
    half = total(ranks, size)
    half[size // 2 :] += 7
    half[: size // 2] -= sent(2, ranks, size)[: size // 2]
    later = payload_sum.compare(half, 0, 0, ranks)
    assert later is not None and later["whose"] is None  # the first half alone would name rank 2


@pytest.mark.parametrize("ranks", [2, 16, 17, 8192])
def test_all_sums_are_exact_in_bfloat16(ranks: int) -> None:
    """Whole numbers up to 256, and no partial sum is larger."""
    values = torch.cat([values for _, _, values in payload_sum.expected(0, 5000, ranks, CPU)])
    assert int(values.min()) > 0 and int(values.max()) <= 256
    if ranks == 8192:
        positions = torch.arange(5000)
        exact = sum(payload_sum.weights_at(positions, rank, ranks) for rank in range(ranks)) * payload_sum.units_at(
            positions
        )
        assert torch.equal(torch.as_tensor(exact), values.to(torch.float64))


def test_what_is_told_is_json() -> None:
    result = total(2, 50)
    result[9] = torch.inf
    wrong = payload_sum.compare(result, 0, 0, 2)
    expected: Wrong = {
        "elements": 1, "of": 50, "index": 9, "got": "inf", "expected": float(total(2, 50)[9]), "sender": None,
        "whose": None,
    }  # fmt: skip
    assert wrong == expected


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("value", "wrong"), [(1.0, 0), (0.0, 1), (float("nan"), 1)])
def test_an_element_is_wrong_unless_it_is_equal(value: float, wrong: int, dtype: torch.dtype) -> None:
    result, right = torch.ones(600, dtype=dtype), torch.ones(600, dtype=torch.int16)
    result[599] = value
    assert wrong_elements.count(result, [(0, 300, right[:300]), (300, 600, right[300:])]) == wrong
    zeros = torch.zeros(600, dtype=torch.int16)
    assert wrong_elements.count(-torch.zeros(600, dtype=dtype), [(0, 600, zeros)]) == 0, "other bits, and equal"
