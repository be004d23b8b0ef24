"""Made-up facts of many ranks, and real trainings. The faults on real ranks are in tests/faults/train_alone.py."""

import copy
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
import torch

from preflight import testing
from preflight.check import Job, Node, Run
from preflight.checks.train import alone
from preflight.planning import registry
from preflight.results import judging
from preflight.sdk import arithmetic
from preflight.train_smoke.trainer import batch, bit_equality, reference, repeated
from preflight.train_smoke.trainer.compare import LEAST
from preflight.train_smoke.trainer.task import TrainingTask

STEPS = 8
CPU = torch.device("cpu")
NODES = {"node-0": range(4), "node-1": range(4, 8)}
GPU = {"type": "cuda", "name": "NVIDIA H100 80GB HBM3", "torch": "2.6.0", "threads": "1"}
SPREAD = {"curves": 8e-7, "gradient": 7e-7, "end": 3e-5, "state": 5e-7}


def training() -> dict[str, Any]:
    values = [4.0 * (1 - step / 10) for step in range(STEPS)]
    curve = {name: [*values] for name in ("losses", "own_norms", "own_prints", "norms", "prints")}
    names = ["tokens.weight", "head.weight"]
    tensors = [[f"{moment} {name}", "aa"] for moment in ("start", "gradient", "end") for name in names]
    return {"curve": curve, "tensors": [*tensors, ["state head.weight momentum_buffer", "aa"]]}


def sound(world: int = 8) -> dict[int, Any]:
    facts = {"kind": GPU, "whole": training(), "unlike": {}, "spread": SPREAD, "unordered": []}
    return {rank: copy.deepcopy(facts) for rank in range(world)}


def bend(facts: dict[str, Any], quantity: str, step: int, by: float | str) -> None:
    """From this step on a curve is so many times what it was, or this text; and the rest of the training with it."""
    values = facts["curve"][quantity]
    values[step:] = [by if isinstance(by, str) else value * by for value in values[step:]]
    for place in facts["tensors"]:
        if place[0].partition(" ")[0] in ("end", "state"):
            place[1] = f"{quantity}{step}{by}"


def again(facts: dict[str, Any], by: float = 1.01, apart: float = 0.01, training: str = "parts") -> None:
    """The second time from step 3 on it was so many times what it was."""
    second = copy.deepcopy(facts["whole"])
    bend(second, "norms", 3, by)
    facts["unlike"][training] = {"once": facts["whole"], "again": second, "apart": dict.fromkeys(SPREAD, apart)}


def judge(facts: Mapping[int, Any]) -> list[dict[str, Any]]:
    return testing.judge(alone, facts, nodes=NODES if len(facts) == 8 else None)


def only(facts: Mapping[int, Any]) -> dict[str, Any]:
    (found,) = judge(facts)
    return found


def told(facts: Mapping[int, Any]) -> list[tuple[str, str, int | None]]:
    """(severity, slug, rank)."""
    return [(f["severity"], f["code"].rpartition(".")[2], f["where"].get("rank")) for f in judge(facts)]


@pytest.mark.parametrize("world", [1, 2, 3, 8, 1024])
def test_sound_ranks_give_no_finding(world: int) -> None:
    assert testing.judge(alone, sound(world)) == []


def test_every_code_is_tested() -> None:
    codes = {"differs_from_itself", "wrong_alone", "not_finite", "different_bits"}
    assert set(registry.describe(registry.Source("train.alone", "builtin", alone.__name__), alone).codes) == codes


# Against itself


@pytest.mark.parametrize("world", [1, 2, 8])
def test_a_rank_that_differs_from_itself_is_named_in_any_world(world: int) -> None:
    facts = sound(world)
    again(facts[world - 1], 1 + 1e-7, 1e-7)
    bend(facts[world - 1]["whole"], "losses", 7, 1.01)  # it need not be said twice
    found = only(facts)
    assert (found["severity"], found["code"]) == ("fail", "train.alone.differs_from_itself")
    assert (found["where"]["rank"], found["where"]["step"]) == (world - 1, 3)
    assert found["message"] == (
        "trained twice alone with the batch in parts, the gradient norm at step 3 is 2.80000028 the second time and "
        "2.8 the first, expected the same bits"
    )


