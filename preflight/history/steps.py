"""Finds where the level of a series changes: binary segmentation by the difference of means, with known noise.

The statistic of a split is the difference of both sides' means in units of its standard error (Scott and Knott, 1974).
The noise is that of most differences between neighbors, which a step does not change; single runs far outside are
pulled in, so that one bad run is not a step.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from preflight.history.entry import MAD

SIGNIFICANT, FEW = 6.0, 30.0
"""The threshold in standard errors, and what is added to it for few runs (FEW / their number): from 20 runs the noise
is known to within a fifth. The largest of 500 splits of pure noise exceeds 4.5 once in some hundred series."""
LEAST_CHANGE = 0.02
"""The smallest relevant change, as a share of the level."""
SIDE = 5
"""The least number of runs on each side."""
FAR = 3.0
"""Standard deviations; a run farther away counts as if it were at this distance."""


@dataclass(frozen=True)
class Step:
    at: int
    """The index of the first run with the new level."""
    before: float
    after: float


def steps(values: Sequence[float]) -> list[Step]:
    """The steps, in the order of time."""
    noise = _noise(values)
    if len(values) < 2 * SIDE or noise is None:
        return []
    places = [0, *sorted(_splits(values, 0, noise)), len(values)]
    levels = [statistics.median(values[start:end]) for start, end in pairwise(places)]
    found = [Step(at, *pair) for at, pair in zip(places[1:-1], pairwise(levels), strict=True)]
    return [step for step in found if abs(step.after - step.before) > LEAST_CHANGE * abs(step.before)]


def _noise(values: Sequence[float]) -> float | None:
    """The standard deviation of a value, at least a thousandth of their median; None if it is not known."""
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
    """(the best split, its statistic). Outliers are pulled in toward the median of their neighbors."""
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
