"""What differences mean, on made-up facts of many ranks. The faults on real ranks are in tests/faults/train.py."""

import time
from typing import Any

import pytest

from preflight.check import Job, Node, Run
from preflight.checks.train import ddp
from preflight.checks.train.shared import parity
from preflight.checks.train.shared.parity.divergence import CurvePlace, Point
from preflight.checks.train.shared.parity.variant import Kind, Meaning
from preflight.results import judging
from preflight.train_smoke.trainer.names import VARIANTS
from tests.checks.train.made_trainings import apart, bend, furthest, judge, measured, only, sound, spoil


@pytest.mark.parametrize(
    ("kind", "rank", "step", "same"),
    [
        ("drift", 1, 3, True), ("drift", 1, 5, True), ("wrong_clip", 1, 3, True), ("wrong_clip", 1, 5, False),
        ("drift", 2, 3, False), ("drift", None, 3, True), ("drift", None, 5, False), ("unsteady", 1, 3, False),
    ],
)  # fmt: skip
def test_what_is_of_one_fault(kind: Kind, rank: int | None, step: int, same: bool) -> None:
    first, other = (
        parity.VariantFault("plain", Meaning(of, "", Point(CurvePlace(at, "norms"), 1.0, 2.0, 9.0), whose), {})
        for of, at, whose in (("drift", 3, 1), (kind, step, rank))
    )
    assert first.is_of(other) is same and other.is_of(first) is same


# Sound


@pytest.mark.parametrize("world", [1, 2, 3, 8, 1024])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_sound_ranks_give_no_finding(world: int, strategy: str) -> None:
    assert judge(sound(world, pieces=strategy == "fsdp2"), strategy) == []


def test_all_variants_that_are_sound_give_no_finding() -> None:
    assert judge(sound(8, *VARIANTS["ddp"])) == []


def test_roundings_are_no_finding() -> None:
    facts = sound()
    for rank in facts:
        for quantity in ("losses", "own_norms", "own_prints", "norms", "prints"):
            bend(measured(facts, rank), quantity, rank % 8, 1 + (rank - 4) * 1e-6)
        apart(facts, rank)["whole"]["end"]["off"] = rank * 1e-5
    assert judge(facts) == []


def test_bfloat16_may_be_as_coarse_as_its_own_spread() -> None:
    facts = sound(8, "autocast")
    for rank in facts:
        bend(measured(facts, rank, "autocast"), "norms", 3, 1.01)
    assert judge(facts) == []
    spoil(facts, 3, 1.1, "autocast")
    assert only(facts)["slug"] == "wrong_exchange"


def test_one_rank_with_a_wide_spread_does_not_hide_its_fault() -> None:
    facts = sound()
    facts[2]["alone"]["plain"]["spread"]["curves"] = 0.5
    bend(measured(facts, 2), "losses", 3, 1.1)
    assert only(facts)["where"]["rank"] == 2


def test_a_rank_that_joined_early_has_fewer_steps_and_no_state() -> None:
    facts = sound(3, "join")
    for quantity in ("losses", "own_norms", "own_prints", "norms", "prints"):
        measured(facts, 2, "join")[quantity].pop()
    del apart(facts, 2, "join")["whole"]["state"]
    assert judge(facts) == []
    apart(facts, 0, "join")["whole"]["end"] = furthest(0.1, "head.weight")
    assert only(facts)["where"] == {"node": "node-0", "rank": 0, "step": 7, "parameter": "head.weight"}


def test_of_two_micro_batches_the_norm_is_not_known() -> None:
    facts = sound(2, "no_sync")
    for rank in facts:
        measured(facts, rank, "no_sync")["own_norms"].clear()
    assert judge(facts) == []
    bend(measured(facts, 1, "no_sync"), "own_prints", 2, 1.1)
    assert only(facts)["message"].startswith("under DDP (no_sync) the signed sum of its own gradient at step 2 is")


def test_own_gradients_that_were_not_seen_at_each_step_are_not_compared() -> None:
    """Nobody knows which step a value is of."""
    facts = sound(2)
    del measured(facts, 1)["own_prints"][2]
    assert judge(facts) == []


# The start


def test_a_rank_with_other_weights_at_the_start_is_named() -> None:
    facts = sound()
    apart(facts, 3)["whole"]["start"] = furthest(1e-9, "head.weight")
    spoil(facts, 0)
    found = only(facts)
    assert (found["slug"], found["noticed_by"]) == ("wrong_start", "0-2,4-7")
    assert found["where"] == {"node": "node-0", "rank": 3, "step": 0, "parameter": "head.weight"}
    assert found["message"] == (
        "under DDP head.weight starts 1.0e-09 of its largest element away from where it starts alone, expected no "
        "difference"
    )