def test_what_most_ranks_do_within_the_limits_is_the_library() -> None:
    facts = sound(8)
    for rank in range(5):
        again(facts[rank], apart=1e-6)
        bend(facts[rank]["whole"], "norms", rank, 1 + 1e-6)
    found = only(facts)
    assert (found["severity"], found["code"], found["noticed_by"]) == ("warn", "train.alone.different_bits", "0-4")
    assert found["where"] == {} and "5 of 8 ranks got different bits (within the limits)" in found["message"]
    again(facts[6], apart=0.01)
    assert told(facts) == [("warn", "different_bits", None), ("fail", "differs_from_itself", 6)]


def test_most_ranks_beyond_the_limits_are_sick() -> None:
    facts = sound(2)
    again(facts[0])
    again(facts[1])
    assert told(facts) == [("fail", "differs_from_itself", 0), ("fail", "differs_from_itself", 1)]


def test_where_an_operation_has_no_fixed_order_other_bits_prove_nothing() -> None:
    facts = sound(8)
    for rank, its in facts.items():
        its["unordered"] = ["cumsum_cuda_kernel"]
        if rank % 2:
            again(its, apart=1e-6)
        bend(its["whole"], "norms", rank, 1 + 1e-6)
    assert judge(facts) == []
    again(facts[2], apart=0.01)
    bend(facts[5]["whole"], "norms", 0, 1.01)
    assert told(facts) == [("fail", "differs_from_itself", 2), ("fail", "wrong_alone", 5)]


# No numbers


def test_no_number_on_any_rank_blames_nobody() -> None:
    facts = sound()
    for its in facts.values():
        bend(its["whole"], "norms", 4, "nan")
    found = only(facts)
    assert (found["code"], found["where"]) == ("train.alone.not_finite", {"step": 4})
    assert found["message"] == "alone the gradient norm at step 4 is nan on all ranks, expected a number"


@pytest.mark.parametrize("sick", [(0,), (2, 3), (0, 1, 2, 4, 5, 6, 7)])
def test_ranks_with_no_numbers_are_named_also_if_they_are_many(sick: tuple[int, ...]) -> None:
    facts = sound()
    for rank in sick:
        bend(facts[rank]["whole"], "losses", 2, "inf")
    assert told(facts) == [("fail", "not_finite", rank) for rank in sick]
    message = judge(facts)[0]["message"]
    assert message == f"alone the loss at step 2 is inf, expected a number as on {8 - len(sick)} of 8 ranks"
    facts = sound(1)
    bend(facts[0]["whole"], "losses", 2, "inf")
    assert only(facts)["message"] == "alone the loss at step 2 is inf, expected a number"


# Against its kind


def test_the_rank_with_other_bits_is_named_with_the_first_value() -> None:
    facts = sound()
    bend(facts[5]["whole"], "norms", 3, 1 + 3e-7)
    found = only(facts)
    assert (found["severity"], found["code"], found["noticed_by"]) == ("fail", "train.alone.wrong_alone", "")
    assert found["where"] == {"node": "node-1", "rank": 5, "step": 3}
    assert found["message"] == (
        "alone the gradient norm at step 3 is 2.800001, expected 2.8 as on 7 of 8 ranks of its kind"
    )


@pytest.mark.parametrize(
    ("place", "step", "says"),
    [
        ("start tokens.weight", 0, "the bits of tokens.weight before step 0 are bb, expected aa as on 7 of 8 ranks"),
        ("gradient head.weight", 0, "the bits of the gradient of head.weight at step 0 are bb"),
        ("end head.weight", 7, "the bits of head.weight after step 7 are bb"),
        ("state head.weight momentum_buffer", 7, "the bits of the optimizer's head.weight momentum_buffer after step"),
    ],
)
def test_a_tensor_is_named_where_no_number_shows_it(place: str, step: int, says: str) -> None:
    facts = sound()
    next(its for its in facts[2]["whole"]["tensors"] if its[0] == place)[1] = "bb"
    found = only(facts)
    where = {"node": "node-0", "rank": 2, "step": step, "parameter": place.split()[1]}
    assert found["where"] == where and says in found["message"]


