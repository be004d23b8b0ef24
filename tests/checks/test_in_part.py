"""What checks say where a part of them was not measured; where all was, they say nothing."""

from types import ModuleType
from typing import Any

import pytest

from preflight import testing
from preflight.checks.comm import paths
from preflight.checks.comm.paths import timed
from preflight.checks.node import leftovers
from preflight.checks.train import fsdp, speed
from preflight.checks.train.model import traits
from tests.checks.train import made_trainings, test_speed


def in_part(module: ModuleType, facts: Any, **more: Any) -> list[tuple[str, str]]:
    """(code, message) of the findings that make the check a skip; there must be no others."""
    found = testing.judge(module, facts, **more)
    assert all(finding["severity"] == "info" and finding["not_measured"] for finding in found)
    return [(finding["code"], finding["message"]) for finding in found]


def timings(*late: int) -> dict[int, Any]:
    listed = [
        {
            "variant": variant,
            "seconds": None if number in late else 0.01,
            "failed": timed.NO_TIME if number in late else "",
        }
        for number, variant in enumerate(timed.RUNS)
    ]
    return {
        rank: {"bytes": timed.SIZE, "timings": listed, "trials": [], "pairs": [], "patience_s": 30.0}
        for rank in range(2)
    }


def test_ways_of_nccl_for_which_there_was_no_time() -> None:
    assert in_part(paths, timings(), backend="nccl") == []
    ((code, text),) = in_part(paths, timings(len(timed.RUNS) - 1), backend="nccl")
    assert code == "comm.paths.not_timed" and timed.RUNS[-1] in text


def test_processes_that_this_user_may_not_look_at() -> None:
    left: Any = {"job": 7, "processes": [], "files": []}
    assert in_part(leftovers, {0: left}) == in_part(leftovers, {0: {**left, "blind": False}}) == []
    ((code, text),) = in_part(leftovers, {0: {**left, "blind": True}})
    assert code == "node.leftovers.hidden_processes" and "none of job 7 would be seen" in text


def test_a_strategy_that_was_not_timed() -> None:
    late = test_speed.facts(test_speed.series(), not_timed={"fsdp2/keep": "there was no time for it"})
    assert in_part(speed, late) == [("train.speed.not_timed", "fsdp2/keep was not timed: there was no time for it")]


@pytest.mark.parametrize(("asked", "told"), [(True, ["train.fsdp.not_run"]), (False, [])])
def test_a_variant_that_cannot_run_counts_where_it_was_asked_for(asked: bool, told: list[str]) -> None:
    facts: Any = made_trainings.sound(4, "full_shard", "offload")
    for own in facts.values():
        own["variants"]["offload"] |= {"unfit": "FSDP1 offloads from a GPU only", "curve": None, "apart": None}
    settings = {"variants": "full_shard,offload"} if asked else {}
    found = in_part(fsdp, facts, settings=settings)
    assert [code for code, _ in found] == told
    assert all("offload (FSDP1 offloads from a GPU only)" in text for _, text in found)


@pytest.mark.parametrize(
    ("left_out", "late", "not_run", "expected"),
    [
        ({}, [], {}, []),
        ({"pp/1f1b": "its micro-batches differ"}, [], {}, [False]),
        ({"pp/1f1b": "its micro-batches differ", "tp/plan": "there is no time"}, ["tp/plan"], {}, [False, True]),
        ({}, [], {"pp/pipeline": "torch's pipelines need NumPy, which is not installed"}, [True]),
        ({}, [], {"pp/pipeline": "a pipeline has two ranks, and there is one"}, []),
    ],
    ids=["all ran", "not comparable", "no time", "no package", "one rank"],
)  # fmt: skip
def test_variants_of_the_users_model(
    left_out: dict[str, str], late: list[str], not_run: dict[str, str], expected: list[bool]
) -> None:
    first: Any = {"left_out": left_out, "late": late, "not_run": not_run}
    assert [finding.not_measured for finding in traits._left_out(first)] == expected
