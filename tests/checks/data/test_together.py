import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in __all__

from preflight.check import Context, Job, Node, Skip
from preflight.checks.data.sampler import aggregate, sketch
from preflight.checks.data.sampler.aggregate import Whole
from preflight.checks.data.shared.readings import Together

Mine = dict[tuple[str, int], Whole]
EXACT = {"exact": True, "again": {}, "missing": [], "agains": 0, "misses": 0, "again_dropped": 0}


class NoPage:
    def doing(self, what: str, where: Mapping[str, Any]) -> None: ...
    def enter(self, operation: str, shape: str) -> None: ...
    def leave(self) -> None: ...


class Ranks:
    """Whose members tell one after the other, the first last."""

    def __init__(self, *members: int) -> None:
        self.members, self.store = members, HashStore()

    def tell(self, rank: int, mine: Mine, data_parallel: int | None = None, patience_s: float = 60.0) -> list[Together]:
        nodes = (Node("node-0", 0, self.members),)
        never: Any = None
        context = Context(
            "data.sampler", Job("env", max(self.members) + 1, "gloo", nodes), rank, rank, self.members, {}, 60.0,
            NoPage(), never, self.client,
        )  # fmt: skip
        orders = {key: str(ids.tolist()) for key, (ids, *_) in mine.items()}
        return aggregate.together(context, mine, orders, data_parallel, patience_s)

    def client(self) -> Any:
        if len(self.members) == 1:
            raise Skip("there is no store: this run has no launcher")
        return self.store

    def all(self, of: Mapping[int, Mine], data_parallel: int | None = None) -> list[Together]:
        """What the first one finds. `of`: by the rank."""
        first, *others = self.members
        for rank in others:
            assert self.tell(rank, of[rank], data_parallel) == []
        return self.tell(first, of[first], data_parallel)


def strided(length: int, world: int, shift: int = 0) -> list[torch.Tensor]:
    """As torch's DistributedSampler: with padding from the beginning."""
    order = (torch.randperm(length, generator=torch.Generator().manual_seed(7)) + shift).tolist()
    order += order[: -length % world]
    return [torch.tensor(order[place::world]) for place in range(world)]


def one_epoch(ids: list[torch.Tensor], length: int) -> dict[int, Mine]:
    return {rank: {("", 0): Whole(own, length)} for rank, own in enumerate(ids)}


def test_a_dataset_that_is_dealt_out_once() -> None:
    (found,) = Ranks(0, 1, 2, 3).all(one_epoch(strided(1000, 4), 1000))
    assert found == {"name": "", "epoch": 0, **EXACT}


def test_padding_is_told_by_id() -> None:
    ids = strided(1001, 70)
    (found,) = Ranks(*range(70)).all(one_epoch(ids, 1001))
    padded = sorted(int(own[0]) for own in ids[:49])
    assert found == {"name": "", "epoch": 0, **EXACT, "again": {str(id_): 1 for id_ in padded}, "agains": 49}


def test_what_batch_samplers_drop_is_held_against_what_comes_again() -> None:
    """More is dropped than a sketch holds, and not all that comes again is among it."""
    ids = [own.clone() for own in strided(8000, 4)]
    ids[1][:2], ids[2][0], ids[3][-2:] = ids[0][:2], ids[1][-1], ids[0][5]
    (found,) = Ranks(0, 1, 2, 3).all({rank: {("", 0): Whole(own, 8000, 255)} for rank, own in enumerate(ids)})
    # of ids[1][-1] one of two is dropped, of ids[0][5] two of three
    assert (found["exact"], found["agains"], found["again_dropped"], found["misses"]) == (True, 5, 3, 5)


def test_an_epoch_of_which_too_many_samples_are_dropped_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "DROPPED_IN_ALL", 20)
    ids = strided(1000, 2)
    for dropped, number in ((10, 1), (11, 0)):
        mine = {rank: {("", 0): Whole(own, 1000, dropped)} for rank, own in enumerate(ids)}
        assert len(Ranks(0, 1).all(mine)) == number


def test_repeats_and_gaps_in_the_middle_are_told_by_id() -> None:
    ids = strided(10_000, 3)
    gone = int(ids[2][1000])
    ids[2][1000] = ids[0][1500]
    ids[1][900:902] = ids[0][1500]
    missing = sorted({gone, *range(10_000)} - set(torch.cat(ids).tolist()))
    (found,) = Ranks(0, 1, 2).all(one_epoch(ids, 10_000))
    again = {int(ids[0][1500]): 3, int(ids[0][0]): 1, int(ids[1][0]): 1}
    assert found["exact"] and found["again"] == {str(id_): again[id_] for id_ in sorted(again)}
    assert (found["agains"], found["missing"], found["misses"], len(missing)) == (5, missing, 3, 3)


def test_ids_beyond_the_dataset_come_too_often() -> None:
    (found,) = Ranks(0, 1).all(one_epoch(strided(100, 2, shift=1), 100))
    assert (found["again"], found["missing"]) == ({"100": 1}, [0])