def test_a_piece_that_starts_otherwise_is_its_ranks() -> None:
    facts = sound(3, pieces=True)
    for rank in facts:
        apart(facts, rank)["whole"]["start"] = furthest(0.01, "head.weight")
    apart(facts, 1)["own"]["start"] = furthest(0.01, "head.weight")
    found = only(facts, "fsdp2")
    assert (found["slug"], found["where"]["rank"], found["noticed_by"]) == ("wrong_start", 1, "0,2")
    assert found["message"].endswith(", in rank 1's piece")


def test_other_weights_on_all_ranks_blame_none() -> None:
    facts = sound()
    for rank in facts:
        apart(facts, rank)["whole"]["start"] = furthest(0.01, "head.weight")
    found = only(facts)
    assert (found["slug"], found["where"]) == ("wrong_start", {"step": 0, "parameter": "head.weight"})


# Data


@pytest.mark.parametrize("world", [2, 3, 8])
def test_the_same_data_on_all_ranks_blame_none(world: int) -> None:
    facts = sound(world)
    for rank in range(1, world):
        for quantity in ("losses", "own_norms", "own_prints"):
            facts[rank]["variants"]["plain"]["curve"][quantity] = [*measured(facts, 0)[quantity]]  # type: ignore
    spoil(facts, 0)
    found = only(facts)
    assert (found["slug"], found["where"]) == ("wrong_data", {"step": 0})
    assert "it is the loss of rank 0's part, and all ranks have trained on the same data" in found["message"]


def test_a_rank_on_another_ones_data_is_named() -> None:
    facts = sound(3)
    for quantity in ("losses", "own_norms", "own_prints"):
        facts[1]["variants"]["plain"]["curve"][quantity] = [*measured(facts, 2)[quantity]]  # type: ignore
    found = only(facts)
    assert (found["slug"], found["where"]["rank"], found["where"]["step"]) == ("wrong_data", 1, 0)
    assert found["message"].endswith("it is the loss of rank 2's part, so it has trained on that rank's data")


def test_a_loss_that_is_another_parts_by_chance_is_not_its_data() -> None:
    """Its gradient is not that part's."""
    facts = sound(3)
    facts[1]["variants"]["plain"]["curve"]["losses"] = [*measured(facts, 2)["losses"]]  # type: ignore[index]
    assert only(facts)["slug"] == "wrong_step"


# A rank's own step


@pytest.mark.parametrize("quantity", ["losses", "own_norms", "own_prints"])
def test_the_rank_whose_own_step_is_wrong_first_is_named(quantity: str) -> None:
    facts = sound()
    spoil(facts, 4)
    bend(measured(facts, 6), quantity, 4, 1.1)
    found = only(facts)
    assert (found["slug"], found["noticed_by"]) == ("wrong_step", "0-5,7")
    assert found["where"] == {"node": "node-1", "rank": 6, "step": 4}


def test_a_message_has_the_measured_and_the_expected_value() -> None:
    facts = sound()
    bend(measured(facts, 6), "losses", 4, 1.1)
    assert only(facts)["message"] == (
        "under DDP the loss on its own part at step 4 is 3.5728, expected 3.248 (to 2e-05)"
    )
    facts = sound()
    bend(measured(facts, 6), "own_prints", 4, 1.1)
    found = only(facts)
    assert found["message"] == (
        "under DDP the signed sum of its own gradient at step 4 is 0.35728, expected 0.3248 (to 2e-05 of the norm)"
    )
    assert found["evidence"]["bound"] == (
        "2.0e-05, which is more than 8 x the spread of 7.0e-07 that this hardware's own roundings cause"
    )


def test_a_gradient_that_becomes_nan_on_one_rank_names_it() -> None:
    facts = sound()
    spoil(facts, 5, "nan")
    bend(measured(facts, 1), "own_norms", 5, "nan")
    found = only(facts)
    assert (found["slug"], found["where"]["rank"], found["where"]["step"]) == ("not_finite", 1, 5)


# The exchange


