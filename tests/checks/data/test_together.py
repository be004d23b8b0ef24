"""All ranks' samples against the dataset. (On real ranks: test_on_ranks.py, and the rows of tests/faults/.)"""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in __all__

from preflight.check import Context, Job, Node, Skip
from preflight.checks.data.sampler import aggregate
from preflight.checks.data.sampler.aggregate import Whole
from preflight.checks.data.shared.readings import Together
from tests import forked

Mine = dict[tuple[str, int], Whole]
NOTHING = {"again": {}, "missing": [], "agains": 0, "misses": 0, "again_dropped": 0}


class Ranks:
    """Members in threads of one process, with one store; `reduce` adds up what they bring."""

    def __init__(self, *members: int) -> None:
        self.members, self.store = members, HashStore()
        self.brought: dict[int, torch.Tensor] = {}
        self.meeting = threading.Barrier(len(members), timeout=60)

    def tell(self, rank: int, mine: Mine, data_parallel: int | None = None, patience_s: float = 60.0) -> list[Together]:
        nodes = (Node("node-0", 0, self.members),)
        context = Context(
            "data.sampler", Job("env", max(self.members) + 1, "gloo", nodes), rank, rank, self.members, {}, 60.0,
            forked.NoPage(), lambda: cast(Any, None), self.client, make_part=lambda _: cast(Any, (self, rank)),
        )  # fmt: skip
        named = {key: whole._replace(order=str(whole.ids.tolist())) for key, whole in mine.items()}
        return aggregate.together(context, named, data_parallel, patience_s, time.monotonic() + 60.0)

    def client(self) -> Any:
        if len(self.members) == 1:
            raise Skip("there is no store: this run has no launcher")
        return self.store

    def all(self, of: Mapping[int, Mine], data_parallel: int | None = None, patience_s: float = 60.0) -> list[Together]:
        """What the first one finds. `of`: by the rank, of those that come."""
        with ThreadPoolExecutor(len(of)) as pool:
            told = {rank: pool.submit(self.tell, rank, mine, data_parallel, patience_s) for rank, mine in of.items()}
        first, *others = [told[rank].result() for rank in self.members if rank in told]
        assert not any(others)
        return first


def reduce(sent: torch.Tensor, group: tuple[Ranks, int], group_dst: int) -> None:
    ranks, rank = group
    ranks.brought[rank] = sent
    ranks.meeting.wait()
    if rank == ranks.members[group_dst]:
        sent.copy_(torch.stack([ranks.brought[other] for other in ranks.members]).sum(0))
    ranks.meeting.wait()


@pytest.fixture(autouse=True)
def group_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "reduce", reduce)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(aggregate, "bounded", lambda _, group, __: group)


def strided(length: int, world: int, shift: int = 0) -> list[torch.Tensor]:
    """As torch's DistributedSampler: with padding from the beginning."""
    order = (torch.randperm(length, generator=torch.Generator().manual_seed(7)) + shift).tolist()
    order += order[: -length % world]
    return [torch.tensor(order[place::world]) for place in range(world)]


def one_epoch(ids: list[torch.Tensor], length: int) -> dict[int, Mine]:
    return {rank: {("", 0): Whole(own, length)} for rank, own in enumerate(ids)}


def test_a_dataset_that_is_dealt_out_once() -> None:
    (found,) = Ranks(0, 1, 2, 3).all(one_epoch(strided(1000, 4), 1000))
    assert found == {"name": "", "epoch": 0, **NOTHING}


def test_padding_is_told_by_id() -> None:
    ids = strided(1001, 70)
    (found,) = Ranks(*range(70)).all(one_epoch(ids, 1001))
    padded = sorted(int(own[0]) for own in ids[:49])
    assert found == {"name": "", "epoch": 0, **NOTHING, "again": {str(id_): 1 for id_ in padded}, "agains": 49}


def test_what_batch_samplers_drop_is_held_against_what_comes_again() -> None:
    """Not all that comes again is among it."""
    ids = [own.clone() for own in strided(8000, 4)]
    ids[1][:2], ids[2][0], ids[3][-2:] = ids[0][:2], ids[1][-1], ids[0][5]
    (found,) = Ranks(0, 1, 2, 3).all({rank: {("", 0): Whole(own, 8000, 255)} for rank, own in enumerate(ids)})
    # of ids[1][-1] one of two is dropped, of ids[0][5] two of three
    assert (found["agains"], found["again_dropped"], found["misses"]) == (5, 3, 5)


