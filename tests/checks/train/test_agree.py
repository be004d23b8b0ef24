"""What ranks agree on before they train a user's model together, and the facts that are made of it: without ranks."""

from types import SimpleNamespace
from typing import Any

import pytest

from preflight.checks.train.model import agree, user_model
from preflight.checks.train.model.agree import RankStanding
from preflight.checks.train.model.facts import UNKNOWN
from preflight.checks.train.model.outcomes import (
    JointTraining,
    LateVariant,
    NotRunVariant,
    RefusedVariant,
    TrainedVariant,
    VariantName,
)
from preflight.checks.train.model.prepare import Mistake, PreparedModel, Skipped

LAYOUT = ["weight (4, 4) float32"]
MISTAKE: Any = {"kind": "wrong_loss", "text": "the loss is inf", "file": None, "line": None, "evidence": {}}


def standing(rank: int, seen: dict[str, Any] | None = None, **more: Any) -> RankStanding:
    of_rank = {"unused": [], "unused_here": [], "step_s": 1.0, **(seen or {})}
    answer: Any = {"rank": rank, "skipped": "", "layout": "a", "weights": "b", "batch": "c", "traits": of_rank, **more}
    return answer  # type: ignore[no-any-return]


def agreed(*standings: RankStanding) -> agree.Agreement:
    return agree.agreement_of(standings, LAYOUT, 30.0)


def test_equal_ranks_train_with_the_first_ones_traits_at_the_slowest_ones_pace() -> None:
    unlike = standing(1, {"unused": ["b"], "unused_here": ["a"], "step_s": 3.0})
    agreement = agreed(standing(0, {"unused": ["b"], "rate": 0.5}), unlike)
    assert agreement["go"] and not agreement["loaded"] and not agreement["layout"] and not agreement["skipped"]
    assert agreement["unused"] == ["a", "b"] and agreement["step_s"] == 3.0 and agreement["left_s"] == 30.0
    assert (agreement["traits"] or {})["rate"] == 0.5


@pytest.mark.parametrize(
    ("other", "layout"),
    [({"layout": "z"}, LAYOUT), ({"batch": "z"}, []), ({"traits": None}, []), ({"traits": None, "layout": ""}, LAYOUT)],
)
def test_one_rank_that_differs_or_did_not_get_that_far_stops_all(other: dict[str, Any], layout: list[str]) -> None:
    agreement = agreed(standing(0), standing(1, **other), standing(2))
    assert not agreement["go"] and agreement["layout"] == layout and not agreement["skipped"]


def test_other_weights_are_loaded() -> None:
    agreement = agreed(standing(0), standing(1, weights="z"))
    assert agreement["go"] and agreement["loaded"]


def test_the_first_rank_that_is_skipped_says_why() -> None:
    late = [standing(rank, traits=None, skipped=f"reason {rank}") for rank in (1, 2)]
    agreement = agreed(standing(0), *late)
    assert not agreement["go"] and agreement["skipped"] == "rank 1: reason 1"


# The facts of it


def test_facts_of_a_mistake_keep_what_is_known_of_the_model() -> None:
    facts = user_model._facts(Mistake(MISTAKE, {**UNKNOWN, "layout": "a", "rows": 8, "own": 4}), "", JointTraining())
    assert facts["mistake"] == MISTAKE and facts["traits"] is None and not facts["skipped"]
    assert (facts["layout"], facts["rows"], facts["own"], facts["strategies"]) == ("a", 8, 4, {})


def test_facts_of_a_rank_that_was_skipped() -> None:
    facts = user_model._facts(Skipped("too slow", UNKNOWN), "", JointTraining())
    assert facts["skipped"] == "too slow" and facts["mistake"] is None and not facts["rows"]


def test_facts_of_a_training_that_ended_early_keep_what_was_trained() -> None:
    given: Any = None
    traits: Any = SimpleNamespace(step_s=1.0)
    trained: Any = {"alone": {"plain": "the same"}, "variants": {"clip": "compared"}}
    joint = JointTraining(
        steps=8,
        unfit={"ddp/join": "unfit"},
        late={"fsdp/clip": "no time by the plan"},
        outcomes=[
            TrainedVariant(VariantName("ddp", "clip"), trained),
            TrainedVariant(VariantName("ddp", "plain"), {"alone": {}, "variants": {"plain": trained}}),
            RefusedVariant(VariantName("fsdp2", "plain"), MISTAKE),
            NotRunVariant(VariantName("tp", "plan"), "it has no plan"),
            LateVariant(VariantName("fsdp", "mixed")),
        ],
        skipped="memory has run out",
    )
    facts = user_model._facts(PreparedModel(given, given, traits, UNKNOWN), "", joint)
    assert facts["skipped"] == "memory has run out" and facts["steps"] == 8 and facts["traits"] == {"step_s": 1.0}
    assert facts["left_out"].keys() == {"ddp/join", "fsdp/clip", "fsdp/mixed"}
    assert facts.get("late") == ["fsdp/clip", "fsdp/mixed"], "what cannot be compared is not late"
    assert (facts["refused"], facts["not_run"]) == ({"fsdp2/plain": MISTAKE}, {"tp/plan": "it has no plan"})
    assert list(facts["strategies"]) == ["ddp", "fsdp2", "tp"]
    assert list(facts["strategies"]["ddp"]["variants"]) == ["clip", "plain"]
    assert not facts["strategies"]["fsdp2"]["variants"]