@pytest.mark.parametrize(
    ("by", "slug", "says"),
    [
        (8.0, "not_averaged", "is 16, expected 2 (to 2e-05): 8 times as much, so it is the sum over the ranks"),
        (1 / 8, "not_averaged", "1/8 of it, so it was divided by the number of ranks twice"),
        (1.01, "wrong_exchange", "though every rank's own gradient is right; most of all head.weight's, off by 1.000%"),
        ("nan", "not_finite", "is nan, expected 2 (to 2e-05); the norm of its own gradient is 4"),
    ],
)
def test_a_wrong_gradient_on_all_ranks_blames_none(by: float | str, slug: str, says: str) -> None:
    facts = sound()
    spoil(facts, 0, by)
    found = only(facts)
    assert (found["slug"], found["noticed_by"], found["where"].get("rank")) == (slug, "0-7", None)
    assert says in found["message"] and found["message"].endswith("(rank 0's; 8 of 8 ranks differ there)")


def test_gradients_that_are_not_exchanged_are_the_ranks_own() -> None:
    facts = sound()
    for rank in facts:
        measured(facts, rank)["norms"] = measured(facts, rank)["own_norms"]
    found = only(facts)
    assert (found["slug"], found["where"]) == ("not_exchanged", {"step": 0})


def test_pieces_of_own_gradients_are_not_exchanged_either() -> None:
    facts = sound(2, pieces=True)
    spoil(facts, 0)
    for rank in facts:
        apart(facts, rank)["like"] = 1 - 1e-9
        apart(facts, rank)["own"]["gradient"] = furthest(0.5)
    assert only(facts, "fsdp2")["slug"] == "not_exchanged"


@pytest.mark.parametrize("world", [2, 8])
def test_the_rank_whose_gradient_weighs_too_much_is_named(world: int) -> None:
    facts = sound(world)
    spoil(facts, 0, 1.0001)
    for rank in facts:
        apart(facts, rank)["along"] = {"times": 0.0005, "share": 0.3}
    apart(facts, 1)["along"] = {"times": 0.001, "share": 0.99999}
    found = only(facts)
    assert (found["slug"], found["where"]["rank"], found["where"]["step"]) == ("wrong_exchange", 1, 0)
    assert "rank 1's own gradient went into the mean 1.001 times, expected 1" in found["message"]


@pytest.mark.parametrize("shares", [(0.995, 0.98, 0.98), (0.9999, 0.9999, 0.9999), (0.98, 0.5, 0.5)])
def test_a_difference_that_is_no_ranks_alone_blames_none(shares: tuple[float, ...]) -> None:
    facts = sound(3)
    spoil(facts, 0, 1.0001)
    for rank, share in enumerate(shares):
        apart(facts, rank)["along"] = {"times": 0.001, "share": share}
    found = only(facts)
    assert "rank" not in found["where"] and "went into the mean" not in found["message"]


def test_of_ranks_with_the_same_data_none_is_blamed_alone() -> None:
    facts = sound()
    spoil(facts, 0, 1.0001)
    for rank in (1, 5):
        apart(facts, rank)["along"] = {"times": -1.0, "share": 0.99999}
    found = only(facts)
    assert "rank" not in found["where"]
    assert "one of ranks 1,5, which have equal data, went into the mean 0 times" in found["message"]


@pytest.mark.parametrize(
    ("rest", "elsewhere", "parameter", "says"),
    [
        (0.0, 0.0, "head.weight", "only head.weight's, off by 2.000% of its largest element, all others'"),
        (0.0, 0.0, "blocks.1.up.weight", "(of the block blocks.1), all others' are right"),
        (0.01, 0.0, "blocks.1.up.weight", "only in the block blocks.1, most of all blocks.1.up.weight's"),
        (0.01, 0.01, "blocks.1.up.weight", "most of all blocks.1.up.weight's"),
    ],
)
def test_which_parameter_and_in_which_block_is_said(rest: float, elsewhere: float, parameter: str, says: str) -> None:
    facts = sound()
    spoil(facts, 0)
    for rank in facts:
        apart(facts, rank)["whole"]["gradient"] = furthest(0.02, parameter, rest, elsewhere)
    found = only(facts)
    assert found["where"] == {"step": 0, "parameter": parameter}
    assert says in found["message"]


def test_a_gradient_that_is_a_little_off_everywhere_is_coarse() -> None:
    facts = sound()
    spoil(facts, 0, 1.0005)
    for rank in facts:
        apart(facts, rank)["whole"]["gradient"] = furthest(0.003, "head.weight", 0.002, 0.002)
    found = only(facts)
    assert found["slug"] == "drift" and "as after rounding to bfloat16" in found["message"]


