"""What data.sampler makes of facts of mistaken loaders: one cause is one finding."""

import random
from typing import Any

import pytest

from preflight.check import Job, Node, Run
from preflight.checks.data import sampler
from preflight.checks.data.sampler import disjoint
from preflight.checks.data.sampler.summary import NOT_PROVEN
from preflight.checks.data.shared.readings import Epoch, Facts, LoaderMistake
from tests.checks.data.made_readings import (
    STOCK,
    Ids,
    above_info,
    content,
    dealt,
    epoch,
    facts,
    found,
    merged,
    only,
    own,
    read,
    reading,
    shuffled,
    slugs,
    stock,
    summary,
)
from tests.checks.data.test_sound_readings import SOUND
from tests.large import timed

# Mistakes in the user's code


def mistake(
    kind: Any = "user_error", line: int = 7, text: str = "data.py:7 in load(): ValueError: no"
) -> LoaderMistake:
    return LoaderMistake(kind=kind, text=text, file="data.py", line=line)


@pytest.mark.parametrize("kind", ["user_error", "wrong_return", "stuck"])
def test_a_mistake_of_one_rank_names_it_and_nothing_else_is_said(kind: str) -> None:
    made = stock()
    made[2]["mistake"], made[2]["readings"] = mistake(kind), []
    finding = only(made)
    assert finding["slug"] == kind
    assert finding["where"] == {"node": "node-0", "rank": 2, "file": "data.py", "line": 7}


@pytest.mark.parametrize("kind", ["user_error", "stuck"])
def test_ranks_that_wait_for_another_are_not_to_blame(kind: str) -> None:
    made = stock()
    for rank, of_rank in made.items():
        of_rank["mistake"], of_rank["readings"] = mistake("waits", line=8) if rank else mistake(kind), []
    told = only(made)
    assert (told["slug"], told["where"]["rank"], told["noticed_by"]) == (kind, 0, "1-3")


def test_the_rank_that_most_others_wait_for_is_named() -> None:
    made = stock()
    for rank in (0, 2, 3):
        made[rank]["mistake"], made[rank]["readings"] = mistake("waits", line=8 + rank), []
    told = only(made)
    assert (told["slug"], told["where"]["rank"], told["noticed_by"]) == ("stuck", 1, "0,2-3")
    assert told["message"].endswith("ranks 0,2-3 wait there for rank 1")


def test_of_two_ranks_neither_is_blamed_where_one_waits() -> None:
    made = stock(world=2)
    made[0]["mistake"], made[0]["readings"] = mistake("waits", line=8), []
    told = only(made)
    assert (told["slug"], told["noticed_by"], "rank" in told["where"]) == ("stuck", "0", False)
    assert told["message"].endswith("rank 0 waits there for rank 1; either may be wrong")


def test_a_rank_that_waits_where_most_others_do_not_is_named() -> None:
    made = stock()
    made[0]["mistake"], made[0]["readings"] = mistake("waits", line=8), []
    assert (only(made)["slug"], only(made)["where"]["rank"]) == ("stuck", 0)


def test_where_all_wait_in_a_collective_nobody_is_named() -> None:
    made = stock()
    for of_rank in made.values():
        of_rank["mistake"], of_rank["readings"] = mistake("waits"), []
    assert (only(made)["slug"], "rank" in only(made)["where"]) == ("stuck", False)


def test_a_mistake_of_all_ranks_is_nobodys() -> None:
    made = stock()
    for rank, of_rank in made.items():
        of_rank["mistake"], of_rank["readings"] = mistake(text=f"data.py:7: no file {rank}"), []
    assert only(made)["where"] == {"file": "data.py", "line": 7}
    assert summary(made) == "nothing was proven"


def test_a_mistake_without_a_place_is_one_also_where_its_numbers_differ() -> None:
    made = stock()
    for rank, of_rank in made.items():
        text = f"data.py:load: RuntimeError: got [{rank + 3}] at entry 0"
        of_rank["mistake"] = LoaderMistake(kind="user_error", text=text, file=None, line=None)
        of_rank["readings"] = []
    assert only(made)["where"] == {}


