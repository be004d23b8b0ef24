"""How often to time an operation, and whether the next size fits the check's time. Pure arithmetic on times that all
ranks have agreed on, so that all decide the same."""

from dataclasses import dataclass, field

from preflight.checks.comm.shared.readings import KIB, MIB

WARM_UP, TIMED = 5, 20
"""As in nccl-tests; above SMALL as many as fit AIM_S, at least LEAST_TIMED."""
LEAST_TIMED = 3
UNTIMED = 3
"""Two operations with compared results, and the first warm-up."""
SMALL = MIB
AIM_S, AIM_SMALL_S = 0.1, 2.0
SHARE_PER_SIZE, SHARE = 0.2, 0.6
"""Shares of the deadline for one size and for all: a size that would exceed either is not started."""
LATENCY = 64 * KIB
"""Below this a message's time is mostly latency: it does not grow with the bytes."""
DAMPED = 8.0


@dataclass
class Pace:
    """The times of one type's sizes, from small to large."""

    deadline_s: float
    owed: int = 0
    """Bytes: larger messages are measured only if that takes at most `beyond_s`."""
    beyond_s: float = 0.0
    spent_s: float = 0.0
    measured: list[tuple[int, float]] = field(default_factory=list)
    """(bytes, seconds of one operation)"""
    _calls: int = 0
    """Calls of the last size, each assumed to take as long as the first."""

    def begins(self, size: int) -> bool:
        """Whether a size probably fits."""
        needed_s = self.expected(size) * (LEAST_TIMED + UNTIMED)
        most_s = SHARE_PER_SIZE * self.deadline_s if size <= self.owed else self.beyond_s
        return needed_s <= most_s and self.spent_s + needed_s <= SHARE * self.deadline_s

    def expected(self, size: int) -> float:
        """Estimated seconds of one operation, from a line through the last two sizes."""
        if not self.measured:
            return 0.0
        last, seconds = self.measured[-1]
        slope = seconds / last / (DAMPED if last < LATENCY else 1.0)
        if len(self.measured) > 1:
            before, earlier = self.measured[-2]
            slope = max((seconds - earlier) / (last - before), seconds / last / DAMPED)
        return seconds + slope * (size - last)

    def note(self, size: int, seconds: float) -> tuple[int, int]:
        """(further warm-up operations, timed ones), given the seconds of one operation of this size; (0, 0) if they do
        not fit."""
        repeats = self._repeats(size, seconds)
        more = WARM_UP - 1 if repeats == TIMED and seconds * WARM_UP <= AIM_SMALL_S else 0
        self.measured.append((size, seconds))
        self._calls = more + repeats
        self.spent_s += seconds * (UNTIMED + self._calls)
        return (more, repeats) if repeats else (0, 0)

    def surer(self, seconds: float) -> None:
        """Corrects the estimate by the timed operations' mean: on a busy machine the first may have waited long."""
        size, first = self.measured[-1]
        if seconds < first:
            self.measured[-1] = size, seconds
            self.spent_s -= (first - seconds) * self._calls
            self._calls = 0

    def _repeats(self, size: int, seconds: float) -> int:
        aim_s = AIM_SMALL_S if size <= SMALL else AIM_S
        wanted = TIMED if seconds * TIMED <= aim_s else max(LEAST_TIMED, int(aim_s / seconds))
        fits = (
            TIMED
            if seconds * TIMED <= SHARE_PER_SIZE * self.deadline_s
            else int(SHARE_PER_SIZE * self.deadline_s / seconds)
        )
        return min(wanted, fits) if fits >= LEAST_TIMED else 0


LATENCIES, MOST_LATENCIES, LATENCY_S = 100, 500, 0.05


def latencies(seconds: float, deadline_s: float) -> int:
    """How many small messages to time one by one: 100, or more while that takes little; fewer on a slow network; 0 if
    not even a few fit."""
    if seconds <= 0:
        return LATENCIES
    fits = int(SHARE_PER_SIZE * deadline_s / seconds / 2)
    wanted = min(MOST_LATENCIES, max(LATENCIES, int(LATENCY_S / seconds)))
    return min(wanted, fits) if fits >= LEAST_TIMED else 0
