"""Where a resumed training went on: found by its weights, since counters are what may be wrong. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from preflight.resume.control import Control
from preflight.resume.steps import RecordedStep, distances


@dataclass(frozen=True)
class ResumePoint:
    after: int
    """The steps that the training had done whose weights it has."""
    others: tuple[str, ...] = ()
    """The parameters that are not as they were then."""
    furthest: float = 0.0
    """How far they are, relative."""


def find(resumed: RecordedStep, reference: Sequence[RecordedStep], control: Control) -> ResumePoint | None:
    """The point at which most parameters are equal; None if nowhere a single one is. Where weights stood still (a
    warm-up from 0), the optimizer's state, then the batch tell which of them it is; then the latest."""
    best: tuple[tuple[int, int, int, int], ResumePoint] | None = None
    for after, step in enumerate(reference):
        if step.optimizer != resumed.optimizer:
            continue
        far = distances(step.weights, resumed.weights)
        others = {name: apart for name, apart in far.items() if not apart <= control.of_weights}
        equal = len(far) - len(others)
        if not equal:
            continue
        state = sum(apart <= control.of_state for apart in distances(step.state, resumed.state).values())
        state -= abs(len(step.state) - len(resumed.state))
        rank = (equal, state, int(step.batches == resumed.batches), after)
        if best is None or rank > best[0]:
            best = rank, ResumePoint(after, tuple(sorted(others)), max(others.values(), default=0.0))
    return best and best[1]


def nearest(resumed: RecordedStep, reference: Sequence[RecordedStep]) -> tuple[int, float]:
    """(the steps done, how far the farthest parameter is, relative) where it is nearest to the reference."""
    far = [
        (max(distances(step.weights, resumed.weights).values(), default=0.0), after)
        for after, step in enumerate(reference)
        if step.optimizer == resumed.optimizer
    ]
    apart, after = min(far, default=(0.0, 0))
    return after, apart