def test_a_mistake_in_one_loader_leaves_the_other() -> None:
    made = merged(stock(name="train"), read(*[[range(24)] * 4] * 2, name="other"))
    made[1]["readings"][0]["mistake"] = mistake()
    assert sorted(slugs(made)) == ["same_samples", "user_error"]


def test_a_rank_with_another_number_of_loaders() -> None:
    made = merged(stock(name="0"), stock(name="1"))
    made[3]["readings"].pop()
    finding = only(made)
    assert (finding["slug"], finding["where"]["rank"]) == ("different_loaders", 3)
    assert finding["message"] == "the function returns 1 loader, expected 2 loaders as on 3 of 4 ranks"
    two = {rank: of_rank for rank, of_rank in made.items() if rank in (2, 3)}
    assert "rank" not in only(two)["where"]


# Datasets


def test_another_length() -> None:
    finding = only(stock(of={1: {"length": 23}}))
    assert (finding["slug"], finding["where"]["rank"]) == ("length", 1)
    assert finding["message"] == "len(dataset) is 23, expected 24 as on 3 of 4 ranks"


def test_another_content() -> None:
    finding = only(stock(of={1: {"content": {"0": "a", "5": "c"}}}))
    assert (finding["slug"], finding["where"]["rank"]) == ("content", 1)
    assert finding["message"].startswith("dataset[5] is a different sample than on 3 of 4 ranks; 1 of 2 compared")


def test_content_that_is_drawn_anew_or_computed_on_another_cpu_is_not_compared() -> None:
    assert found(stock(of={1: {"content": {"0": "a", "5": ""}}})) == []
    assert found(stock(of={1: {"content": {"0": "x", "5": "y"}, "machine": "aarch64"}})) == []


def test_content_that_differs_everywhere_under_a_sampler_for_all_ranks_is_nobodys() -> None:
    finding = only(stock(of={rank: {"content": {"0": f"{rank}", "5": "b"}} for rank in range(4)}))
    assert (finding["slug"], finding["where"]) == ("content", {})
    assert "dataset[0] is a different sample on each of rank 0, rank 1, rank 2, rank 3" in finding["message"]


def test_a_dataset_of_each_rank_is_not_compared_and_that_is_said() -> None:
    finding = only(SOUND["own shuffle of own part"])
    assert (finding["severity"], finding["slug"]) == ("info", "not_proven")
    assert "ranks have 4 different datasets" in finding["message"]
    assert "disjoint" not in summary(SOUND["own shuffle of own part"])


def test_one_part_that_two_ranks_have() -> None:
    differing = {rank: {"content": {"0": f"{max(rank, 1)}"}} for rank in range(4)}
    made = own(lambda order: [shuffled(12, rank + order[0]) for rank in range(4)], length=12, exact=False, of=differing)
    finding = only(made)
    assert finding["slug"] == "same_samples" and finding["message"].startswith("ranks 0-1 see the same 12 samples")


# Samplers


def test_replicas_of_another_number() -> None:
    made = read(*[dealt(shuffled(24, epoch), 8)[:4] for epoch in (0, 1)], **STOCK, num_replicas=8,
                of={rank: {"replica": rank} for rank in range(4)})  # fmt: skip
    finding = only(made)
    assert (finding["slug"], finding["where"]) == ("wrong_replicas", {})
    assert "num_replicas=8 on all 4 ranks, expected 4" in finding["message"] and "4 of 8 parts" in finding["message"]


def test_replicas_of_one_node_may_share_a_model() -> None:
    made = read(*[dealt(shuffled(24, epoch), 2) * 2 for epoch in (0, 1)], **STOCK, num_replicas=2,
                of={rank: {"replica": rank % 2} for rank in range(4)})  # fmt: skip
    finding = only(made)
    assert finding["slug"] == "wrong_replicas" and "--set data.sampler.data_parallel=2" in finding["fix"]


