"""What differences mean where ranks cut a model among them, on made-up facts. The faults on real ranks are in
tests/faults/train_parallel.py."""

from typing import TYPE_CHECKING, Any

import pytest

from preflight import testing
from preflight.check import Job, Node, Run
from preflight.checks.train import hybrid, pp, tp
from preflight.checks.train.shared import setting
from preflight.checks.train.shared.parity import multiples
from preflight.train_smoke.trainer.compare import Number
from tests.checks.train.made_trainings import apart, measured, sound, spoil

if TYPE_CHECKING:
    from preflight.train_smoke.strategies.training import Facts
    from preflight.train_smoke.trainer.structure import Changed

CHECKS = {"tp": tp, "pp": pp, "hybrid": hybrid}
VARIANT = {"tp": "matrices", "pp": "gpipe", "hybrid": "hsdp"}
SIZES = {"tensor-parallel ranks": 2, "microbatches": 4, "accumulation steps": 2}


def made(strategy: str, world: int = 4) -> "dict[int, Facts]":
    """No rank has a gradient of its own, and all see the same rows."""
    facts = sound(world, VARIANT[strategy])
    for rank in facts:
        for its in (measured(facts, rank, VARIANT[strategy]), facts[rank]["alone"]["plain"]["curve"]):
            its["own_norms"], its["own_prints"] = [], []
            its["losses"] = [4.0 - step / 10 for step in range(len(its["losses"]))]
        facts[rank]["variants"][VARIANT[strategy]]["sizes"] = SIZES
    return facts


def judge(facts: "dict[int, Facts]", strategy: str) -> list[dict[str, Any]]:
    found = testing.judge(CHECKS[strategy], facts)
    return [{**each, "slug": each["code"].rpartition(".")[2]} for each in found if each["severity"] != "info"]


def gradient(facts: "dict[int, Facts]", strategy: str, ratio: Number, error: Number, alike: int = 20) -> None:
    spoil(facts, 0, 2.0, VARIANT[strategy])
    for rank in facts:
        apart(facts, rank, VARIANT[strategy])["gradients"] = {
            "worst": [{"parameter": "norm.weight", "error": error, "ratio": ratio}], "alike": alike, "count": 20,
        }  # fmt: skip


@pytest.mark.parametrize("strategy", CHECKS)
@pytest.mark.parametrize("world", [1, 2, 4, 1024])
def test_sound_ranks_give_no_finding(strategy: str, world: int) -> None:
    assert judge(made(strategy, world), strategy) == []


@pytest.mark.parametrize(
    ("ratio", "says"),
    [
        (4.0, "4.00 times the one expected, and so are 20 of 20 parameters': the number of microbatches (4), so their "
              "losses were added up instead of averaged"),
        (2.0, "the number of accumulation steps (2), so their losses were added up instead of averaged; or the number "
              "of tensor-parallel ranks (2), so what is the same on each of them was added up"),
        (0.25, "0.250 times the one expected, and so are 20 of 20 parameters': 1 / the number of microbatches (4)"),
        (0.5, "1 / the number of tensor-parallel ranks (2), so it was averaged"),
        (0.0, "no gradient comes to norm.weight, and so it is with 20 of 20 parameters: they are cut off"),
        (3.0, "3.00 times the one expected, and so are 20 of 20 parameters'"),
    ],
)  # fmt: skip
def test_a_multiple_is_said_in_words(ratio: float, says: str) -> None:
    facts = made("pp")
    gradient(facts, "pp", ratio, abs(ratio - 1))
    (found,) = judge(facts, "pp")
    assert found["slug"] == "wrong_gradient" and found["where"] == {"step": 0, "parameter": "norm.weight"}
    assert says in found["message"]


def test_what_is_no_multiple_is_not_called_one() -> None:
    facts = made("tp")
    gradient(facts, "tp", 2.0, 1.7)
    (found,) = judge(facts, "tp")
    assert "norm.weight is 170.0% off" in found["message"] and "the number of" not in found["message"]


@pytest.mark.parametrize(("ratio", "says"), [(2**0.5, "the root of the number of tensor-parallel ranks (2)"),
                                             (4.0, "4.00 times: the number of microbatches (4)"),
                                             (0.9, ", 0.9 times")])  # fmt: skip
def test_a_norm_may_be_a_root(ratio: float, says: str) -> None:
    assert says in multiples.norm(ratio * 3, 3.0, SIZES)


