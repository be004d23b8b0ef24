"""Whether the training repeats itself: two that began alike, up to the stop. Pure."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from preflight.resume.steps import RecordedStep, StepTrace, apart, distances

FACTOR = 8.0
"""How much further than two equal trainings a resumed one may be."""
EXACT = 1e-9
"""Relative: what is loaded from a checkpoint is equal to the last bit where the training repeats itself to the bit."""
ROUNDING = 1e-5
"""Relative, of losses and gradients: memory that lies elsewhere may be summed in another order."""
OF_A_STEP = 0.25
"""Two equal trainings may be this part of a step apart."""


@dataclass(frozen=True)
class Control:
    """How far two equal trainings are apart: relative."""

    weights: float = 0.0
    state: float = 0.0
    losses: float = 0.0
    why_not: str = ""
    """Why nothing can be said of a training that does not repeat itself."""

    @property
    def of_weights(self) -> float:
        return max(EXACT, FACTOR * self.weights)

    @property
    def of_state(self) -> float:
        return max(EXACT, FACTOR * self.state)

    @property
    def of_losses(self) -> float:
        return max(ROUNDING, FACTOR * self.losses)

    @property
    def is_exact(self) -> bool:
        return not (self.weights or self.state or self.losses)


def control(first: StepTrace, second: StepTrace, until: int) -> Control:
    """Of the first `until` steps of both."""
    weights = state = losses = 0.0
    for rank in sorted(first.ranks):
        pairs = [*zip(first.ranks[rank][:until], second.ranks.get(rank, ())[:until], strict=False)]
        for number, pair in enumerate(pairs, 1):
            if why := next(_unlike(*pair), ""):
                return Control(why_not=f"rank {rank}: {why} in step {number}")
            weights = max(weights, *distances(pair[0].weights, pair[1].weights).values(), 0.0)
            state = max(state, *distances(pair[0].state, pair[1].state).values(), 0.0)
            losses = max(losses, *map(apart, pair[0].losses, pair[1].losses), apart(pair[0].gradient, pair[1].gradient))
        if why := _moves_less([step for step, _ in pairs], [step for _, step in pairs]):
            return Control(why_not=f"rank {rank}: {why}")
    return Control(weights, state, losses)


def _unlike(first: RecordedStep, second: RecordedStep) -> Iterator[str]:
    if (first.optimizer, set(first.weights)) != (second.optimizer, set(second.weights)):
        yield "other parameters"
    if len(first.batches) != len(second.batches):
        yield f"{len(second.batches)} batches, and {len(first.batches)}"
    if first.batches != second.batches:
        yield "another batch"
    if first.rates != second.rates:
        yield "another learning rate"


def _moves_less(first: list[RecordedStep], second: list[RecordedStep]) -> str:
    """Where the two are further apart than a step moves the weights."""
    noise = max((_median(a, b) for a, b in zip(first, second, strict=True)), default=0.0)
    same = [(a, b) for a in first for b in first if a.optimizer == b.optimizer and a is not b]
    moves = [move for a, b in same if (move := _median(a, b))]
    if noise <= EXACT or (moves and noise < OF_A_STEP * min(moves)):
        return ""
    begin = " from the start on" if _median(first[0], second[0]) > EXACT else ""
    step = f", and a step moves them by {min(moves):.1e}" if moves else ""
    return f"other weights{begin}: they differ by {noise:.1e} of their size{step}"


def _median(first: RecordedStep, second: RecordedStep) -> float:
    return statistics.median([*distances(first.weights, second.weights).values(), 0.0])
