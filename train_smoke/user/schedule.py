"""How many steps, and which variants, fit into a check's time, estimated from a measured first step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from preflight.train_smoke.trainer.names import STEPS
from preflight.train_smoke.user.task import by_recipe

FEWER_STEPS = (STEPS, STEPS // 2, 2)
"""At least two: the second is the first that uses the updated weights, and momentum."""
SAFETY = 2.5
"""How much longer than forward and backward a step may take: the optimizer, comparing tensors, waiting for other ranks.
Measured with 2 ranks on 2 cores: 1.2 (ResNet-50) to 1.9 (a small transformer)."""


@dataclass(frozen=True)
class Schedule:
    steps: int
    left_out: dict[str, str]
    """Variants that there is no time for, and why."""
    skipped: str
    """Why there is no time for any variant; "" if there is."""


def schedule(
    names: Mapping[str, list[str]], unfit: Mapping[str, str], step_s: float, left_s: float, ranks: int, *, exactly: bool
) -> Schedule:
    """`step_s`: forward and backward over all rows on the slowest rank. `left_s`: what is left of the deadline. Fewer
    steps first, then fewer variants: the first of each strategy stay longest."""

    def seconds(of: Sequence[tuple[str, str, str]], steps: int) -> float:
        alone = (2 if exactly else 3) * len({recipe for recipe, _, _ in of})  # see reference.py
        return SAFETY * step_s * steps * (alone + len(of) / ranks)

    known = by_recipe(names, unfit)
    steps = next((steps for steps in FEWER_STEPS if seconds(known, steps) <= left_s), FEWER_STEPS[-1])
    kept: list[tuple[str, str, str]] = []
    for training in sorted(known, key=lambda training: names[training[1]].index(training[2]) > 0):
        if seconds([*kept, training], steps) <= left_s:
            kept.append(training)
    measured = f"a step on all rows takes {step_s:.2g} s on the slowest rank, {left_s:.0f} s are left"
    left_out = {
        f"{strategy}/{name}": measured for recipe, strategy, name in known if (recipe, strategy, name) not in kept
    }
    least = seconds(known[:1], steps)
    skipped = (
        ""
        if kept or not known
        else (
            f"{measured}, and the least comparison takes about {least:.0f} s: return fewer rows or smaller ones, "
            f"or give --deadline"
        )
    )
    return Schedule(0 if skipped else steps, left_out, skipped)