@pytest.mark.parametrize("world", [2, 3])
def test_a_wrong_reduce_scatter_is_the_ranks_whose_piece_is_wrong(world: int) -> None:
    facts = sound(world, pieces=True)
    spoil(facts, 0)
    apart(facts, 1)["own"]["gradient"] = furthest(0.02, "blocks.0.up.weight")
    found = only(facts, "fsdp2")
    assert (found["slug"], found["where"]["rank"]) == ("wrong_exchange", 1)
    assert "only rank 1's piece is wrong (blocks.0.up.weight's, off by 2.000%" in found["message"]


def test_one_rank_with_another_gradient_after_the_all_reduce_is_named() -> None:
    facts = sound()
    bend(measured(facts, 2), "prints", 0, 1.5)
    apart(facts, 2)["whole"]["gradient"] = furthest(0.4)
    found = only(facts)
    assert found["slug"] == "wrong_exchange"
    assert found["where"] == {"node": "node-0", "rank": 2, "step": 0, "parameter": "tokens.weight"}


def clipped(facts: Any, to: float) -> None:
    """Each rank's gradient to this norm, then their mean."""
    for step in range(8):
        own = [(float(its["own_norms"][step]), float(its["own_prints"][step])) for its in map_curves(facts)]
        mean = sum(print_ * min(1, to / norm) for norm, print_ in own) / len(own)
        for its in map_curves(facts):
            its["prints"][step], its["norms"][step] = mean, to * 0.9


def map_curves(facts: Any) -> list[Any]:
    return [measured(facts, rank) for rank in facts]


def test_a_gradient_that_was_clipped_before_the_exchange_is_told_so() -> None:
    facts = sound()
    clipped(facts, 1.5)
    found = only(facts)
    assert (found["slug"], found["where"]) == ("wrong_clip", {"step": 0})
    assert "own gradient was clipped to 1.5 before the ranks exchanged it" in found["message"]
    bend(measured(facts, 0), "prints", 4, 1.1)
    assert only(facts)["slug"] != "wrong_clip"


def test_a_clip_that_was_not_by_the_norm_over_all_ranks_is_told_so() -> None:
    facts = sound(4, "clip", pieces=True)
    for rank in facts:
        bend(measured(facts, rank, "clip"), "losses", 1, 1.05)
    found = only(facts, "fsdp2")
    assert (found["slug"], found["where"]) == ("wrong_clip", {"step": 1})


def test_of_a_wrong_clip_the_rank_whose_piece_ends_furthest_off_is_not_to_blame() -> None:
    """Its piece had another norm. A step that goes wrong later is no clip's: the first one is clipped, too."""
    for step, slug in ((1, "wrong_clip"), (4, "out_of_sync")):
        facts = sound(4, "clip", pieces=True)
        for rank in facts:
            bend(measured(facts, rank, "clip"), "losses", step, 1.1)
            apart(facts, rank, "clip")["own"]["end"] = furthest(0.5 if rank == 2 else 0.01)
        assert only(facts, "fsdp2")["slug"] == slug


# Later


def test_where_ranks_drift_together_no_rank_and_no_step_is_to_blame() -> None:
    facts = sound(2)
    for rank in facts:
        for step in range(8):
            bend(measured(facts, rank), "losses", step, 1 + 5e-6)
    found = only(facts)
    assert (found["slug"], found["where"]) == ("drift", {"step": 3})
    assert "no step stands out" in found["message"]


@pytest.mark.parametrize("by", [1.01, 1.0001])
def test_a_step_that_stands_out_is_no_drift(by: float) -> None:
    facts = sound(2)
    for rank in facts:
        bend(measured(facts, rank), "losses", 4, by)
    found = only(facts)
    assert (found["slug"], found["where"]) == ("wrong_exchange", {"step": 4})
    assert "all ranks have taken the same wrong step" in found["message"]


def test_a_rank_that_no_longer_has_the_others_parameters_is_out_of_sync() -> None:
    facts = sound()
    spoil(facts, 4)
    bend(measured(facts, 6), "losses", 4, 1.1)
    apart(facts, 6)["whole"]["end"] = furthest(2.0, "blocks.1.up.weight")
    found = only(facts)
    assert found["slug"] == "out_of_sync"
    assert found["where"] == {"node": "node-1", "rank": 6, "step": 4, "parameter": "blocks.1.up.weight"}


def test_a_piece_that_ends_far_further_off_than_the_others_is_its_ranks() -> None:
    facts = sound(3, pieces=True)
    for rank in facts:
        bend(measured(facts, rank), "losses", 4, 1.1)
        apart(facts, rank)["own"]["end"] = furthest(0.1)
    assert only(facts, "fsdp2")["slug"] == "wrong_exchange"
    apart(facts, 1)["own"]["end"] = furthest(5.0, "head.weight")
    found = only(facts, "fsdp2")
    assert (found["slug"], found["where"]["rank"], found["where"]["parameter"]) == ("out_of_sync", 1, "head.weight")


