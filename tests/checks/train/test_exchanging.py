"""Losses that exchange values between ranks, and what forward changes: on real ranks, right and wrong."""

import functools
from typing import Any

import pytest

from preflight import testing
from preflight.checks.train import model
from preflight.checks.train.model import changes
from tests.checks.train import on_ranks
from tests.faults import train_model
from tests.faults.row import Fault

RIGHT: dict[str, tuple[str, ...]] = {
    "contrastive": (),
    "contrastive_with_batch_norm": ("batch_norm",),
    "counted_over_a_kept_group": (),
    "gathered_by_functional": (),
    "keeps_the_number_of_ranks": (),
    "gathers_without_gradient_and_multiplies": (),
    "tokens_counted_over_ranks": (),
    "asks_for_its_rank": (),
    "codebook_of_all_rows": (),
    "centered_over_ranks": ("forward_writes",),
    "queue_of_all_keys": (),
}
"""By the function of tests/models/exchanging.py: the infos, and nothing else."""
WRONG = {
    "gathers_only_its_share": (
        "fail",
        "wrong_gradient",
        "1/2 of it. Each rank's backward pass keeps only its own share",
    ),
    "gathers_without_gradient": ("fail", "wrong_gradient", "the loss is right"),
    "multiplies_once_too_often": ("fail", "other_loss", "is 2 times it, so it is multiplied"),
    "tokens_counted_but_not_multiplied": (
        "fail",
        "other_loss",
        "is 1/2 of it, so it is divided by the number of ranks",
    ),
    "codebook_by_rank": ("warn", "buffers_by_rank", "changes codebook.codes and codebook.uses by each rank's own rows"),
    "center_divided_by_own_rows": ("warn", "other_buffers", "changes center alike on all ranks, 2 times as far"),
    "few_valid_rows": ("warn", "not_a_mean", "over its own valid tokens (batch[1] is set)"),
}


TENSOR = "strategies=tp tp_plan=tests.models.exchanging:shared_by_ranks"
SEEDED = {
    "seeded_by_rank": ["info random_numbers"],
    "seeded_alike": ["info random_numbers", "info masks_repeat"],
    f"seeded_by_rank {TENSOR}": ["info random_numbers", "warn masks_differ"],
    f"seeded_alike {TENSOR}": ["info random_numbers"],
}
"""Of forward that draws, with the generators as the function leaves them."""


@functools.cache
def measured(world: int) -> dict[str, list[dict[str, Any]]]:
    names = [*RIGHT, *WRONG, *SEEDED] if world == 2 else ["contrastive", "gathers_only_its_share"]
    made = on_ranks.measured(world, *(f"tests.models.exchanging:{name}" for name in names))
    assert not [rank["raised"] or rank["skipped"] for ranks in made.values() for rank in ranks if not rank["facts"]]
    return {name.partition(":")[2]: ranks for name, ranks in made.items()}


def found(world: int, name: str) -> list[dict[str, Any]]:
    settings = {"tp_plan": "tests.models.exchanging:shared_by_ranks"} if TENSOR in name else {}
    return testing.judge(model, {rank["rank"]: rank["facts"] for rank in measured(world)[name]}, settings=settings)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_exchange_is_silent(name: str) -> None:
    assert [(of["severity"], of["code"]) for of in found(2, name)] == [
        ("info", f"train.model.{slug}") for slug in RIGHT[name]
    ]
    for rank in measured(2)[name]:
        assert set(rank["facts"]["strategies"]) == {"ddp", "fsdp2"} and not rank["facts"]["left_out"]


@pytest.mark.parametrize("name", SEEDED)
def test_generators_are_compared_before_forward(name: str) -> None:
    told = [(of["severity"], of["code"].removeprefix("train.model.")) for of in found(2, name)]
    assert [" ".join(of) for of in told if of[1] != "left_out"] == SEEDED[name]
    assert (("info", "left_out") in told) == (TENSOR in name), "its masks are of pieces"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_is_found_and_the_links_are_not_blamed(name: str) -> None:
    severity, slug, says = WRONG[name]
    first, *_ = [of for of in found(2, name) if of["severity"] != "info"]
    assert (first["severity"], first["code"]) == (severity, f"train.model.{slug}")
    assert says in first["message"] and "rank" not in first["where"]
    assert not any(word in first["fix"] for word in ("links", "NIC", "NCCL"))


@pytest.mark.parametrize("row", train_model.EXCHANGING, ids=lambda row: str(row.name))
def test_the_rows_of_the_fault_table(row: Fault) -> None:
    name = row.settings["train.model.model"].partition(":")[2]
    findings = found(row.world, f"{name} {TENSOR}" if "train.model.tp_plan" in row.settings else name)
    assert row.is_told_by(findings), findings
    own = next(finding for finding in findings if finding["code"] == row.finds[0].split()[-1])
    assert row.says in own["message"] and own["noticed_by"] == row.noticed_by, findings


def test_ranks_that_cannot_share_the_rows_equally_train_on_fewer() -> None:
    (equal,) = found(5, "contrastive")
    assert (
        equal["code"] == "train.model.unequal_rows"
        and "share 12 rows equally, so they train on 10: 2 each" in (equal["message"])
    )
    assert {rank["facts"]["own"] for rank in measured(5)["contrastive"]} == {2}
    codes = {of["code"] for of in found(5, "gathers_only_its_share") if of["severity"] == "fail"}
    assert codes == {"train.model.wrong_gradient"}


def test_a_buffer_that_forward_does_not_use_may_differ() -> None:
    """A count for a table of figures, say."""
    own = {"name": "seen", "is_parameter": False, "used": False, "alone": [3.0]}
    facts: Any = {
        rank: {"forward": {"exchanged": False, "changed": [{**own, "views": [float(rank)]}]}} for rank in range(2)
    }
    assert list(changes.told(facts)) == []
    for of_rank in facts.values():
        of_rank["forward"]["changed"][0]["used"] = True
    (finding,) = changes.told(facts)
    assert finding.code is changes.BUFFERS_BY_RANK and finding.where == {"parameter": "seen"}