def test_all_that_is_repeated_at_the_ends_is_known_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketches that hold some ten ids; of 60 repeated ones."""
    monkeypatch.setattr(sketch, "width", lambda _: 8)
    ids = strided(4000, 4)
    ids = [torch.cat([own, ids[(rank + 1) % 4][:15]]) for rank, own in enumerate(ids)]
    (found,) = Ranks(0, 1, 2, 3).all(one_epoch(ids, 4000))
    assert found["exact"] and (found["agains"], len(found["again"]), found["misses"]) == (60, 60, 0)
    ids = [torch.cat([own[:500], own[:15], own[500:]]) for own in strided(4000, 4)]
    (found,) = Ranks(0, 1, 2, 3).all(one_epoch(ids, 4000))
    assert found == {"name": "", "epoch": 0, **EXACT, "exact": False}


def test_what_is_listed_is_bounded_and_what_is_counted_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch, "width", lambda _: 2000)
    whole = torch.arange(1500)
    (found,) = Ranks(0, 1).all(one_epoch([whole, whole], 3000))
    assert found["exact"] and (found["agains"], found["misses"]) == (1500, 1500)
    assert [int(id_) for id_ in found["again"]] == list(range(1000))
    assert found["missing"] == list(range(1500, 2500))


def test_many_loaders_share_what_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts end at 1 MiB."""
    monkeypatch.setattr(aggregate, "LISTED_IN_ALL", 40)
    mine = {("", number): Whole(torch.arange(100), 200) for number in range(4)}
    for one in Ranks(0, 1).all({0: mine, 1: mine}):
        assert (len(one["again"]), len(one["missing"]), one["agains"], one["misses"]) == (10, 10, 100, 100)


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
    assert [(one["name"], one["epoch"], one["agains"], one["misses"]) for one in found] == [
        ("train", 0, 0, 0), ("train", 1, 0, 0), ("a/b", 0, 1, 0),
    ]  # fmt: skip


def test_only_what_all_have_read_with_one_length_is_compared() -> None:
    train, val = strided(100, 2), strided(31, 2)
    mine: dict[int, Mine] = {
        0: {("train", 0): Whole(train[0], 100), ("train", 1): Whole(train[0], 100), ("val", 0): Whole(val[0], 31)},
        1: {("train", 0): Whole(train[1], 100), ("val", 0): Whole(val[1], 32), ("train", 2): Whole(train[1], 100)},
    }
    assert [(one["name"], one["epoch"]) for one in Ranks(0, 1).all(mine)] == [("train", 0)]


def test_a_dataset_that_claims_to_be_endless_is_left_out() -> None:
    assert Ranks(0, 1).all(one_epoch(strided(100, 2), 10**15)) == []


def test_members_need_not_be_all_ranks() -> None:
    ids = strided(999, 3)
    ids[1][0] = ids[2][0]
    mine: dict[int, Mine] = {rank: {("", 0): Whole(own, 999)} for rank, own in zip((2, 5, 9), ids, strict=True)}
    (found,) = Ranks(2, 5, 9).all(mine)
    assert (found["again"], found["misses"]) == ({str(int(ids[2][0])): 1}, 1)


def test_of_ranks_that_are_to_see_the_same_data_one_counts() -> None:
    halves = strided(1000, 2)
    (found,) = Ranks(0, 1, 2, 3).all(one_epoch([halves[0], halves[0], halves[1], halves[1]], 1000), 2)
    assert found == {"name": "", "epoch": 0, **EXACT}


@pytest.mark.parametrize("data_parallel", [None, 4])
def test_else_the_same_data_is_a_repeat(data_parallel: int | None) -> None:
    halves = strided(40, 2)
    mine = one_epoch([halves[0], halves[0], halves[1], halves[1]], 40)
    (found,) = Ranks(0, 1, 2, 3).all(mine, data_parallel)
    assert found["exact"] and (found["agains"], found["misses"]) == (40, 0)


def test_ranks_without_samples_have_a_part_in_the_range() -> None:
    (found,) = Ranks(0, 1).all(one_epoch([torch.arange(5), torch.arange(0)], 8))
    assert (found["again"], found["missing"]) == ({}, [5, 6, 7])


def test_one_rank_needs_no_store() -> None:
    (found,) = Ranks(0).all(one_epoch([torch.tensor([2, 0, 2])], 3))
    assert (found["again"], found["missing"]) == ({"2": 1}, [1])


def test_a_rank_that_tells_nothing_costs_the_patience() -> None:
    ranks, mine = Ranks(0, 1, 2), one_epoch(strided(9, 3), 9)
    ranks.tell(1, mine[1])
    assert ranks.tell(0, mine[0], patience_s=0.01) == []
    ranks.tell(2, mine[2])
    assert ranks.tell(0, mine[0], patience_s=-1.0) == []
    assert len(ranks.tell(0, mine[0])) == 1


def test_the_first_waits_for_the_others() -> None:
    ranks, mine = Ranks(0, 1, 2), one_epoch(strided(9, 3), 9)
    found: list[list[Together]] = []
    first = threading.Thread(target=lambda: found.append(ranks.tell(0, mine[0])))
    first.start()
    for rank in (2, 1):
        ranks.tell(rank, mine[rank])
    first.join(60)
    assert found == [[{"name": "", "epoch": 0, **EXACT}]]


def test_sketches_do_not_stay_in_the_store() -> None:
    ranks = Ranks(0, 1)
    ranks.all(one_epoch(strided(9, 2), 9))
    assert ranks.store.check(["read/1"]) and not ranks.store.check(["sketch/1/0"])