def test_where_no_bits_have_a_majority_nobody_is_named() -> None:
    facts = sound(2)
    bend(facts[1]["whole"], "losses", 2, 1 + 3e-7)
    found = only(facts)
    assert (found["severity"], found["code"], found["where"]) == ("fail", "train.alone.wrong_alone", {"step": 2})
    assert found["message"] == (
        "alone the loss at step 2 is 3.2 on rank 0, 3.200001 on rank 1, expected the same on all"
    )
    facts = sound(4)
    bend(facts[1]["whole"], "losses", 5, 1.01)
    bend(facts[2]["whole"], "losses", 2, 1.01)
    found = only(facts)
    assert "3.232 on rank 2, and different again on 1 more, expected" in found["message"] and found["where"] == {
        "step": 2
    }


def test_several_with_the_same_small_difference_run_other_code() -> None:
    facts = sound()
    for rank in (6, 7):
        bend(facts[rank]["whole"], "norms", 3, 1 + 3e-7)
    assert told(facts) == [("warn", "different_bits", 6), ("warn", "different_bits", 7)]
    for rank in (4, 5):
        bend(facts[rank]["whole"], "norms", 3, 1 + 3e-7)
    assert told(facts) == [("warn", "different_bits", None)], "four against four"
    facts = sound()
    for rank in (6, 7):
        bend(facts[rank]["whole"], "norms", 3, 1.01)
    assert told(facts) == [("fail", "wrong_alone", 6), ("fail", "wrong_alone", 7)]


def test_unlike_kinds_are_compared_within_the_limits_only() -> None:
    facts = sound()
    for rank in (6, 7):
        facts[rank]["kind"] = {**GPU, "name": "NVIDIA A100-SXM4-80GB"}
        bend(facts[rank]["whole"], "norms", 3, 1 + LEAST.curves / 4)
    assert judge(facts) == []
    bend(facts[7]["whole"], "norms", 3, 1.01)
    found = judge(facts)[0]
    assert (found["code"], found["severity"]) == ("train.alone.wrong_alone", "fail")
    for rank in (6, 7):
        facts[rank]["whole"] = training()
        bend(facts[rank]["whole"], "norms", 3, 1.01)
    assert told(facts) == [("fail", "wrong_alone", 6), ("fail", "wrong_alone", 7)]
    assert judge(facts)[0]["message"] == "alone the gradient norm at step 3 is 2.828, expected 2.8 as on 6 of 8 ranks"


def test_cpus_of_two_nodes_are_not_compared_by_bits_and_those_of_one_are() -> None:
    facts = sound()
    for rank, its in facts.items():
        its["kind"] = {**GPU, "type": "cpu"}
        bend(its["whole"], "norms", 3, 1 + 3e-7 * (rank > 3))
    assert judge(facts) == []
    bend(facts[6]["whole"], "norms", 5, 1 + 3e-7)
    assert told(facts) == [("fail", "wrong_alone", 6)]


# Within the limits


def test_a_rank_that_is_wrong_with_the_batch_in_parts_only_is_named() -> None:
    facts = sound(2)
    facts[1]["spread"] = {**SPREAD, "gradient": 0.01}
    found = only(facts)
    assert (found["code"], found["where"]["rank"]) == ("train.alone.wrong_alone", 1)
    assert found["message"] == (
        "alone, with the batch in parts, the first gradient is 1.0e-02 away from the training on the whole batch, "
        "expected at most 2e-05"
    )
    facts[1]["spread"]["gradient"] = "inf"
    assert told(facts) == [("fail", "wrong_alone", 1)]


def test_coarse_hardware_is_sound() -> None:
    facts = sound()
    for rank, its in facts.items():
        its["spread"] = dict.fromkeys(SPREAD, 0.01 + rank * 0.001)
    assert judge(facts) == []


