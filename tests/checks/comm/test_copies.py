"""Copies made here, without processes: a wrong element is always seen, and what stands there instead says whose it
is."""

from collections.abc import Callable, Sequence

import pytest
import torch

from preflight.checks.comm.shared import payload_copy
from preflight.checks.comm.shared.payload_copy import EMPTY, Tag
from preflight.checks.comm.shared.payload_pattern import PERIOD
from preflight.checks.comm.shared.readings import Wrong

WORLDS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 64, 1000]
TYPES = [torch.float32, torch.bfloat16]


def made(tags: Sequence[Tag], chunk: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.full((chunk * len(tags),), EMPTY, dtype=dtype)
    payload_copy.fill(values, tags)
    return values


def wrong(result: torch.Tensor, tags: Sequence[Tag], ranks: int, addressed: bool = True) -> Wrong:
    found = payload_copy.compare(result, tags, ranks, addressed)
    assert found is not None
    return found


def to(rank: int, ranks: int) -> list[Tag]:
    return [(sender, rank) for sender in range(ranks)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("chunk", [8, 64, 300, PERIOD + 8])
@pytest.mark.parametrize("ranks", WORLDS)
def test_what_was_sent_is_found_right(ranks: int, chunk: int, dtype: torch.dtype) -> None:
    """It is put together from what each sender has made by itself."""
    if ranks * chunk > 9 * PERIOD * 1.1:
        return
    sent = [made([(sender, ranks - 1)], chunk, dtype) for sender in range(ranks)]
    assert payload_copy.compare(torch.cat(sent), to(ranks - 1, ranks), ranks, True) is None
    assert float(sent[0].min()) >= 1 and float(sent[0].max()) <= 256


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("ranks", WORLDS[2:])
def test_swapped_parts_tell_whose_they_are(ranks: int, dtype: torch.dtype) -> None:
    tags = to(1, ranks)
    parts = made(tags, 64, dtype).view(ranks, 64)
    first, second = 0, ranks - 1
    swapped = parts.clone()
    swapped[first], swapped[second] = parts[second], parts[first]
    found = wrong(swapped.view(-1), tags, ranks)
    assert found["whose"] == {"what": "sent", "rank": second, "other": 1, "times": None}
    assert found["sender"] is None


@pytest.mark.parametrize("ranks", WORLDS[2:])
def test_what_was_for_another_tells_for_whom(ranks: int) -> None:
    tags = to(1, ranks)
    parts = made(tags, 64).view(ranks, 64).clone()
    parts[2] = made([(2, 0)], 64)
    found = wrong(parts.view(-1), tags, ranks)
    assert found["whose"] == {"what": "sent", "rank": 2, "other": 0, "times": None}
    assert found["sender"] == 2 and found["index"] // 64 == 2


@pytest.mark.parametrize("tag", [(4, 1), (1, 4)])
def test_what_no_rank_of_this_world_sends_or_gets_is_nobodys(tag: Tag) -> None:
    parts = made(to(1, 4), 64).view(4, 64).clone()
    parts[2] = made([tag], 64)
    assert wrong(parts.view(-1), to(1, 4), 4)["whose"] is None


OTHER_FAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "never came": lambda values: torch.full_like(values, EMPTY),
    "zeros": torch.zeros_like,
    "one place on": lambda values: values.roll(1),
    "four places on": lambda values: values.roll(4),
    "a row on": lambda values: values.roll(PERIOD),
    "halves change places": lambda values: values.roll(values.numel() // 2),
    "2^16 on": lambda values: values.roll(2**16),
    "not a number": lambda values: torch.full_like(values, torch.nan),
    "infinite": lambda values: torch.full_like(values, torch.inf),
    "constant": lambda values: torch.full_like(values, 7),
    "one more": lambda values: values + 1,
    "a fraction more in most": lambda values: values + 0.25 * (values < 250),
}


@pytest.mark.parametrize("fault", OTHER_FAULTS)
def test_what_no_rank_has_sent_is_wrong_and_nobodys(fault: str) -> None:
    tags = [(3, 1)]
    right = made(tags, 2**17 + 64)
    found = wrong(OTHER_FAULTS[fault](right), tags, 5)
    assert found["whose"] is None and found["sender"] == 3
    assert found["elements"] > 0.9 * found["of"]


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 32), (torch.bfloat16, 16)])
def test_every_flipped_bit_is_seen(dtype: torch.dtype, bits: int) -> None:
    tags = to(1, 3)
    whole = {32: torch.int32, 16: torch.int16}[bits]
    for bit in range(bits):
        result = made(tags, 64, dtype)
        result.view(whole)[77] ^= torch.tensor(1 << bit if bit < bits - 1 else -(1 << bit)).to(whole)
        found = wrong(result, tags, 3)
        assert (found["elements"], found["index"], found["sender"], found["whose"]) == (1, 77, 1, None), bit
        assert found["expected"] == float(made(tags, 64, dtype)[77])


def test_a_wrong_element_is_found_wherever_blocks_end() -> None:
    tags = to(0, 2)
    chunk = 9 * PERIOD + 20
    right = made(tags, chunk)
    for index in (0, PERIOD - 1, PERIOD, 4 * PERIOD, chunk - 1, chunk, chunk + 8 * PERIOD, 2 * chunk - 1):
        result = right.clone()
        result[index] = 300
        found = wrong(result, tags, 2)
        assert (found["elements"], found["index"], found["sender"]) == (1, index, index // chunk)


def test_a_stale_broadcast_tells_of_the_root_before() -> None:
    found = wrong(made([(0, 0)], 256), [(4, 0)], 8, addressed=False)
    assert found["whose"] == {"what": "sent", "rank": 0, "other": None, "times": None}
    assert found["sender"] == 4


def test_what_a_rank_that_is_not_there_would_have_sent_is_nobodys() -> None:
    assert wrong(made([(700, 0)], 256), [(1, 0)], 8)["whose"] is None


def test_digits_that_no_rank_has_are_nobodys() -> None:
    result = made([(3, 1)], 256)
    result[::4] = (result[::4] - 1 + 150) % 256 + 1
    assert wrong(result, [(3, 1)], 8192)["whose"] is None


def test_too_few_elements_say_nothing() -> None:
    result = made([(3, 1)], 256)
    result[8:20] = made([(2, 1)], 256)[8:20]
    assert wrong(result, [(3, 1)], 5)["whose"] is None
    result[8:40] = made([(2, 1)], 256)[8:40]
    found = wrong(result, [(3, 1)], 5)["whose"]
    assert found is not None and found["rank"] == 2