def test_a_norm_that_clipping_finds_is_held_against_that_of_one_process() -> None:
    facts = made("tp")
    norms = facts[0]["alone"]["plain"]["curve"]["norms"]
    for rank in facts:
        facts[rank]["variants"]["matrices"]["clipped"] = [*norms]
    assert judge(facts, "tp") == []
    facts[2]["variants"]["matrices"]["clipped"] = [0.5, *norms[1:]]
    (found,) = judge(facts, "tp")
    assert (found["slug"], found["where"]["rank"]) == ("wrong_clip", 2)
    assert "clipping finds a gradient norm of 0.5 at step 0, expected 2 (to 2e-05), 0.25 times" in found["message"]


def test_a_collective_that_is_missing_is_told_only_where_numbers_are_wrong() -> None:
    facts = made("hybrid")
    for rank in facts:
        facts[rank]["variants"]["hsdp"]["made"] = [
            {"kind": "all-reduce", "over": "replicas", "ranks": [0, 2], "made": 0, "least": 3, "why": "one each"}
        ]
    assert judge(facts, "hybrid") == []
    spoil(facts, 0, 2.0, "hsdp")
    (found,) = judge(facts, "hybrid")
    assert found["slug"] == "missing_collective"
    assert "0 all-reduces over its 2 replicas, expected at least 3 (one each); the same on all" in found["message"]


def changed(**more: Any) -> "Changed":
    made: Changed = {"untied": [], "lost": [], "added": [], "other": [], "kept": []}
    made.update(more)  # type: ignore[typeddict-item]
    return made


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"untied": [["a", "b"]]}, "a and b were one parameter, but are 2 once wrapped"),
        ({"lost": ["a"]}, "a is no longer a parameter once wrapped"),
        ({"added": ["a"]}, "a is a parameter once wrapped, but was not one before"),
        ({"other": [("a", "float32, trained", "bfloat16, trained")]}, "a is bfloat16, trained once wrapped"),
        ({"kept": [("a", 0, 64)]}, "keep 0 elements of a in total, expected 64: it is kept not at all, expected once"),
        ({"kept": [("a", 128, 64), ("b", 128, 64)]}, "it is kept 2 times, expected once; 1 more change of this kind"),
    ],
)
def test_what_has_become_of_the_model_comes_before_all_numbers(what: dict[str, Any], says: str) -> None:
    facts = made("pp")
    spoil(facts, 0, 2.0, "gpipe")
    for rank in facts:
        facts[rank]["variants"]["gpipe"]["changed"] = changed(**what)
    (found,) = judge(facts, "pp")
    assert (found["slug"], found["where"]["parameter"]) == ("model_changed", "a")
    assert says in found["message"] and "rank" not in found["where"]


def test_one_rank_whose_model_has_changed_is_named() -> None:
    facts = made("tp")
    facts[2]["variants"]["matrices"]["changed"] = changed(lost=["a"])
    (found,) = judge(facts, "tp")
    assert found["where"]["rank"] == 2 and "though not on 3 other ranks" in found["message"]


def test_the_summary_shows_the_mesh() -> None:
    facts = made("hybrid")
    for rank in facts:
        facts[rank]["variants"]["hsdp"]["mesh"] = "2 x 2 (replicate x shard), shard inside a node"
    assert hybrid.summarize(facts, RUN).startswith(
        "hsdp on 4 ranks, mesh 2 x 2 (replicate x shard), shard inside a node: loss 4 to 3.3, exactly as alone"
    )
    for rank in facts:
        facts[rank]["variants"]["hsdp"]["curve"] = None
    assert "not trained, since the model has changed" in hybrid.summarize(facts, RUN)


RUN = Run(Job("torchrun", 4, "gloo", (Node("n", 0, (0, 1, 2, 3)),)), (0, 1, 2, 3), {})


@pytest.mark.parametrize(
    ("nodes", "members", "wanted"),
    [
        ([range(4), range(4, 8)], range(8), 4), ([range(4), range(4, 8)], [0, 1, 2, 4, 5, 6], 3),
        ([range(4), range(4, 8)], range(7), 1), ([[0, 2], [1, 3]], range(4), 1), ([[0], [1]], [0, 1], 1),
    ],
)  # fmt: skip
def test_neighbours_are_those_on_one_node(nodes: list[Any], members: Any, wanted: int) -> None:
    job = Job("torchrun", 8, "gloo", tuple(Node(f"n{at}", at, tuple(ranks)) for at, ranks in enumerate(nodes)))
    assert setting.per_node(job, [*members]) == wanted