def test_a_rank_that_takes_anothers_place() -> None:
    finding = only(own(lambda order: [dealt(order, 4)[rank] for rank in (0, 0, 2, 3)], **STOCK, num_replicas=4,
                   of={rank: {"replica": rank % 4 if rank != 1 else 0} for rank in range(4)}))  # fmt: skip
    assert (finding["slug"], finding["where"]["rank"]) == ("wrong_replicas", 1)
    assert finding["message"] == "the sampler has rank=0, expected 1: rank 0 has it, too"


def test_all_ranks_take_the_first_place() -> None:
    finding = only(own(lambda order: [dealt(order, 4)[0]] * 4, **STOCK, num_replicas=4, replica=0))
    assert (finding["slug"], finding["where"]) == ("wrong_replicas", {})
    assert "rank=0 on all 4 ranks" in finding["message"]


def test_another_seed() -> None:
    parts = [[dealt(shuffled(24, number + 7 * (rank == 1)), 4)[rank] for rank in range(4)] for number in (0, 1)]
    of = {rank: {"replica": rank, "seed": 7 if rank == 1 else 0} for rank in range(4)}
    finding = only(read(*parts, **STOCK, num_replicas=4, of=of))
    assert (finding["slug"], finding["where"]["rank"]) == ("different_seeds", 1)
    assert "seed=7, expected 0 as on 3 of 4 ranks" in finding["message"]


def test_a_sampler_that_shuffles_its_own_part_may_do_so_by_a_seed_of_its_own() -> None:
    parts = [[shuffled_part(rank, number) for rank in range(4)] for number in (0, 1)]
    of = {rank: {"replica": rank, "seed": rank, "sampler": "Own"} for rank in range(4)}
    assert found(read(*parts, **STOCK, num_replicas=4, of=of)) == []


def shuffled_part(rank: int, number: int) -> list[int]:
    part = list(range(rank, 24, 4))
    random.Random(10 * rank + number).shuffle(part)
    return part


def test_data_parallel_ranks_are_counted() -> None:
    made = own(lambda order: dealt(order, 4))
    finding = only(made, data_parallel=2)
    assert finding["slug"] == "wrong_data_parallel"
    assert "4 different orders of samples on 4 ranks, expected data_parallel=2" in finding["message"]
    assert slugs(made, data_parallel=3) == ["wrong_data_parallel"]
    assert found(made, data_parallel=4) == []


# Who sees what


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("order", ["in order", "alike", "each its own"])
def test_all_see_all(order: str, exact: bool) -> None:
    seeds = {"in order": None, "alike": 0, "each its own": 1}[order]
    parts = [[shuffled(24, number + (seeds or 0) * rank) if seeds is not None else range(24) for rank in range(4)]
             for number in (0, 5)]  # fmt: skip
    finding = only(read(*parts, exact=exact, sampler="RandomSampler"))
    assert (finding["slug"], finding["where"]) == ("same_samples", {})
    assert finding["message"].startswith("all 4 ranks see the same 24 samples, ")


def test_all_see_all_is_a_warning_where_each_may_have_its_own_dataset() -> None:
    finding = only(read(*[[range(24)] * 4] * 2, content={}))
    assert (finding["severity"], finding["slug"]) == ("warn", "same_samples") and "is unknown" in finding["message"]


def test_a_stream_that_is_not_parted() -> None:
    finding = only(content(lambda order: [order] * 4))
    assert finding["slug"] == "same_samples" and "islice" in finding["fix"]


def test_workers_that_each_yield_all() -> None:
    def parts(order: Ids) -> list[Ids]:
        return [[index for index in part for _ in range(2)] for part in dealt(order, 4)]

    finding = only(content(parts, workers=2))
    assert finding["slug"] == "workers_repeat"
    assert finding["message"].startswith("on all 4 ranks each of 6 samples comes 2 times, as there are 2 workers")
    everything = only(content(lambda order: [[*order, *order]] * 4, workers=2))
    assert everything["slug"] == "workers_repeat" and "same samples as each other" in everything["message"]


