"""Which collective that a strategy needs was not made, in words."""

from collections.abc import Mapping

from preflight.check import ranges
from preflight.checks.train.shared.divergence import TrainingPair


def missing(pairs: Mapping[int, TrainingPair]) -> str:
    """The first that some rank lacks; "" where none does. It says something only where numbers are wrong, too: another
    torch may do the same with fewer."""
    for rank, pair in pairs.items():
        for made in pair.made:
            if made["made"] < made["least"]:
                who = [other for other, its in pairs.items() if _lacks(its, made["over"])]
                kind = " or ".join(f"{word}s" for word in made["kind"].split(" or "))
                told = f"in a step rank {rank} makes {made['made']} {kind} over its {len(made['ranks'])} {made['over']}"
                on = "all ranks" if len(who) == len(pairs) else ranges.ranks(who)
                return f"{told}, expected at least {made['least']} ({made['why']}), and so it is on {on}"
    return ""


def _lacks(pair: TrainingPair, over: str) -> bool:
    return any(made["made"] < made["least"] for made in pair.made if made["over"] == over)
