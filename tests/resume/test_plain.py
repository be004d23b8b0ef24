"""Plain loops: each mistake is found by its name, and a right one stays silent."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.resume.recording import findings, told

BATCHES = torch.randn(16, 4, 8, generator=torch.Generator().manual_seed(3))
EPOCH = 8
"""Steps."""


class Loop:
    """A training script of the plain kind. `forgets`: what is not in its checkpoint, or not loaded."""

    def __init__(self, *forgets: str, warm_up: bool = False, dropout: float = 0.0, save_every: int = 3) -> None:
        self.forgets, self.warm_up, self.dropout, self.save_every = forgets, warm_up, dropout, save_every

    def _build(self) -> dict[str, Any]:
        if "seed" not in self.forgets:
            torch.manual_seed(0)
        drop = nn.Dropout(self.dropout)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), drop, nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        rate = (lambda step: min(1.0, step / 4)) if self.warm_up else lambda step: 0.9**step
        return {"model": model, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, rate)}

    def _load(self, parts: dict[str, Any], path: Path) -> int:
        saved = torch.load(path)
        for name, part in parts.items():
            if name not in self.forgets:
                part.load_state_dict(saved[name])
        if "random" not in self.forgets:
            torch.set_rng_state(saved["random"])
        if "one" in self.forgets:
            nn.init.zeros_(parts["model"][3].weight)
        if "decay" in self.forgets:
            parts["optimizer"].param_groups[0]["weight_decay"] = 0.0
        if "buffers" in self.forgets:
            parts["model"][1].reset_running_stats()
        if "moment" in self.forgets:
            parts["optimizer"].state[parts["model"][0].weight]["exp_avg"].zero_()
        return int(saved["step"])

    def __call__(self, folder: Path) -> None:
        parts, path, start = self._build(), folder / "last.pt", 0
        if path.exists() and "all" not in self.forgets:
            start = self._load(parts, path)
        shift = start if "data" in self.forgets else -2 if "skips" in self.forgets and start else 0
        for step in range(start, 40):
            batch = BATCHES[(step - shift) % 16]
            if "shuffles" in self.forgets and start:
                batch = batch.flip(0)
            parts["optimizer"].zero_grad()
            loss = (parts["model"](batch) - batch.sum(1, keepdim=True)).square().mean()
            (loss * (4.0 if "scale" in self.forgets and start else 1.0)).backward()
            if "scale" in self.forgets and start:
                for parameter in parts["model"].parameters():
                    parameter.grad /= 4.0
            parts["optimizer"].step()
            parts["scheduler"].step()
            if (step + 1) % self.save_every == 0:
                saved = {name: part.state_dict() for name, part in parts.items()}
                if "cast" in self.forgets:
                    saved["model"] = {
                        name: t.bfloat16() if t.is_floating_point() else t for name, t in saved["model"].items()
                    }
                torch.save({**saved, "random": torch.get_rng_state(), "step": step + 1}, path)


@pytest.mark.parametrize(
    "loop",
    [
        Loop(),
        Loop(warm_up=True),
        Loop(dropout=0.5),
        Loop(save_every=1),
        Loop(warm_up=True, save_every=1),
        Loop("random"),
    ],
    ids=["plain", "warm-up", "dropout", "each step", "warm-up from zero", "random state that nothing draws from"],
)
def test_a_right_one_stays_silent(loop: Loop, tmp_path: Path) -> None:
    assert [finding.message for finding in findings(loop, tmp_path)] == []


CASES: Sequence[tuple[str, Loop, list[str], str]] = (
    ("moments", Loop("optimizer"), ["fail moments_lost"], "exp_avg and exp_avg_sq for 6 of 6 parameters"),
    ("one moment", Loop("moment"), ["fail moments_differ"], "exp_avg of 1 of 6 parameters are zero (0.weight)"),
    (
        "scheduler",
        Loop("scheduler"),
        ["fail learning_rate"],
        "in step 5 it is 0.009, expected 0.006561; so it was in step 2",
    ),
    ("warm-up again", Loop("scheduler", warm_up=True), ["fail learning_rate"], "in step 5 it is 0.0025, expected 0.01"),
    ("data", Loop("data"), ["fail data_repeats"], "step 4 trains the batch of step 1: the data began anew"),
    ("skips", Loop("skips"), ["fail data_skips"], "step 4 trains the batch of step 6: the data of 2 steps is left out"),
    ("shuffles", Loop("shuffles"), ["fail data_differs"], "none was seen before"),
    ("everything", Loop("all"), ["fail not_resumed"], "the first save was after step 3"),
    ("saves too late", Loop(save_every=30), ["fail not_resumed"], "no torch.save was seen before the stop"),
    ("a parameter", Loop("one"), ["fail weights_differ"], "3.weight: 1 of 6 parameters differ from those after step 3"),
    ("type", Loop("cast"), ["fail weights_differ"], "as if saved in bfloat16"),
    ("decay", Loop("decay"), ["fail options_differ"], "weight_decay of group 0 is 0, expected 0.1"),
    ("buffers", Loop("buffers"), ["fail buffers_differ"], "1.running_mean"),
    ("scale", Loop("scale"), ["warn loss_scale"], "in step 4 the loss is 4 times what it was"),
    ("dropout", Loop("random", dropout=0.5), ["warn random_state"], "its state is another one: in step 4"),
    ("no seed", Loop("seed"), [], ""),
    ("both", Loop("optimizer", "data"), ["fail moments_lost", "fail data_repeats"], ""),
)


@pytest.mark.parametrize(("loop", "expected", "says"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_is_forgotten_is_named(loop: Loop, expected: list[str], says: str, tmp_path: Path) -> None:
    found = findings(loop, tmp_path)
    assert told(found) == expected, [finding.message for finding in found]
    assert says in "\n".join(finding.message for finding in found)


def test_a_training_that_does_not_repeat_itself_is_not_judged(tmp_path: Path) -> None:
    weights = iter(range(100))

    def train(folder: Path) -> None:
        torch.manual_seed(next(weights))
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(20):
            model(BATCHES[step % 16]).square().mean().backward()
            optimizer.step()
        torch.save(model.state_dict(), folder / "last.pt")

    found = findings(train, tmp_path)
    assert told(found) == ["error not_repeatable"] and "other weights from the start on" in found[0].message