def test_with_replacement_ranks_that_draw_alike_are_wrong() -> None:
    made = own(lambda _: [random.Random(1).choices(range(60), k=20)] * 4, length=60, by_design="repeats")
    assert above_info(made) == ["fail same_samples"]
    two = own(lambda _: [random.Random(min(rank, 2)).choices(range(60), k=20) for rank in range(4)], length=60,
              by_design="repeats")  # fmt: skip
    assert above_info(two) == ["fail overlap"]


@pytest.mark.parametrize("exact", [True, False])
def test_one_rank_repeats_another(exact: bool) -> None:
    finding = only(own(lambda order: [dealt(order, 4)[rank] for rank in (0, 0, 2, 3)], exact=exact))
    assert (finding["slug"], finding["where"], finding["noticed_by"]) == ("overlap", {}, "0-1")
    assert finding["message"].startswith("ranks 0-1 see the same 6 samples, such as index ")
    assert "6 times a sample comes again, and 6 of 24 are read by no rank" in finding["message"]


def test_one_rank_repeats_another_in_millions() -> None:
    """Too many differences for a sketch: what ranks show tells it."""
    parts = [dealt(shuffled(40_000, number), 4) for number in (0, 1)]
    finding = only(read(*[[ids[0], ids[0], ids[2], ids[3]] for ids in parts], length=40_000, exact=False))
    assert finding["slug"] == "overlap" and "the same 10,000 samples" in finding["message"]
    some = [[ids[0], [*ids[0][:2000], *ids[1][2000:]], ids[2], ids[3]] for ids in parts]
    told = only(read(*some, length=40_000, exact=False))["message"]
    assert "ranks 0 and 1 share about " in told
    about = int(told.partition("share about ")[2].partition(" of")[0].replace(",", ""))
    assert 1700 < about < 2300


def test_shares_that_overlap_their_neighbours() -> None:
    finding = only(own(lambda order: [(order * 2)[rank * 6 : rank * 6 + 8] for rank in range(4)]))
    assert (finding["slug"], finding["where"]) == ("overlap", {})
    assert "ranks 0 and 1 share 2 of 8 samples" in finding["message"] and "and 1 more pair," in finding["message"]


def test_of_three_ranks_in_a_row_the_middle_one_is_not_to_blame() -> None:
    finding = only(own(lambda order: [order[:10], order[7:17], order[14:]]))
    assert (finding["slug"], finding["where"]) == ("overlap", {})


def test_the_only_rank_that_has_others_samples_is_named() -> None:
    def parts(order: Ids) -> list[Ids]:
        return [order[0:6], order[6:12], [order[0], order[1], order[7], order[8], order[18], order[19]], order[18:24]]

    finding = only(own(parts))
    assert (finding["slug"], finding["where"]["rank"]) == ("overlap", 2)


