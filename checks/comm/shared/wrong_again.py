"""Compares two computations of wrong results: which were wrong in both, and which only in one. Pure.

What is wrong on any rank is recomputed after the sweep (sweep.py), with the same operation, size and data. Both are
judged together, so that a rank is named only if neither contradicts it. A right result the second time clears no rank:
a result that was wrong once was wrong.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from preflight.check import Finding
from preflight.checks.comm.shared.readings import Computed, Facts

INTERMITTENT = (
    "computed twice from the same data it was wrong once: the fault is intermittent, a run that passes proves nothing"
)
NO_TIME = "not confirmed: there was no time to recompute it"
ONCE = "not confirmed: it was computed once"

Key = tuple[str, int]
"""(type, bytes)."""


@dataclass(frozen=True)
class WrongResults:
    """The wrong results of all ranks."""

    facts: Mapping[int, Facts]

    def of(self, rank: int) -> list[Computed]:
        """Wrong results of both computations, the first one's first."""
        return [result for result in (*_first(self.facts[rank]), *_second(self.facts[rank])) if result["wrong"]]

    def confirmed(self, finding: Finding, ranks: Collection[int]) -> Finding:
        """The finding, based on these ranks' results, with `confirmed` in its evidence."""
        proof, why = self._confirmed(ranks)
        text = f"{finding.message}; {why}" if why else finding.message
        return replace(finding, message=text, evidence={**finding.evidence, "confirmed": proof})

    def _confirmed(self, ranks: Collection[int]) -> tuple[str, str]:
        """(how often it was wrong, what to say about it)."""
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
