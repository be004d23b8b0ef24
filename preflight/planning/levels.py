"""At which level a check runs, and what changes that: found by asking its plan, once for each option and backend."""

from typing import NamedTuple

from preflight.check import Asked, Level
from preflight.planning import validation
from preflight.planning.registry import Check, how_to_set

BACKENDS = ("nccl", "gloo")


class Levels(NamedTuple):
    """What `preflight list` and `describe` say of a check's level."""

    level: Level
    """Where the user sets nothing but what must be given."""
    lowest: Level
    given: tuple[str, ...]
    """Names of its options without which it is left out."""
    sooner: tuple[tuple[str, Level], ...]
    """How an option is set, or a backend, with which it runs at another level."""


def of(check: Check) -> Levels:
    """Raises BrokenCheck, and what the plan's function raises."""
    names = _asked_for(check)
    unasked = _level(check)
    given = tuple(names) if unasked is None else ()
    level = unasked or _level(check, *given) or Level.FULL
    with_one = [(how_to_set(f"{check.id}.{name}"), _level(check, name)) for name in names if not given]
    with_one += [(backend, _level(check, *given, backend=backend)) for backend in BACKENDS]
    sooner = tuple((how, other) for how, other in with_one if other is not None and other is not level)
    return Levels(level, min([level, *(other for _, other in sooner)], key=list(Level).index), given, sooner)


def _level(check: Check, *names: str, backend: str = "") -> Level | None:
    return validation.level(check.plan, Asked(backend, check.options, frozenset(names)))


def _asked_for(check: Check) -> list[str]:
    """The options that its level depends on. A plan that asks for one only where another is set is asked again."""
    names: list[str] = []
    while True:
        asked = Asked(options=check.options, set_by_user=frozenset(names))
        validation.level(check.plan, asked)
        if not asked.unset:
            return names
        names += asked.unset