def test_repeats_and_gaps_in_the_middle_are_told_by_id() -> None:
    ids = strided(10_000, 3)
    gone = int(ids[2][1000])
    ids[2][1000] = ids[0][1500]
    ids[1][900:902] = ids[0][1500]
    missing = sorted({gone, *range(10_000)} - set(torch.cat(ids).tolist()))
    (found,) = Ranks(0, 1, 2).all(one_epoch(ids, 10_000))
    again = {int(ids[0][1500]): 3, int(ids[0][0]): 1, int(ids[1][0]): 1}
    assert found["again"] == {str(id_): again[id_] for id_ in sorted(again)}
    assert (found["agains"], found["missing"], found["misses"], len(missing)) == (5, missing, 3, 3)


def test_ids_beyond_the_dataset_come_too_often() -> None:
    (found,) = Ranks(0, 1).all(one_epoch(strided(100, 2, shift=1), 100))
    assert (found["again"], found["missing"]) == ({"100": 1}, [0])


def test_what_is_listed_is_bounded_and_what_is_counted_is_not() -> None:
    whole = torch.arange(1500)
    (found,) = Ranks(0, 1).all(one_epoch([whole, whole], 3000))
    assert (found["agains"], found["misses"]) == (1500, 1500)
    assert [int(id_) for id_ in found["again"]] == list(range(1000))
    assert found["missing"] == list(range(1500, 2500))


