"""Where the level of a series changes: binary segmentation by the difference of means, with the noise known.

The statistic of a split is the difference of both sides' means in units of its standard error (Scott and Knott, 1974).
The noise is that of most differences between neighbours, which a step does not change; single runs that lie far outside
are drawn in, so that one bad run is no step.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from preflight.history.entry import MAD

SIGNIFICANT, FEW = 6.0, 30.0
"""Standard errors, and what is added for few runs, by their number: from 20 runs the noise is known to a fifth. The
largest of 500 splits of pure noise is above 4.5 once in some hundred series."""
LEAST_CHANGE = 0.02
"""Of the level: less is of no interest."""
SIDE = 5
"""Runs on each side."""
FAR = 3.0
"""Standard deviations, beyond which a run counts as if it were there."""


@dataclass(frozen=True)
class Step:
    at: int
    """The place of the first run with the new level."""
    before: float
    after: float


def steps(values: Sequence[float]) -> list[Step]:
    """In the order of time."""
    noise = _noise(values)
    if len(values) < 2 * SIDE or noise is None:
        return []
    places = [0, *sorted(_splits(values, 0, noise)), len(values)]
    levels = [statistics.median(values[start:end]) for start, end in pairwise(places)]
    found = [Step(at, *pair) for at, pair in zip(places[1:-1], pairwise(levels), strict=True)]
    return [step for step in found if abs(step.after - step.before) > LEAST_CHANGE * abs(step.before)]


def _noise(values: Sequence[float]) -> float | None:
    """The standard deviation of a value; None where it cannot be told. Of values that repeat, a thousandth of them."""
    differences = [abs(after - before) for before, after in pairwise(values)]
    if not differences:
        return None
    least = abs(statistics.median(values)) / 1000
    return max(MAD * statistics.median(differences) / math.sqrt(2), least) or None


def _splits(values: Sequence[float], offset: int, noise: float) -> list[int]:
    if len(values) < 2 * SIDE:
        return []
    at, size = _best(values, noise)
    if size < SIGNIFICANT + FEW / len(values):
        return []
    return [*_splits(values[:at], offset, noise), offset + at, *_splits(values[at:], offset + at, noise)]


def _best(values: Sequence[float], noise: float) -> tuple[int, float]:
    """(the split, its statistic). Outliers are drawn in around the median of their own neighbours."""
    drawn = [_drawn_in(values, place, noise) for place in range(len(values))]
    sums, count = list(accumulate(drawn)), len(drawn)
    best, size = 0, 0.0
    for at in range(SIDE, count - SIDE + 1):
        difference = (sums[-1] - sums[at - 1]) / (count - at) - sums[at - 1] / at
        found = abs(difference) / (noise * math.sqrt(1 / at + 1 / (count - at)))
        best, size = (at, found) if found > size else (best, size)
    return best, size


def _drawn_in(values: Sequence[float], place: int, noise: float) -> float:
    value = values[place]
    first = min(max(0, place - 2), len(values) - SIDE)
    near = sorted(values[first : first + SIDE])
    middle = near[len(near) // 2]
    return min(max(value, middle - FAR * noise), middle + FAR * noise)