@pytest.mark.parametrize(("moment", "says"), [("end", "ends 2.000% of its path"), ("state", "momentum_buffer of head")])
def test_what_no_step_has_shown_is_compared_at_the_end(moment: Any, says: str) -> None:
    facts = sound()
    name = "head.weight momentum_buffer" if moment == "state" else "head.weight"
    apart(facts, 6)["whole"][moment] = furthest(0.02, name)
    found = only(facts)
    assert (found["slug"], found["where"]["step"], found["where"]["rank"]) == ("out_of_sync", 7, 6)
    assert found["where"]["parameter"] == "head.weight" and says in found["message"]
    for rank in facts:
        apart(facts, rank)["whole"][moment] = furthest(0.02, name)
    found = only(facts)
    assert (found["slug"], found["where"].get("rank")) == ("wrong_exchange", None)
    for rank in facts:
        apart(facts, rank)["whole"][moment] = furthest(0.002 if moment == "end" else 2e-4, name)
    assert only(facts)["slug"] == "drift"


def test_a_world_of_one_blames_nobody() -> None:
    facts = sound(1)
    spoil(facts, 0)
    apart(facts, 0)["like"] = 1.0  # its own gradient is the whole one
    found = only(facts)
    assert (found["slug"], found["where"]["step"], "rank" in found["where"]) == ("wrong_exchange", 0, False)


# Several variants


def test_a_fault_of_several_variants_is_told_once() -> None:
    facts = sound(8, "plain", "no_sync", "clip", "autocast")
    for variant in ("plain", "no_sync", "autocast"):
        spoil(facts, 0, 8.0, variant)
    found = only(facts)
    assert found["slug"] == "not_averaged" and found["message"].startswith(
        "under DDP the gradient norm at step 0 is 16"
    )
    assert found["message"].endswith("; the same under no_sync, autocast")


def test_two_faults_are_told_apart() -> None:
    facts = sound(8, "plain", "no_sync")
    bend(measured(facts, 1), "losses", 2, 1.1)
    bend(measured(facts, 5, "no_sync"), "losses", 2, 1.1)
    found = judge(facts)
    assert [each["where"]["rank"] for each in found] == [1, 5]
    assert found[1]["message"].startswith("under DDP (no_sync) ")


# Words


RUN = Run(Job("env", 8, "gloo", ()), tuple(range(8)), {})


def test_the_summary_is_the_curve_and_how_near_it_is() -> None:
    facts = sound()
    for rank in facts:
        bend(measured(facts, rank), "norms", 4, 1 + 3e-7)
    assert ddp.summarize(facts, RUN) == "plain on 8 ranks: loss 4.04 to 2.62, as alone to 3e-07"
    assert len(f"train.ddp  pass  {ddp.summarize(facts, RUN)}") <= 80


def test_the_summary_of_many_variants_counts_them_and_tells_which_are_coarser() -> None:
    facts = sound(2, *VARIANTS["ddp"])
    for rank in facts:
        bend(measured(facts, rank, "autocast"), "norms", 4, 1.004)
        facts[rank]["variants"]["join"] = {
            "recipe": "plain", "unfit": "one rank", "curve": None, "apart": None, "memory": None, "changed": None,
            "clipped": [], "mesh": "", "sizes": {}, "made": [], "replicas": None,
                "product": None,
        }  # fmt: skip
    assert ddp.summarize(facts, RUN) == (
        "plain, no_sync, bucket_view, clip, autocast on 2 ranks: loss 4 to 2.6, exactly as alone, autocast to 4e-03; "
        "not run: join (one rank)"
    )


@pytest.mark.parametrize("quantity", [pytest.param("norms", marks=pytest.mark.more), "losses"])
def test_8192_unlike_ranks_are_judged_long_before_the_deadline(quantity: str) -> None:
    facts = sound(8192)
    for rank in facts:
        bend(measured(facts, rank), quantity, 4, 1.01 + rank / 1e5)
    run = Run(Job("env", 8192, "nccl", (Node("a", 0, tuple(facts)),)), tuple(facts), {})
    start = time.process_time()
    assert [finding.code for finding in ddp.judge(facts, run)] == [parity.WRONG_EXCHANGE]
    assert time.process_time() - start < judging.deadline_s(8192) / 3