@pytest.mark.parametrize("world", [2, 32])
def test_each_rank_shuffles_for_itself(world: int) -> None:
    """By content: of many ranks each pair has little in common, and each rank much."""
    index = only(
        content(lambda order: [shuffled(960, order[rank])[: 960 // world] for rank in range(world)], length=960)
    )
    assert index["slug"] == "overlap"


def test_one_sample_on_two_ranks_and_one_on_none() -> None:
    parts = [dealt(shuffled(4000, number), 4) for number in (0, 1)]
    parts = [[ids[0], [ids[0][0], *ids[1][1:]], ids[2], ids[3]] for ids in parts]
    finding = only(read(*parts, length=4000))
    assert finding["slug"] == "overlap" and "1 of 4,000 are read by no rank" in finding["message"]


def test_a_half_that_nobody_sees() -> None:
    finding = only(own(lambda order: dealt([index for index in order if index < 24], 4), length=48))
    assert (finding["slug"], finding["where"]) == ("never_seen", {})
    assert finding["message"] == ("24 of 48 samples are read by no rank, such as index 24, expected all to be read")
    assert finding["evidence"]["missing"] == 24


# Batches


def test_one_batch_more() -> None:
    finding = only(read(*[dealt_unevenly(shuffled(25, number)) for number in (0, 1)], length=25, size=1))
    assert (finding["slug"], finding["where"], finding["noticed_by"]) == ("unequal_batches", {}, "0")
    assert finding["message"].startswith(
        "rank 0 has 7 batches, ranks 1-3 have 6 batches, expected the same on all: after "
    )


def dealt_unevenly(order: Ids) -> list[Ids]:
    return [order[rank::4] for rank in range(4)]


def test_a_batch_that_is_repeated_on_one_rank_or_left_out_is_told_once() -> None:
    more = own(lambda order: [[*part, *(dealt(order, 4)[1][:6] if not rank else [])]
                              for rank, part in enumerate(dealt(order, 4))], length=48)  # fmt: skip
    less = own(lambda order: [part[: 6 if rank == 3 else 12] for rank, part in enumerate(dealt(order, 4))], length=48)
    assert above_info(more) == above_info(less) == ["fail unequal_batches"]


def test_one_rank_has_come_to_the_end_while_others_go_on() -> None:
    made = content(lambda order: dealt(order, 4), length=48)
    for rank, finding in made.items():
        for its in finding["readings"][0]["epochs"]:
            its.update({"whole": rank == 2, "batches": 4 if rank == 2 else 6})
    told = [finding for finding in found(made) if finding["severity"] != "info"]
    assert [finding["noticed_by"] for finding in told] == ["0-1,3"]
    assert told[0]["message"].startswith("ranks 0-1,3 have 6 batches, rank 2 has 4 batches, ")


def test_a_rank_without_batches() -> None:
    finding = only(content(lambda order: [*dealt(order, 3), []]))
    assert (finding["slug"], finding["where"]["rank"]) == ("no_batches", 3)
    again = only(content(lambda order: dealt(order, 4) if order[0] == shuffled(24, 0)[0] else [[]] * 4))
    assert again["slug"] == "no_batches" and again["message"].startswith("in the second epoch all 4 ranks get no batch")


def test_unlike_batch_sizes() -> None:
    parts = [[list(shuffled(60, number)[start : start + own]) for start, own in zip((0, 12, 36, 48), (12, 24, 12, 12),
              strict=True)] for number in (0, 1)]  # fmt: skip
    made = read(*parts, length=60)
    for number in (0, 1):
        made[1]["readings"][0]["epochs"][number] = epoch(parts[number][1], 4)
    finding = only(made)
    assert (finding["severity"], finding["slug"], finding["where"]["rank"]) == ("warn", "batch_sizes", 1)
    assert finding["message"] == "batches have 4 samples, expected 2 as on 3 of 4 ranks"


def test_the_global_batch() -> None:
    assert found(stock(), global_batch=8) == found(stock(), global_batch=16, accumulate=2) == []
    finding = only(stock(), global_batch=64)
    assert finding["slug"] == "wrong_global_batch"
    assert finding["message"] == "a step trains on 8 samples (2 x 4 ranks), expected the global batch of 64"
    both = merged(stock(name="train"), stock(name="val", size=3))
    assert found(both, global_batch=8) == []
    assert slugs(both, global_batch=12) == ["wrong_global_batch"]


# Epochs


def test_the_same_order_in_each_epoch() -> None:
    same = [dealt(shuffled(24, 0), 4)] * 2
    finding = only(read(*same))
    assert (finding["severity"], finding["slug"], finding["where"]) == ("warn", "same_order", {})
    assert slugs(read(*same, shuffle=True, known_by="content")) == ["same_order"]
    ignored = only(read(*same, set_epoch=["loader.sampler"]))
    assert ignored["slug"] == "set_epoch_ignored" and "loader.sampler.set_epoch(1)" in ignored["message"]


def test_the_same_order_is_seen_where_epochs_were_not_read_to_the_same_sample() -> None:
    made = read(*[dealt(shuffled(400, 0), 4)] * 2, length=400)
    for rank, of_rank in made.items():
        ids = dealt(shuffled(400, 0), 4)[rank]
        of_rank["readings"][0]["epochs"] = [epoch(ids[:80], whole=False), epoch(ids[:60], whole=False)]
        of_rank["together"] = []
    assert above_info(made) == ["warn same_order"]


def test_what_never_ends_is_in_the_same_order_each_time_that_it_is_begun() -> None:
    made = read(*[dealt(shuffled(400, 0), 4)] * 2, length=400)
    for rank, of_rank in made.items():
        ids = dealt(shuffled(400, 0), 4)[rank]
        of_rank["readings"][0]["epochs"] = [epoch(ids[:80], whole=False)] * 2
        of_rank["together"] = []
    assert above_info(made) == ["warn same_order"]
    for batches in (None, 30):  # of 40 that were read
        for of_rank in made.values():
            of_rank["readings"][0]["batches"] = batches
        assert above_info(made) == []
        assert "same order" not in summary(made)


# What is worth knowing


def test_padding_and_tails_are_counted() -> None:
    (padded,) = found(stock(25))
    assert padded["code"].endswith("padded") and padded["message"].startswith("3 of 25 samples are seen again")
    (dropped,) = found(SOUND["a tail is dropped"])
    assert dropped["message"] == "3 of 27 samples are left out of an epoch"


def test_what_ranks_print_and_write_besides() -> None:
    made = stock()
    made[0] |= {"lines": 1, "printed": ["ready"], "written": ["cache/index"]}
    assert found(made) == []
    for rank in (1, 2):
        made[rank] |= {"lines": 2, "printed": ["loading", "ready"], "written": ["cache/index"]}
    printed, written = found(made)
    assert printed["message"] == "ranks 1-2 printed 4 lines in the function, such as 'loading'"
    assert written["message"] == (
        "ranks 1-2 wrote, created or removed 1 file in the function, such as cache/index, on 2 of them"
    )


def test_what_was_read_in_part_is_said() -> None:
    made = stock(400)
    for of_rank in made.values():
        of_rank["together"] = []
        for number in (0, 1):
            of_rank["readings"][0]["epochs"][number]["whole"] = False
    told = only(made)
    assert told["slug"] == "not_proven" and "of 400 in an epoch, not to its end" in told["message"]
    proven = "400 of 400 samples, 4 ranks x 100, no overlap among 800 compared, reshuffled each epoch"
    assert summary(made).partition("; ")[0] == proven


def test_a_rank_that_is_lost_leaves_samples_that_nobody_is_told_for() -> None:
    parts = dealt(range(24), 4)
    made = read(parts, parts, num_replicas=4, shuffle=False, of={rank: {"replica": rank} for rank in range(4)})
    del made[2]
    for finding in made.values():
        finding["together"] = []
    job = Job("env", 4, "gloo", (Node("node-0", 0, (0, 1, 2, 3)),))
    told = list(sampler.judge(made, Run(job, (0, 1, 2, 3), {})))
    assert [(finding.severity, finding.code) for finding in told] == [("info", NOT_PROVEN)]
    members = list(sampler.judge(made, Run(job, (0, 1, 3), {})))
    assert [finding.severity for finding in members if finding.severity != "info"] == []


# Scale


def many(world: int, *, alike: bool) -> dict[int, Facts]:
    """Of 64 samples a rank, of which all are shown."""

    def made(rank: int, number: int) -> Epoch:
        first = 0 if alike else rank
        return epoch([(first * 64 + at) ^ number for at in range(64)], 8, world=world)

    readings = {rank: [reading(made(rank, 0), made(rank, 1), length=64 * world)] for rank in range(world)}
    return facts(readings)


@pytest.mark.parametrize("alike", [False, True])
def test_of_1024_ranks(alike: bool) -> None:
    made = many(1024, alike=alike)
    run = Run(Job("env", 1024, "gloo", (Node("node-0", 0, tuple(range(1024))),)), tuple(range(1024)), {})
    with timed(f"data.sampler, 1,024 ranks that see {'the same' if alike else 'their own'}"):
        told = list(sampler.judge(made, run))
    assert [finding.code for finding in told] == ([disjoint.SAME_SAMPLES] if alike else [])
