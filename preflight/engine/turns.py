"""Which check comes next, and how much of the run's time is kept for the ones that explain a failure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from preflight.core.plan import DEPENDS_ON, After
from preflight.planning.registry import Spec
from preflight.results.result import Result

AROUND_S = 5.0
"""What ends a check that hangs, and begins the next one with new workers."""


class Turns:
    """The checks of a run in order; but what explains a failure comes at once: those between may take all the time that
    is left. `results`: what has ended so far, and grows."""

    def __init__(self, specs: Mapping[str, Spec], results: Sequence[Result]) -> None:
        self._waiting, self._results = dict(specs), results

    def __iter__(self) -> Iterator[Spec]:
        while self._waiting:
            spec = next(chain(self._explaining(), self._waiting.values()))
            yield self._waiting.pop(spec.id)

    def _explaining(self) -> Iterator[Spec]:
        """Of those that are called for by the last check, where its ranks hung or failed, those that can begin."""
        last = self._results[-1] if self._results else None
        if last and last.has_failed_ranks:
            waiting = [spec for spec in self._waiting.values() if last.check in spec.plan.ids(After.WHEN_BAD)]
            explaining = sorted(waiting, key=lambda spec: not spec.fresh)  # what hangs may hang old workers again
            yield from (spec for spec in explaining if not self._waiting.keys() & spec.plan.ids(DEPENDS_ON))

    def is_called_for(self, spec: Spec) -> bool:
        """Whether something was found of which it may tell more."""
        found = {it.check for it in self._results if it.status in ("fail", "warn") or it.has_failed_ranks}
        symptoms = spec.plan.ids(After.WHEN_BAD)
        return not symptoms or bool(found & set(symptoms))

    def share_s(self, spec: Spec, left_s: float) -> float:
        """The seconds that a check may take of those that are left: what would explain its failure has its time, too,
        up to a half."""
        explaining = (other for other in self._waiting.values() if spec.id in other.plan.ids(After.WHEN_BAD))
        kept_s = max((other.plan.estimate_s + AROUND_S for other in explaining), default=0.0)
        return max(0.5 * left_s, left_s - kept_s)
