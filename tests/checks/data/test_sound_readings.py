"""What data.sampler makes of facts of sound loaders: nothing is said of them, and one line tells what was proven."""

import random
from typing import Any

import pytest

from preflight.checks.data.shared.readings import Facts
from tests.checks.data.made_readings import (
    STOCK,
    Ids,
    above_info,
    content,
    dealt,
    epoch,
    found,
    hash_of,
    merged,
    own,
    read,
    shuffled,
    stock,
    summary,
    together,
)


def repeated_tail(order: Ids, world: int = 4, size: int = 4) -> list[Ids]:
    """Whole batches, the last ones from the beginning again."""
    padded = [*order, *order[: -len(order) % (world * size)]]
    batches = [padded[start : start + size] for start in range(0, len(padded), size)]
    return [[sample for batch in batches[rank::world] for sample in batch] for rank in range(world)]


def drawn(order: Ids) -> list[Ids]:
    return [random.Random(10 * order[0] + rank).choices(range(60), k=20) for rank in range(4)]


SOUND: dict[str, dict[int, Facts]] = {
    "even": stock(),
    "padded": stock(25),
    "fewer samples than ranks": stock(2, size=1),
    "one sample": stock(1, size=1),
    "one rank": stock(world=1),
    "rounded to batches": own(repeated_tail, length=25, size=4),
    "rounded, in order": read(*[repeated_tail(range(37))] * 2, length=37, size=4),
    "a tail is dropped": own(lambda order: [order[rank:24:4] for rank in range(4)], length=27),
    "whole batches only": own(lambda order: [order[rank * 6 : rank * 6 + 6] for rank in range(4)], length=30, size=3),
    "whole batches only, in order": read(*[dealt(range(24), 4)] * 2, length=30, size=3),
    "in order": read(*[dealt(range(25), 4)] * 2, length=25, **{**STOCK, "shuffle": False}),
    "in order, by a stream": content(lambda _: dealt(range(24), 4)),
    "a third each epoch": own(
        lambda order: dealt(range(48) if order[0] == shuffled(144, 0)[0] else range(48, 96), 4), length=144
    ),
    "with replacement": own(drawn, length=60, by_design="repeats", sampler="WeightedRandomSampler"),
    "with replacement, of few": own(
        lambda order: [random.Random(f"{order} {rank}").choices(range(5), k=60) for rank in range(4)], length=5,
        by_design="repeats"),
    "with replacement, of one's own": own(drawn, length=60),
    "repeated augmentation": own(lambda order: [order[:8]] * 4, length=24, by_design="augments"),
    "subset": own(lambda order: dealt([index for index in order if index % 2], 4), by_design="subset",
                  sampler="SubsetRandomSampler"),
    "own shuffle of own part": own(lambda order: [shuffled(6, order[0] + rank) for rank in range(4)], length=6,
                                   of={rank: {"content": {"0": f"{rank}"}} for rank in range(4)}),
    "own files of other lengths": read(*[[shuffled(5 + (rank == 1), epoch) for rank in range(4)] for epoch in (0, 1)],
                                       of={rank: {"content": {"0": f"{rank}"}, "length": 5 + (rank == 1)}
                                           for rank in range(4)}),
    "node-local files": read(*[[*dealt(shuffled(24, epoch), 2), *dealt(shuffled(24, epoch), 2)] for epoch in (0, 1)],
                             **STOCK, of={rank: {"num_replicas": 2, "replica": rank % 2,
                                                 "content": {"0": f"{rank // 2}"}} for rank in range(4)}),
    "ranks are numbered otherwise": stock(of={rank: {} for rank in range(4)}),
    "stream": content(lambda order: dealt(order, 4), length=48),
    "stream of noise": read(*[[[hash_of(at + 100 * rank + 1000 * number) for at in range(9)] for rank in range(4)]
                              for number in (0, 1)], known_by="content", length=None),
    "a few equal data": content(lambda order: [[*part[8:], *range(900, 908)] for part in dealt(order, 4)], length=800),
    "few labels": content(lambda _: [[number % 5 for number in range(120)] for _ in range(4)]),
    "some equal data": content(lambda order: dealt([min(index, 180) for index in order], 4), length=200),
    "windows of a text": content(lambda order: [random.Random(order[rank]).choices(range(3000), k=400)
                                                for rank in range(4)], length=30),
    "evaluation in order": read(*[dealt(range(25), 4)] * 2, length=25, name="val"),
    "sorted by length, evaluated": read(*[dealt(shuffled(24, 3), 4)] * 2, name="test"),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_of_a_sound_loader_nothing_is_said(name: str) -> None:
    assert above_info(SOUND[name]) == []


def test_ranks_may_be_numbered_otherwise() -> None:
    made = stock()
    for rank, of_rank in made.items():
        of_rank["readings"][0]["replica"] = 3 - rank
    assert above_info(made) == []


@pytest.mark.parametrize("name", ["val_loader", "imagenet_val", "loader-eval"])
def test_an_evaluation_that_all_ranks_do_whole_is_info(name: str) -> None:
    made = read(*[[range(24)] * 4] * 2, name=name)
    assert [(finding["severity"], finding["code"].rpartition(".")[2]) for finding in found(made)] == [
        ("info", "same_samples")
    ]
    assert summary(made).startswith(f"{name}: 24 samples")


@pytest.mark.parametrize(
    ("name", "order", "severity"), [("1", range(24), "warn"), ("0", range(24), "fail"), ("1", shuffled(24, 0), "fail")]
)
def test_behind_the_training_in_a_list_it_may_be_an_evaluation(name: str, order: Any, severity: str) -> None:
    assert above_info(read(*[[order] * 4] * 2, name=name)) == [f"{severity} same_samples"]


def test_batches_of_variable_size_are_no_unlike_sizes() -> None:
    made = own(lambda order: dealt(order, 4))
    for rank, of_rank in made.items():
        cut = [[5, 1], [4, 2], [3, 3], [5, 1]][rank]
        of_rank["readings"][0]["epochs"] = [epoch(dealt(shuffled(24, number), 4)[rank], sizes=cut) for number in (0, 1)]
    assert above_info(made) == []


def test_ranks_that_share_a_model_see_the_same() -> None:
    made = read(*[[part for part in dealt(shuffled(24, epoch), 2) for _ in range(2)] for epoch in (0, 1)], exact=False)
    told = [together(dealt(shuffled(24, epoch), 2), 24, epoch) for epoch in (0, 1)]
    made[0]["together"] = told
    assert found(made, data_parallel=2) == found(made, data_parallel=2, global_batch=4) == []
    for rank, of_rank in made.items():
        of_rank["readings"][0].update({"num_replicas": 2, "replica": rank // 2})
    assert found(made, data_parallel=2) == []
    assert summary(made, data_parallel=2) == (
        "24 samples, 2 ranks x 12 (each on 2), disjoint, complete, reshuffled each epoch; 2 per rank x 2 ranks = 4"
    )


# The summary


SUMMARIES = {
    "even": "24 samples, 4 ranks x 6, disjoint, complete, reshuffled each epoch",
    "padded": "25 samples, 4 ranks x 7 (3 padded), disjoint, complete, reshuffled each epoch",
    "one rank": "24 samples, 1 rank x 24, complete, reshuffled each epoch",
    "a tail is dropped": "27 samples, 4 ranks x 6 (3 dropped), disjoint, reshuffled each epoch",
    "in order": "25 samples, 4 ranks x 7 (3 padded), disjoint, complete",
    "stream": "48 samples by content, 4 ranks x 12, disjoint, reshuffled each epoch",
    "stream of noise": "36 samples by content, 4 ranks x 9",
    "few labels": "480 samples by content, 4 ranks x 120, in the same order each epoch",
    "with replacement": "60 samples, 4 ranks x 20, drawn by each rank for itself, reshuffled each epoch",
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_one_line_tells_what_was_proven(name: str) -> None:
    assert summary(SOUND[name]).partition("; ")[0] == SUMMARIES[name]


def test_the_effective_batch_is_told_with_what_it_makes_of_a_learning_rate() -> None:
    even = SOUND["even"]
    assert summary(even).endswith("; 2 per rank x 4 ranks = 8")
    assert "x 2 accumulation = 16 (one rank alone: 4); " in summary(even, accumulate=2, lr=3e-4)
    assert summary(even, lr=3e-4, base_batch=8).endswith("a learning rate of 0.0003 for a batch of 8 stays as it is")


def test_several_loaders_and_torchs_own() -> None:
    both = merged(stock(name="train"), stock(25, name="val"))
    assert summary(both).startswith("train: 24 samples, 4 ranks x 6, ") and "; val: 25 samples, " in summary(both)
    for reading in both.values():
        reading["given"] = False
    assert found(both) == []
    assert summary(both) == (
        "torch's DistributedSampler is right on 4 ranks (train, val); your own loader was not checked: "
        "give --data MODULE:FUNCTION"
    )
