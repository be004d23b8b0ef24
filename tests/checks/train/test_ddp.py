"""Made-up facts of many ranks, and sound worlds. The faults on real ranks are in tests/faults/train.py."""

import copy
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from preflight import judging, registry, testing
from preflight.check import Job, Node, Run
from preflight.checks.train import ddp
from preflight.checks.train.ddp import Facts
from preflight.train_smoke.compare import Curve, Number
from tests import running

STEPS = 10
NODES = {"node-0": range(4), "node-1": range(4, 8)}


def _curve(size: float) -> Curve:
    values: list[Number] = [size * (1.0 - step / 20) for step in range(STEPS)]
    return {
        "losses": [*values],
        "own_norms": [*values],
        "own_prints": [value * 0.1 for value in values if isinstance(value, float)],
        "norms": [value * 0.5 for value in values if isinstance(value, float)],
        "prints": [value * 0.2 for value in values if isinstance(value, float)],
    }


def sound(world: int = 8) -> dict[int, Facts]:
    """Every rank's own part has another loss and gradient, the whole batch has one."""
    facts: dict[int, Facts] = {}
    for rank in range(world):
        own = _curve(4.0 + rank % 31 / 100)
        own["norms"], own["prints"] = _curve(4.0)["norms"], _curve(4.0)["prints"]
        facts[rank] = {
            "alone": _curve(4.0),
            "in_parts": copy.deepcopy(own),
            "spread": {"parameter": "head.weight", "off": 1e-5},
            "ddp": copy.deepcopy(own),
            "first": {"parameter": "tokens.weight", "off": 1e-6},
            "end": {"parameter": "positions.weight", "off": 1e-5},
        }
    return facts


def bend(curve: Curve, quantity: str, step: int, by: float | str) -> None:
    """From this step on a curve is so many times what it was, or this text."""
    values: list[Number] = curve[quantity]  # type: ignore[literal-required]
    values[step:] = [by if isinstance(by, str) or isinstance(value, str) else value * by for value in values[step:]]


def judge(facts: Mapping[int, Facts]) -> list[dict[str, Any]]:
    return testing.judge(ddp, facts, nodes=NODES if len(facts) == 8 else None)


def one(facts: Mapping[int, Facts]) -> dict[str, Any]:
    (found,) = judge(facts)
    assert found["severity"] == "fail"
    return found


@pytest.mark.parametrize("world", [1, 2, 3, 8, 1024])
def test_sound_ranks_give_no_finding(world: int) -> None:
    assert testing.judge(ddp, sound(world)) == []


def test_differences_of_rounding_are_no_finding() -> None:
    facts = sound()
    for rank, its in facts.items():
        for curve in (its["alone"], its["in_parts"], its["ddp"]):
            for quantity in ("losses", "own_norms", "own_prints", "norms", "prints"):
                bend(curve, quantity, rank % STEPS, 1 + (rank - 4) * 1e-7)
        its["end"]["off"] = its["spread"]["off"] = rank * 1e-5
    assert judge(facts) == []


# Alone


def test_the_rank_that_trains_otherwise_alone_is_named() -> None:
    facts = sound()
    for curve in (facts[5]["alone"], facts[5]["in_parts"]):
        bend(curve, "norms", 3, 1.001)
    bend(facts[0]["ddp"], "norms", 0, 8.0)  # a consequence: not told
    found = one(facts)
    assert (found["code"], found["noticed_by"]) == ("train.ddp.wrong_alone", "")
    assert found["where"] == {"node": "node-1", "rank": 5, "step": 3}
    assert found["message"] == "alone the gradient norm at step 3 is 1.7017, expected 1.7 as on 7 of 8 ranks"


def test_where_no_value_has_a_majority_nobody_is_named() -> None:
    facts = sound()
    for rank in range(4):
        bend(facts[rank]["alone"], "losses", 2, 1.01)
    found = one(facts)
    assert (found["code"], found["where"]) == ("train.ddp.wrong_alone", {"step": 2})
    assert found["message"] == (
        "alone the loss at step 2 is 3.636 on ranks 0-3, 3.6 on ranks 4-7, expected the same on all"
    )


@pytest.mark.parametrize("world", [2, 8])
def test_a_rank_that_differs_from_itself_is_named_among_two_as_well(world: int) -> None:
    facts = sound(world)
    bend(facts[1]["in_parts"], "prints", 6, 1.01)
    bend(facts[1]["alone"], "losses", 7, 1.01)  # it need not be said twice
    found = one(facts)
    assert (found["code"], found["where"]["rank"], found["where"]["step"]) == ("train.ddp.wrong_alone", 1, 6)
    assert found["message"].startswith("alone again, with the batch in two parts, the signed sum of the gradient")


