"""What a strategy changed about a model while wrapping it: exact, and judged before any number."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from preflight.check import Code, ranges
from preflight.checks.train.shared.parity.divergence import CurvePlace, Point
from preflight.checks.train.shared.parity.variant import Meaning

if TYPE_CHECKING:
    from preflight.train_smoke.strategies.training import Facts
    from preflight.train_smoke.trainer.structure import Changed

MODEL_CHANGED = Code(
    "Wrapping by the strategy changes the model's parameters: untied, lost, frozen, duplicated or missing.",
    fix="Check the code that wraps the model: tie weights again after parallelize_module, freeze and cast before "
    "wrapping, and give each layer to one stage.",
)


def of(facts: Mapping[int, "Facts"], variant: str) -> Iterator[Meaning]:
    """Changes; none if all is well. A rank is to blame if most others are sound."""
    told: dict[str, list[int]] = {}
    names: dict[str, str] = {}
    for rank, own in facts.items():
        changed = own["variants"][variant]["changed"]
        for name, text in _words(changed) if changed else ():
            told.setdefault(text, []).append(rank)
            names.setdefault(text, name)
    if not told:
        return
    text, ranks = max(told.items(), key=lambda entry: len(entry[1]))
    more = f"; {ranges.count(len(told) - 1, 'more change')} of this kind" if len(told) > 1 else ""
    point = Point(CurvePlace(0, "start"), "", "", math.inf)
    if 2 * len(ranks) < len(facts):
        for rank in ranks:
            others = f", though not on {ranges.count(len(facts) - len(ranks), 'other rank')}"
            yield Meaning("model_changed", f"{text}{others}{more}", point, rank, names[text])
        return
    where = "" if len(ranks) == len(facts) else f" ({ranges.ranks(ranks)})"
    yield Meaning("model_changed", f"{text}{where}{more}", point, None, names[text], tuple(ranks))


def _words(changed: "Changed") -> Iterator[tuple[str, str]]:
    """(a parameter, what became of it)."""
    for names in changed["untied"]:
        told = f"{' and '.join(names)} were one parameter, but are {len(names)} once wrapped"
        yield names[0], f"{told}, expected one: each gets only a part of the gradient"
    for name in changed["lost"]:
        yield name, f"{name} is no longer a parameter once wrapped, expected one that is trained as before"
    for name in changed["added"]:
        yield name, f"{name} is a parameter once wrapped, but was not one before"
    for name, was, now in changed["other"]:
        yield name, f"{name} is {now} once wrapped, expected {was} as before"
    for name, kept, size in changed["kept"]:
        times = f"{kept / size:.3g} times" if kept else "not at all"
        told = f"the ranks that share the model keep {kept:,} elements of {name} in total, expected {size:,}"
        yield name, f"{told}: it is kept {times}, expected once"