def test_8192_unlike_ranks_are_judged_long_before_the_deadline() -> None:
    (its,) = sound(1).values()
    facts: dict[int, Any] = {rank: {**its, "spread": {**SPREAD, "curves": 8e-7 + rank * 1e-12}} for rank in range(8192)}
    facts[5000] = copy.deepcopy(facts[5000])
    bend(facts[5000]["whole"], "norms", 3, 1 + 3e-7)
    run = Run(Job("env", 8192, "nccl", (Node("a", 0, tuple(facts)),)), tuple(facts), {})
    start = time.process_time()
    assert [finding.where["rank"] for finding in alone.judge(facts, run)] == [5000]
    assert time.process_time() - start < judging.deadline_s(8192) / 3


def test_the_summary_says_what_was_equal() -> None:
    run = Run(Job("env", 8, "gloo", ()), tuple(range(8)), {})
    went = "loss 4 to 1.2 in 8 steps"
    facts = sound()
    assert alone.summarize(facts, run) == f"8 ranks repeat themselves and each other to the last bit: {went}"
    bend(facts[3]["whole"], "prints", 5, 1.01)
    assert alone.summarize(facts, run) == f"8 ranks repeat themselves to the last bit: {went}"
    again(facts[3])
    assert alone.summarize(facts, run) == f"1 of 8 ranks did not get the same bits twice: {went}"
    assert alone.summarize(sound(1), run) == f"1 rank repeats itself to the last bit: {went}"


# Real trainings


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    reference.forget()


class Rows(torch.nn.Module):
    """Each row's sum, weighed; with an operation that has no deterministic form."""

    def __init__(self, *, unordered: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(1.0, 5.0))
        self.unordered = unordered

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.unordered:
            torch.zeros(4).put_(torch.tensor([0]), torch.ones(1))
        return rows @ self.weight


def small(*, unordered: bool = False, wrong: Iterable[int] = ()) -> TrainingTask:
    """`wrong`: forward passes, counted from 0, in which the loss is a little larger."""
    calls: list[None] = []
    wrongly = set(wrong)

    def loss(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        mean: torch.Tensor = model(rows).square().mean() * 0.001
        return mean * (1 + 1e-6) if len(calls) - 1 in wrongly else mean

    rows = torch.arange(24.0).reshape(6, 4) / 24
    cut = batch.cut(rows, [range(2), range(2, 4), range(4, 6)], 1)
    return TrainingTask("rows", lambda: Rows(unordered=unordered), loss, cut, CPU)


def nothing(_what: str) -> None:
    pass


def test_a_sound_device_repeats_itself() -> None:
    facts = repeated.run(small(), nothing)
    assert (facts["unlike"], facts["unordered"]) == ({}, [])
    assert facts["whole"]["tensors"][0][0] == "start weight" and len(facts["whole"]["tensors"]) == 4
    assert judge({0: facts}) == []


def test_one_wrong_step_of_many_is_seen() -> None:
    of_the_first_training = 3 * 5 + 1
    facts = repeated.run(small(wrong=[of_the_first_training]), nothing)
    assert list(facts["unlike"]) == ["parts"]
    twice = facts["unlike"]["parts"]
    first = bit_equality.first_difference(twice["again"], twice["once"])
    assert first is not None and first.step == 5 and 0 < float(twice["apart"]["curves"]) < 1e-4
    assert told({0: facts}) == [("fail", "differs_from_itself", 0)]


def test_an_operation_without_a_fixed_order_is_noted() -> None:
    assert repeated.run(small(unordered=True), nothing)["unordered"] == ["put_"]


def test_the_kind_has_what_chooses_the_arithmetic() -> None:
    its = arithmetic.kind_of(CPU, {"NVIDIA_TF32_OVERRIDE": "1", "HOME": "x"})
    assert (its["type"], its["torch"], its["settings"]) == ("cpu", str(torch.__version__), ["NVIDIA_TF32_OVERRIDE=1"])
    assert arithmetic.kind_of(CPU, {})["settings"] == [] and its["threads"] == torch.get_num_threads()