def test_parameters_alone_are_compared_too() -> None:
    facts = sound()
    facts[2]["spread"] = {"parameter": "blocks.0.up.weight", "off": 0.01}
    assert one(facts)["message"] == (
        "alone again, with the batch in two parts, blocks.0.up.weight ends 1.000% of its way from where it should, "
        "expected at most 0.1%"
    )


def test_coarse_hardware_is_sound_and_one_coarse_rank_is_not() -> None:
    facts = sound()
    for its in facts.values():
        bend(its["in_parts"], "norms", 5, 1.001)
        bend(its["ddp"], "norms", 5, 0.999)
    assert judge(facts) == []
    for rank in range(7):
        facts[rank] = sound()[rank]
    found = one(facts)
    assert (found["code"], found["where"]["rank"]) == ("train.ddp.wrong_alone", 7)


def test_no_number_on_any_rank_blames_nobody() -> None:
    facts = sound()
    for its in facts.values():
        for curve in (its["alone"], its["in_parts"], its["ddp"]):
            bend(curve, "norms", 4, "nan")
            bend(curve, "losses", 5, "nan")
        its["spread"]["off"] = its["end"]["off"] = "nan"
    found = one(facts)
    assert (found["code"], found["where"]) == ("train.ddp.not_finite", {"step": 4})
    assert found["message"] == "alone the gradient norm at step 4 is nan on all ranks, expected a number"


def test_no_number_on_one_rank_names_it() -> None:
    facts = sound()
    bend(facts[3]["alone"], "losses", 0, "inf")
    bend(facts[3]["in_parts"], "losses", 0, "inf")
    found = one(facts)
    assert (found["code"], found["where"]["rank"]) == ("train.ddp.wrong_alone", 3)
    assert "is inf, expected 4.0 as on 7 of 8 ranks" in found["message"]


# Under DDP


def spoil(facts: dict[int, Facts], step: int, by: float | str = 1.01) -> None:
    """What a wrong gradient of one rank does to all."""
    for its in facts.values():
        bend(its["ddp"], "norms", step, by)
        bend(its["ddp"], "losses", step + 1, by)
        its["end"] = {"parameter": "head.weight", "off": 0.3}


@pytest.mark.parametrize("quantity", ["losses", "own_norms", "own_prints"])
def test_the_rank_whose_own_step_is_wrong_first_is_named(quantity: str) -> None:
    facts = sound()
    spoil(facts, 4)
    bend(facts[6]["ddp"], quantity, 4, 1.1)
    found = one(facts)
    assert (found["code"], found["noticed_by"]) == ("train.ddp.wrong_step", "0-5,7")
    assert found["where"] == {"node": "node-1", "rank": 6, "step": 4}


def test_a_message_has_the_measured_and_the_expected_value() -> None:
    facts = sound()
    bend(facts[6]["ddp"], "losses", 4, 1.1)
    assert one(facts)["message"] == (
        "under DDP the loss on its own part at step 4 is 3.5728, expected 3.248 (to 2e-05)"
    )
    facts = sound()
    bend(facts[6]["ddp"], "own_prints", 4, 1.1)
    assert one(facts)["message"] == (
        "under DDP the signed sum of its own gradient at step 4 is 0.35728, expected 0.3248 (to 2e-05 of the norm)"
    )


def test_where_ranks_drift_together_the_first_is_not_blamed() -> None:
    facts = sound(2)
    bend(facts[0]["ddp"], "losses", 4, 1 + 2.5e-5)
    bend(facts[1]["ddp"], "losses", 4, 1 + 1.5e-5)
    found = one(facts)
    assert (found["code"], found["where"], found["noticed_by"]) == ("train.ddp.wrong_exchange", {"step": 4}, "0")
    assert found["message"].endswith("all ranks have taken the same wrong step (rank 0's; 1 of 2 ranks differ there)")


def test_a_rank_that_no_longer_has_the_others_parameters_is_out_of_sync() -> None:
    facts = sound()
    spoil(facts, 4)
    bend(facts[6]["ddp"], "losses", 4, 1.1)
    facts[6]["end"] = {"parameter": "blocks.1.up.weight", "off": 2.0}
    found = one(facts)
    assert found["code"] == "train.ddp.out_of_sync"
    assert found["where"] == {"node": "node-1", "rank": 6, "step": 4, "parameter": "blocks.1.up.weight"}