@pytest.mark.parametrize("chunk", [1, 7, 100, 999, 1000, 1001])
def test_chunks_of_any_size_count_the_same(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Also where ids lie below and above the dataset's."""
    monkeypatch.setattr(aggregate, "CHUNK", chunk)
    ids = strided(1000, 2)
    missing = int(ids[1][5])
    ids[1][5], ids[0] = ids[0][0], torch.cat([ids[0], torch.tensor([-3, 1010, 1010])])
    (found,) = Ranks(0, 1).all({rank: {("", 0): Whole(own, 1000, 4)} for rank, own in enumerate(ids)})
    again = {-3: 1, int(ids[0][0]): 1, 1010: 2}
    assert found["again"] == {str(id_): again[id_] for id_ in sorted(again)}
    assert (found["missing"], found["agains"], found["misses"], found["again_dropped"]) == ([missing], 4, 1, 3)


def test_many_loaders_share_what_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts end at 1 MiB."""
    monkeypatch.setattr(aggregate, "LISTED_IN_ALL", 40)
    mine = {("", number): Whole(torch.arange(100), 200) for number in range(4)}
    for pair in Ranks(0, 1).all({0: mine, 1: mine}):
        assert (len(pair["again"]), len(pair["missing"]), pair["agains"], pair["misses"]) == (10, 10, 100, 100)


def test_loaders_and_epochs_are_kept_apart_whatever_their_order() -> None:
    train, val = strided(100, 2), strided(31, 2)
    mine: dict[int, Mine] = {
        rank: {
            ("train", 0): Whole(train[rank], 100),
            ("train", 1): Whole(train[1 - rank], 100),
            ("a/b", 0): Whole(val[rank], 31),
        }
        for rank in (0, 1)
    }
    mine[1] = dict(reversed(mine[1].items()))
    found = Ranks(0, 1).all(mine)
    assert [(of_rank["name"], of_rank["epoch"], of_rank["agains"], of_rank["misses"]) for of_rank in found] == [
        ("train", 0, 0, 0), ("train", 1, 0, 0), ("a/b", 0, 1, 0),
    ]  # fmt: skip


def test_only_what_all_have_read_with_one_length_is_compared() -> None:
    train, val = strided(100, 2), strided(31, 2)
    mine: dict[int, Mine] = {
        0: {("train", 0): Whole(train[0], 100), ("train", 1): Whole(train[0], 100), ("val", 0): Whole(val[0], 31)},
        1: {("train", 0): Whole(train[1], 100), ("val", 0): Whole(val[1], 32), ("train", 2): Whole(train[1], 100)},
    }
    assert [(pair["name"], pair["epoch"]) for pair in Ranks(0, 1).all(mine)] == [("train", 0)]


def test_a_dataset_that_claims_to_be_endless_is_left_out() -> None:
    assert Ranks(0, 1).all(one_epoch(strided(100, 2), 10**15)) == []


def test_an_id_far_beyond_the_dataset_leaves_its_epoch_out() -> None:
    ids = strided(100, 2)
    ids[1][0] = 10**15
    assert Ranks(0, 1).all(one_epoch(ids, 100)) == []


def test_epochs_are_counted_while_there_is_room_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "COUNTED", 250)
    mine = {
        rank: {
            ("large", 0): Whole(torch.arange(rank, 200, 2), 200),
            ("train", 0): Whole(own, 100),
            ("train", 1): Whole(own, 100),
        }
        for rank, own in enumerate(strided(100, 2))
    }
    assert [(told["name"], told["epoch"]) for told in Ranks(0, 1).all(mine)] == [("large", 0)]
    monkeypatch.setattr(aggregate, "COUNTED", 199)
    assert [(told["name"], told["epoch"]) for told in Ranks(0, 1).all(mine)] == [("train", 0)]


def test_members_need_not_be_all_ranks() -> None:
    ids = strided(999, 3)
    ids[1][0] = ids[2][0]
    mine: dict[int, Mine] = {rank: {("", 0): Whole(own, 999)} for rank, own in zip((2, 5, 9), ids, strict=True)}
    (found,) = Ranks(2, 5, 9).all(mine)
    assert (found["again"], found["misses"]) == ({str(int(ids[2][0])): 1}, 1)


def test_of_ranks_that_are_to_see_the_same_data_one_counts() -> None:
    halves = strided(1000, 2)
    (found,) = Ranks(0, 1, 2, 3).all(one_epoch([halves[0], halves[0], halves[1], halves[1]], 1000), 2)
    assert found == {"name": "", "epoch": 0, **NOTHING}


@pytest.mark.parametrize("data_parallel", [None, 4])
def test_else_the_same_data_is_a_repeat(data_parallel: int | None) -> None:
    halves = strided(40, 2)
    mine = one_epoch([halves[0], halves[0], halves[1], halves[1]], 40)
    (found,) = Ranks(0, 1, 2, 3).all(mine, data_parallel)
    assert (found["agains"], found["misses"]) == (40, 0)


def test_ranks_without_samples_have_a_part_in_the_range() -> None:
    (found,) = Ranks(0, 1).all(one_epoch([torch.arange(5), torch.arange(0)], 8))
    assert (found["again"], found["missing"]) == ({}, [5, 6, 7])


def test_one_rank_needs_no_store() -> None:
    (found,) = Ranks(0).all(one_epoch([torch.tensor([2, 0, 2])], 3))
    assert (found["again"], found["missing"]) == ({"2": 1}, [1])


def test_where_a_rank_does_not_come_nobody_counts() -> None:
    """Neither where it is the first."""
    mine = one_epoch(strided(9, 3), 9)
    for absent in (1, 0):
        assert Ranks(0, 1, 2).all({rank: its for rank, its in mine.items() if rank != absent}, patience_s=0.05) == []


def test_who_comes_after_the_others_have_gone_counts_nothing() -> None:
    for order in ((0, 1), (1, 0)):
        ranks, mine = Ranks(0, 1), one_epoch(strided(9, 2), 9)
        for rank in order:
            assert ranks.tell(rank, mine[rank], patience_s=0.02) == []


def test_a_rank_that_has_read_nothing_costs_no_patience() -> None:
    mine = one_epoch(strided(9, 3), 9)
    assert Ranks(0, 1, 2).all({**mine, 1: {}}) == []


def test_a_rank_whose_code_has_destroyed_the_group_takes_part_in_no_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: threading.current_thread().name != "destroyed")
    ranks, mine = Ranks(0, 1), one_epoch(strided(9, 2), 9)
    other = threading.Thread(target=lambda: ranks.tell(1, mine[1]), name="destroyed")
    other.start()
    assert ranks.tell(0, mine[0]) == []
    other.join()
