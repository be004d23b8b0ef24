"""The names that fields of `Plan` had before 0.1.0, for one release: what they say, by today's names."""

from dataclasses import dataclass, replace
from typing import Any

from preflight.check import After, Asked, Level, Option, Plan
from preflight.errors import BrokenCheck, near_misses

RELATIONS = {
    "needs": After.NEEDS, "reads": After.READS, "uses": After.USES, "when": After.WHEN_BAD,
    "unless": After.UNLESS_FAILED,
}  # fmt: skip


FLAGS = ("aside", "baseline")
"""Old names that are true or false. results/judging.py reads `aside`, for what `draw` yields."""


@dataclass(frozen=True)
class OldLevel:
    """`given`, `sooner_with` and `sooner_on`: if there is what they name, a full check runs from level standard on."""

    level: Any
    given: tuple[str, ...] = ()
    sooner_with: tuple[str, ...] = ()
    sooner_on: tuple[str, ...] = ()

    def __call__(self, asked: Asked) -> Any:
        if not asked.sets(*_options(asked, "given", self.given)):
            return None
        sooner = [*map(asked.sets, _options(asked, "sooner_with", self.sooner_with))]
        is_sooner = any(sooner) or bool(self.given) or asked.backend in self.sooner_on
        return Level.STANDARD if is_sooner and self.level == Level.FULL else self.level


@dataclass(frozen=True)
class OldFresh:
    """`fresh_with`: if one of these options is set, the workers are replaced."""

    fresh: Any
    fresh_with: tuple[str, ...]

    def __call__(self, asked: Asked) -> Any:
        return self.fresh or any(map(asked.sets, _options(asked, "fresh_with", self.fresh_with)))


def translated(plan: Plan) -> Plan:
    """The plan without old names. Raises BrokenCheck where an old name has a value that it could not have."""
    lists = {name: _names(name, value) for name, value in plan.old.items() if name not in FLAGS}
    after = dict(plan.after)
    for name, kind in RELATIONS.items():
        after |= {id_: after.get(id_, kind) | kind for id_ in lists.get(name, ())}
    levels = {name: lists[name] for name in ("given", "sooner_with", "sooner_on") if name in lists}
    return replace(
        plan,
        after=after,
        level=OldLevel(plan.level, **levels) if levels else plan.level,
        fresh=OldFresh(plan.fresh, lists["fresh_with"]) if "fresh_with" in lists else plan.fresh,
    )


def _names(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise BrokenCheck(f"PLAN.{name} is the text {value!r}, expected a tuple: ({value!r},) with a comma")
    if not isinstance(value, tuple | list) or not all(isinstance(word, str) for word in value):
        raise BrokenCheck(f"PLAN.{name} is {value!r}, expected a tuple of names")
    return tuple(value)


def _options(asked: Asked, field: str, names: tuple[str, ...]) -> list[Option[Any]]:
    for name in names:
        if name not in asked.options:
            raise BrokenCheck(
                f"PLAN.{field} names {name}, which is not an option of it{near_misses(name, asked.options)}"
            )
    return [asked.options[name] for name in names]