def test_parameters_that_no_step_has_shown_are_compared_at_the_end() -> None:
    facts = sound()
    facts[6]["end"] = {"parameter": "blocks.1.up.weight", "off": 0.02}
    found = one(facts)
    assert (found["code"], found["where"]["step"], found["where"]["rank"]) == ("train.ddp.out_of_sync", 9, 6)
    for its in facts.values():
        its["end"] = facts[6]["end"]
    found = one(facts)
    assert (found["code"], found["where"]) == ("train.ddp.wrong_exchange", {"step": 9})


@pytest.mark.parametrize(
    ("by", "code", "says"),
    [
        (8.0, "not_averaged", "is 16, expected 2 (to 2e-05): 8 times as much, so it is the sum over the ranks"),
        (1 / 8, "not_averaged", "1/8 of it, so it was divided by the number of ranks twice"),
        (1.01, "wrong_exchange", "though every rank's own gradient is right (rank 0's; 8 of 8 ranks differ there)"),
        ("nan", "not_finite", "is nan, expected 2 (to 2e-05); the norm of its own gradient is 4"),
    ],
)
def test_a_wrong_gradient_on_all_ranks_blames_none(by: float | str, code: str, says: str) -> None:
    facts = sound()
    spoil(facts, 0, by)
    found = one(facts)
    assert (found["code"], found["noticed_by"]) == (f"train.ddp.{code}", "0-7")
    assert says in found["message"]
    where = {"step": 0, "parameter": "tokens.weight"} if code == "wrong_exchange" else {"step": 0}
    assert found["where"] == where


def test_gradients_that_are_not_exchanged_are_the_ranks_own() -> None:
    facts = sound()
    for its in facts.values():
        its["ddp"]["norms"] = its["ddp"]["own_norms"]
    found = one(facts)
    assert (found["code"], found["where"]) == ("train.ddp.not_exchanged", {"step": 0})


def test_one_rank_with_another_gradient_after_the_all_reduce_is_named() -> None:
    facts = sound()
    bend(facts[2]["ddp"], "prints", 0, 1.5)
    facts[2]["end"]["off"] = 0.4
    found = one(facts)
    assert found["code"] == "train.ddp.wrong_exchange"
    assert found["where"] == {"node": "node-0", "rank": 2, "step": 0, "parameter": "tokens.weight"}


def test_a_gradient_that_becomes_nan_on_one_rank_names_it() -> None:
    facts = sound()
    spoil(facts, 5, "nan")
    bend(facts[1]["ddp"], "own_norms", 5, "nan")
    found = one(facts)
    assert (found["code"], found["where"]["rank"], found["where"]["step"]) == ("train.ddp.not_finite", 1, 5)


def test_a_world_of_one_blames_nobody() -> None:
    facts = sound(1)
    spoil(facts, 0)
    found = one(facts)
    assert (found["code"], found["where"]["step"], "rank" in found["where"]) == ("train.ddp.wrong_exchange", 0, False)


def test_the_summary_is_the_curve_and_how_near_ddp_is() -> None:
    run = Run(Job("env", 8, "gloo", ()), tuple(range(8)), {})
    assert ddp.summarize(sound(), run) == "10 steps on 8 ranks: loss 4 to 2.2, parameters as alone to 1e-05"


def test_every_code_is_tested() -> None:
    tested = {
        "wrong_alone", "not_finite", "wrong_step", "not_averaged", "not_exchanged", "wrong_exchange", "out_of_sync"
    }  # fmt: skip
    assert set(registry.load(registry.sources()["train.ddp"]).codes) == tested


def test_8192_unlike_ranks_are_judged_long_before_the_deadline() -> None:
    facts = sound(8192)
    spoil(facts, 4)
    run = Run(Job("env", 8192, "nccl", (Node("a", 0, tuple(facts)),)), tuple(facts), {})
    start = time.perf_counter()
    assert [finding.code for finding in ddp.judge(facts, run)] == [ddp.WRONG_EXCHANGE]
    assert time.perf_counter() - start < judging.deadline_s(8192) / 3


# Real ranks


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_real_ranks_are_sound_with_as_many_threads_as_they_like(world: int, tmp_path: Path) -> None:
    ranks = running.plain_ranks(world)
    for env in ranks:
        del env["OMP_NUM_THREADS"]
    finished = running.run_ranks(tmp_path, ranks, "--only", "train.ddp,plugin", "--plugin", "after")
    told = finished.told()
    assert finished.report["verdict"] == "pass", told
    assert finished.findings() == [] and finished.left_over == [], told
    assert finished.check("train.ddp")["status"] == "pass", told
    assert finished.check("plugin.after")["summary"] == f"{world} members, sum {world}", told
