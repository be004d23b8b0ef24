"""Two looks at wrong results: which were wrong in both, and which in one of them only. Pure.

What is wrong on any rank is computed once more after the sweep (sweep.py): the same operation, size and data. Both
looks are judged together, so that a rank is named only where neither of them speaks against it. Right the second time
clears nobody: a result that was wrong once was wrong.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from preflight.check import Finding
from preflight.checks.comm.shared.readings import Computed, Facts

INTERMITTENT = (
    "computed twice from the same data it was wrong once: the fault is intermittent, a run that passes clears nobody"
)
NO_TIME = "not confirmed: there was no time to compute it once more"
ONCE = "not confirmed: it was computed once"

Key = tuple[str, int]
"""Type and bytes."""


@dataclass(frozen=True)
class WrongResults:
    """Of all ranks."""

    facts: Mapping[int, Facts]

    def of(self, rank: int) -> list[Computed]:
        """Of both looks, the first one's first."""
        return [result for result in (*_first(self.facts[rank]), *_second(self.facts[rank])) if result["wrong"]]

    def said(self, finding: Finding, ranks: Collection[int]) -> Finding:
        """The finding, which is made of what these ranks got, with `confirmed` in its evidence."""
        proof, why = self._confirmed(ranks)
        text = f"{finding.message}; {why}" if why else finding.message
        return replace(finding, message=text, evidence={**finding.evidence, "confirmed": proof})

    def _confirmed(self, ranks: Collection[int]) -> tuple[str, str]:
        """(how often, what to say of it)."""
        readings = [self.facts[rank] for rank in ranks]
        first, second = ({_key(it) for of in readings for it in look(of) if it["wrong"]} for look in (_first, _second))
        tried = {_key(it) for of in readings for it in _second(of)}
        if first & second:
            return "2 of 2", ""
        if second or first & tried:
            return "1 of 2", INTERMITTENT
        return "1 of 1", NO_TIME if any("second" in of for of in readings) else ONCE


def _first(of: Facts) -> list[Computed]:
    return [{"dtype": size["dtype"], "bytes": size["bytes"], "wrong": size["wrong"]} for size in of["sizes"]]


def _second(of: Facts) -> list[Computed]:
    return of.get("second", [])


def _key(result: Computed) -> Key:
    return result["dtype"], result["bytes"]
