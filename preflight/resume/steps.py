"""What the ranks of a training have recorded, step by step (debug/injected/preflight_resume_rank.py writes it)."""

import glob
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Summary = tuple[float, float]
"""Of a tensor: its norm, and the sum of its elements with fixed signs. Two tensors that differ differ in the second by
about the norm of their difference."""
Summaries = Mapping[str, Summary]


@dataclass(frozen=True)
class RecordedStep:
    """A step of an optimizer on one rank. Weights, state and buffers are those before it."""

    optimizer: int
    """In the order of their first steps."""
    kind: str
    """AdamW."""
    weights: Summaries
    """By the parameter's name."""
    state: Summaries
    """By "exp_avg of NAME"."""
    groups: Sequence[Mapping[str, float]]
    """The numbers of each of param_groups."""
    buffers: Summaries
    batches: tuple[str, ...]
    """Digests of what modules were called with since the step before."""
    losses: tuple[float, ...]
    """That backward was called on."""
    random: str
    """Digest of torch's random state before the first forward; "" if none was seen."""
    draws: bool
    """Whether forward and backward drew from it."""
    gradient: float
    """Its norm."""
    saved: int | None
    """After which step torch.save was called first."""

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of each group."""
        return tuple(group["lr"] for group in self.groups if "lr" in group)


@dataclass(frozen=True)
class StepTrace:
    """A training."""

    ranks: Mapping[int, Sequence[RecordedStep]]
    """The steps of each rank."""
    not_recorded: str = ""
    """What the recorder raised."""

    @property
    def length(self) -> int:
        """Steps that all ranks have done."""
        return min(map(len, self.ranks.values()), default=0)

    @property
    def first_save(self) -> int | None:
        saves = [step.saved for steps in self.ranks.values() for step in steps if step.saved is not None]
        return min(saves, default=None)


def read(folder: str) -> StepTrace:
    """A line that a killed rank has not finished is left out. Where a launcher has restarted a rank, its last process
    counts."""
    ranks: dict[int, list[RecordedStep]] = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.steps")), key=os.path.getmtime):
        with open(path) as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        if lines:
            ranks[lines[0]["rank"]] = [_step(line) for line in lines]
    try:
        with open(os.path.join(folder, "not-recorded")) as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    return StepTrace(dict(sorted(ranks.items())), text.strip().rpartition("\n")[2])


def _step(line: Mapping[str, Any]) -> RecordedStep:
    plain: dict[str, Any] = {name: line[name] for name in _PLAIN}
    for table in _TABLES:
        plain[table] = {name: (norm, total) for name, (norm, total) in line[table].items()}
    return RecordedStep(**plain, batches=tuple(line["batches"]), losses=tuple(line["losses"]))


_TABLES = ("weights", "state", "buffers")
_PLAIN = ("optimizer", "kind", "groups", "random", "draws", "gradient", "saved")


def distance(first: Summary, second: Summary) -> float:
    """How far apart two tensors are, in their norms; 0 where both hold NaN."""
    if all(map(math.isnan, first)) and all(map(math.isnan, second)):
        return 0.0
    scale = max(first[0], second[0])
    apart = max(abs(first[0] - second[0]), abs(first[1] - second[1]))
    return apart / scale if scale else 0.0


def distances(first: Summaries, second: Summaries) -> dict[str, float]:
    """Of what both have."""
    return {name: distance(first[name], second[name]) for name in first if name in second}


def apart(first: float, second: float) -> float:
    """The same for numbers."""
    return distance((abs(first), first), (abs(second), second))
