"""The picture of trainings side by side, on made-up facts."""

import time
from typing import Any

import pytest

from preflight.check import Job, Run
from preflight.checks.train.shared import plotted
from preflight.results import judging
from preflight.train_smoke.trainer.names import VARIANTS
from tests import drawn

MIB = 2**20
WIDTH = 74
"""A screen of 80, less the frame around pictures."""


def curve(start: float, times: float = 1.0, steps: int = 8) -> dict[str, list[Any]]:
    values = [start * times * (1 - step / 10) for step in range(steps)]
    return {name: [*values] for name in ("losses", "own_norms", "own_prints", "norms", "prints")}


def variant(rank: int, name: str, *, held: float = 1.25, recipe: str = "plain", **changed: Any) -> dict[str, Any]:
    memory = {"held": int(held * MIB), "allocated": None, "reserved": None, "resident": (3 + rank) * MIB}
    return {
        "recipe": recipe,
        "unfit": "",
        "curve": curve(4.0 + rank % 31 / 100),
        "apart": None,
        "memory": memory,
        **changed,
    }


def facts(world: int, strategy: str = "ddp", **changed: Any) -> dict[int, Any]:
    spread = {"curves": 8e-7, "gradient": 7e-7, "end": 3e-5, "state": 5e-7}
    return {
        rank: {
            "alone": {"plain": {"curve": curve(4.0 + rank % 31 / 100), "spread": spread}},
            "variants": {name: variant(rank, name, **changed) for name in VARIANTS[strategy]},
        }
        for rank in range(world)
    }


def draw(made: dict[int, Any]) -> list[str]:
    title, *lines = drawn.lines(plotted, made, Run(Job("env", len(made), "gloo", ()), tuple(made), {}), WIDTH)
    assert title == "trainings side by side"
    return lines


def test_each_variant_has_a_line_and_the_training_alone_is_below_them() -> None:
    made = facts(2)
    made[1]["variants"]["clip"]["curve"]["norms"][7] *= 1.001
    losses = "4.00  3.20  2.40  2.00  1.20"
    assert draw(made) == [
        "loss at step     0     2     4     5     7    off  held  peak",
        f"plain         {losses}      0  1.25  3.0-4.0",
        f"no_sync       {losses}      0  1.25  3.0-4.0",
        f"join          {losses}      0  1.25  3.0-4.0",
        f"bucket_view   {losses}      0  1.25  3.0-4.0",
        f"clip          {losses}  1e-03  1.25  3.0-4.0",
        f"autocast      {losses}      0  1.25  3.0-4.0",
        f"alone         {losses}  8e-07     -  -",
        "loss: the ranks' mean; off: the most, from alone (for alone: by roundings)",
        "MiB per rank: held between steps; peak, beyond what was used before",
    ]


@pytest.mark.parametrize("strategy", VARIANTS)
def test_all_variants_fit_a_screen_of_80_columns(strategy: str) -> None:
    lines = draw(facts(2, strategy))
    assert len(lines) == 1 + len(VARIANTS[strategy]) + 1 + 2
    assert max(map(len, lines)) <= WIDTH


def test_what_fsdp_saves_is_seen() -> None:
    made = facts(4, "fsdp")
    for rank, of_rank in made.items():
        of_rank["variants"]["full_shard"]["memory"]["held"] = int((0.31 + 0.02 * (rank == 3)) * MIB)
    lines = {line.split()[0]: line for line in draw(made)}
    assert " 0.31-0.33 " in lines["full_shard"] and " 1.25 " in lines["no_shard"]


def test_gpus_have_two_peaks() -> None:
    made = facts(2)
    for of_rank in made.values():
        for its in of_rank["variants"].values():
            its["memory"] |= {"allocated": 150 * MIB, "reserved": 2500 * MIB, "resident": None}
    head, first, *_ = draw(made)
    assert head.split()[-4:] == ["off", "held", "alloc", "reserved"]
    assert first.split()[-3:] == ["1.25", "150", "2,500"]


def test_what_was_not_run_says_why_and_has_no_numbers() -> None:
    made = facts(2, "fsdp")
    for of_rank in made.values():
        nothing = {"curve": None, "apart": None, "memory": None}
        of_rank["variants"]["hybrid_shard"] |= {"unfit": "2 ranks cannot be cut and repeated", **nothing}
    lines = draw(made)
    assert lines[-1] == "hybrid_shard not run: 2 ranks cannot be cut and repeated"
    assert sum("hybrid_shard" in line for line in lines) == 1


def test_nothing_that_was_run_is_no_table() -> None:
    made = facts(1)
    made[0] = {"alone": {}, "variants": {"offload": variant(0, "plain", unfit="why", curve=None, memory=None)}}
    assert draw(made) == ["offload not run: why"]


def test_what_is_no_number_is_shown_and_a_rank_that_joined_early_has_fewer_steps() -> None:
    made = facts(2)
    made[0]["variants"]["plain"]["curve"]["losses"][3:] = ["nan"] * 5
    for rank, of_rank in made.items():
        of_rank["variants"]["join"] |= {"recipe": "uneven", "curve": curve(4.0 + rank, steps=8 - rank)}
        of_rank["alone"]["uneven"] = {**of_rank["alone"]["plain"], "curve": curve(4.0 + rank)}
    lines = {line.split()[0]: line.split() for line in draw(made)}
    uneven = next(line.split()[2:] for line in draw(made) if line.startswith("alone uneven"))
    assert lines["plain"][1:4] == ["4.00", "3.20", "nan"] and "inf" in lines["plain"]
    assert lines["join"][5:7] == ["1.20", "0"] and uneven[:5] == lines["join"][1:6]


@pytest.mark.parametrize(
    ("loss", "text"), [(12.345, "12.3"), (123.4, "123"), (123456.0, "1e5"), (-0.5, "-0.5"), (-12345.0, "-1e4")]
)
def test_losses_of_other_sizes_keep_their_column(loss: float, text: str) -> None:
    made = facts(1)
    made[0]["variants"]["plain"]["curve"]["losses"] = [loss] * 100
    head, line, *_ = draw(made)
    assert line.split()[1:6] == [text] * 5 and head.split()[-4] == "99" and len(line) <= WIDTH


def test_1024_ranks_are_ranges_and_drawn_long_before_the_deadline() -> None:
    made = facts(1024, "fsdp")
    start = time.process_time()
    lines = draw(made)
    assert time.process_time() - start < judging.EXTRA * judging.deadline_s(1024) / 3
    assert lines[1].endswith("3.0-1,026") and len(lines) == 18
