"""What evens the ranks out, and what does not: all ranks' samples against the dataset."""

import pytest

from preflight.checks.data.sampler import coverage, orders
from preflight.checks.data.sampler.overlaps import Overlaps
from tests.checks.data.made_readings import above_info, dealt, epoch, found, only, own, read, summary


def test_batch_samplers_that_drop_the_last_hide_no_overlap() -> None:
    """One sample of rank 0 comes on rank 1, too, and 16 are dropped."""
    kept = [list(range(rank, 80, 4)) for rank in range(4)]
    kept[1][3] = kept[0][5]
    made = read(kept, kept, length=96, size=4, shuffle=False, drop_last=True)
    for number, told in enumerate(made[0]["together"]):
        told.update({"agains": 1, "misses": 1, "missing": [13], "again_dropped": 0})
        for of_rank in made.values():
            of_rank["readings"][0]["epochs"][number]["dropped"] = 4
    assert only(made)["slug"] == "overlap"
    for told in made[0]["together"]:  # as where the other one of the two were dropped
        told.update({"agains": 2, "again_dropped": 1})
    assert "in total 1 times a sample comes again" in only(made)["message"]


def test_padding_that_is_shuffled_before_batches_are_dropped_is_padding() -> None:
    """All samples came from the sampler, and two more; what is dropped is not missing in it."""
    kept = [list(range(rank, 80, 4)) for rank in range(4)]
    kept[1][3] = kept[0][5]
    made = read(kept, kept, length=96, size=4, shuffle=False, drop_last=True)
    for told in made[0]["together"]:
        told.update({"agains": 2, "misses": 0, "missing": [], "again_dropped": 1})
    assert above_info(made) == []
    assert summary(made).startswith("96 samples, 4 ranks x 20 (1 padded), disjoint")


@pytest.mark.parametrize(("again", "is_padding"), [(3, True), (4, False)])
def test_fewer_samples_than_ranks_are_padding(again: int, is_padding: bool) -> None:
    """Where batches have different sizes, and say nothing."""
    epochs = {rank: epoch([*range(rank, 24, 4)], sizes=[2, 3, 1]) for rank in range(4)}
    assert coverage._is_padding(24 - again, again, 0, 24, epochs, Overlaps(epochs)) is is_padding


@pytest.mark.parametrize(
    ("ids", "told"), [([0, 1, 2, 3], True), ([2, 3, 4, 0], True), ([2, 1, 3, 0], False), ([3, 2, 1, 0], False)]
)
def test_an_order_may_begin_again_once(ids: list[int], told: bool) -> None:
    assert orders.is_ascending(epoch(ids)) is told


def test_ranks_that_all_get_no_batch_are_told_of_that() -> None:
    made = read([[]] * 4, [[]] * 4, length=24, drop_last=True)
    assert only(made)["slug"] == "no_batches"


def test_a_gap_is_no_tail_where_samples_are_padded_besides() -> None:
    """4 of 26 are seen in no epoch, and 3 twice."""
    made = own(lambda order: dealt([index for index in order if index >= 4], 5), length=26, size=1)
    assert above_info(made) == ["fail never_seen"]


def test_an_overlap_is_told_though_ranks_have_unlike_numbers_of_samples() -> None:
    """As many batches: nothing else tells of it."""
    parts = [list(range(rank, 110, 4)) for rank in range(4)]
    parts[1][3] = parts[0][5]
    made = read(parts, parts, length=110, size=64, shuffle=False)
    assert only(made)["slug"] == "overlap"


def test_what_comes_again_on_one_rank_and_on_others_is_not_called_padding() -> None:
    """As draws with replacement do: 3 again, one of them on its own rank."""
    parts = [[0, 1, 2, 3, 4, 4], [0, 1, 5, 6, 7, 8]]
    made = read(parts, parts, length=11, size=6, shuffle=False, sampler="Own")
    told = {finding["code"].rpartition(".")[2]: finding["message"] for finding in found(made)}
    assert "padded" not in told and "3 times a sample comes again" in told["not_proven"]
    assert "disjoint" not in summary(made)


@pytest.mark.parametrize("without", [0, 8])
def test_hundreds_of_ranks_are_counted_and_not_listed(without: int) -> None:
    parts = [list(range(rank * 16, rank * 16 + (without if rank % 3 else 16))) for rank in range(300)]
    told = found(read(parts, parts, length=4800, size=4, shuffle=False, exact=False))
    assert all(len(finding["message"]) < 400 for finding in told)
    assert len({finding["message"] for finding in told}) == 1
