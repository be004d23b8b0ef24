"""Finds a collective that a strategy needs but did not make, in words."""

from collections.abc import Mapping

from preflight.check import ranges
from preflight.checks.train.shared.parity.divergence import TrainingPair


def missing(pairs: Mapping[int, TrainingPair]) -> str:
    """The first collective that some rank lacks, or "". Only meaningful if numbers are wrong, too: another torch
    version may need fewer."""
    for rank, pair in pairs.items():
        for made in pair.made:
            if made["made"] < made["least"]:
                who = [other for other, its in pairs.items() if _lacks(its, made["over"])]
                kind = " or ".join(f"{word}s" for word in made["kind"].split(" or "))
                told = f"in a step rank {rank} makes {made['made']} {kind} over its {len(made['ranks'])} {made['over']}"
                on = "all ranks" if len(who) == len(pairs) else ranges.ranks(who)
                return f"{told}, expected at least {made['least']} ({made['why']}); the same on {on}"
    return ""


def _lacks(pair: TrainingPair, over: str) -> bool:
    return any(made["made"] < made["least"] for made in pair.made if made["over"] == over)
