"""Sound checkpoints: all comes back to the last bit, and training goes on as if it had never stopped."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from preflight.check import Job, Node, Run
from preflight.checks.train.checkpoint import resumed
from preflight.train_smoke.checkpoint.files import Manifest
from preflight.train_smoke.checkpoint.model import STEPS
from preflight.train_smoke.checkpoint.names import CHECKPOINTS, DEFAULT, FORMS, INTO
from preflight.train_smoke.checkpoint.run import SavePlace, run
from preflight.train_smoke.checkpoint.training import Step, TrainingRun
from preflight.train_smoke.trainer import compare
from tests.train_smoke import checkpoint_ranks, ranks

HUNG_S = 600.0


def is_sound(world: int, folder: Path, names: Sequence[str]) -> tuple[int, float]:
    """(how many trainings went on, how far the furthest was from the one without a stop, as a share of the limit)."""
    facts = checkpoint_ranks.saved(world, folder, names, limit_s=HUNG_S)
    assert not (folder / "files").exists() or not list((folder / "files").iterdir())
    job = Job("env", world, "gloo", (Node("node-0", 0, tuple(range(world))),))
    spreads = [own["spread"] for own in facts]
    found = [*resumed.judge({rank: own["saved"] for rank, own in enumerate(facts)}, spreads, "/ck",
                            Run(job, tuple(range(world)), {}))]  # fmt: skip
    assert found == []
    first = facts[0]["saved"]
    loads = [(own["curve"], into["curve"]) for own in first.values() for into in own["into"].values()]
    assert len(loads) == sum(len(CHECKPOINTS[name]) for name in names)
    assert all(len(was) == len(now) == 2 for was, now in loads), "each has taken all steps"
    furthest = max(
        compare.difference(now[what], was[what], was["norm"] if what == "print" else None)
        for curves in loads
        for was, now in zip(*curves, strict=True)
        for what in was
    )
    return len(loads), furthest / compare.limits(spreads).curves


def test_files_are_digested_before_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes a file while training goes on is not taken for what was written."""
    order: list[str] = []
    of, train = Manifest.of, TrainingRun.train

    def digested(*words: Any) -> Manifest:
        order.append("digests")
        return of(*words)

    def trained(run: TrainingRun, steps: int = STEPS) -> list[Step]:
        order.append(f"trains from step {run.step}")
        return train(run, steps)

    monkeypatch.setattr(Manifest, "of", digested)
    monkeypatch.setattr(TrainingRun, "train", trained)
    setting = ranks.join(0, 1, tmp_path, limit_s=60)
    try:
        found = run({"ddp/full": ("ddp",)}, SavePlace(tmp_path / "files", True, setting))
    finally:
        torch.distributed.destroy_process_group()
    assert not found["saved"]["ddp/full"]["error"]
    assert order == ["trains from step 0", "digests", "trains from step 2", "trains from step 2"]


@pytest.mark.more
def test_two_ranks(tmp_path: Path) -> None:
    _, furthest = is_sound(2, tmp_path, list(DEFAULT))
    assert furthest < 1


@pytest.mark.more
@pytest.mark.parametrize("world", [1, 3])
def test_other_worlds(world: int, tmp_path: Path) -> None:
    is_sound(world, tmp_path, list(DEFAULT))


@pytest.mark.soak
def test_over_a_hundred_trainings_in_all_forms(tmp_path: Path) -> None:
    total, furthest = 0, 0.0
    for world in (1, 2, 3, 4):
        folder = tmp_path / str(world)
        folder.mkdir()
        loads, off = is_sound(world, folder, list(CHECKPOINTS))
        total, furthest = total + loads, max(furthest, off)
    print(f"{total} trainings, at most {furthest:.3f} of the limit")
    assert total >= 100


def test_names_are_those_of_the_trainer() -> None:
    for name, targets in CHECKPOINTS.items():
        assert name.partition("/")[2] in FORMS and set(targets) <= set(INTO)
    assert all(set(targets) <= set(CHECKPOINTS[name]) for name, targets in DEFAULT.items())
