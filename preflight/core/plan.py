"""When and where a check runs: what its module declares as `PLAN`."""

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Flag, StrEnum, auto
from typing import Any, ClassVar, TypeVar

from preflight.core.job import Job
from preflight.core.option import Option
from preflight.errors import BrokenCheck

T = TypeVar("T")


class Scope(StrEnum):
    """Who measures."""

    NODE = "node"
    """One rank per node."""
    RANK = "rank"
    """Every rank, alone."""
    WORLD = "world"
    """All members together: a collective, or anything in which one rank waits for another."""


class Level(StrEnum):
    """How much time a run takes. Each level includes the one before."""

    QUICK = "quick"
    """Needs no torch; adds less than a second."""
    STANDARD = "standard"
    FULL = "full"

    def includes(self, other: "Level") -> bool:
        """Whether a run at this level runs a check of level `other`."""
        order = list(Level)
        return order.index(other) <= order.index(self)


class After(Flag):
    """What a check has to do with another one, after which it runs: `{"comm.init": After.NEEDS | After.READS}`."""

    NEEDS = auto()
    """It must not have failed, been skipped or deselected."""
    READS = auto()
    """`judge` may ask for its facts (`run.facts`)."""
    USES = auto()
    """Like READS, but optional: where the user has skipped it, its facts are empty."""
    WHEN_BAD = auto()
    """Run only after a fail or warn of it, or of another check with WHEN_BAD."""
    UNLESS_FAILED = auto()
    """Not run after a fail of it: this check would fail for the same reason, and cost its deadline."""


DEPENDS_ON = After.NEEDS | After.READS | After.USES
"""The checks without which one cannot begin: they come along where it is chosen."""


@dataclass(frozen=True, eq=False)
class Asked:
    """What a run is asked for, as far as a plan may depend on it: it must be the same on all ranks."""

    backend: str = ""
    """nccl or gloo; "" where there is no run (`preflight list`)."""
    options: Mapping[str, Option[Any]] = field(default_factory=dict)
    """The check's own, by name."""
    set_by_user: frozenset[str] = frozenset()
    """Their names."""
    unset: list[str] = field(default_factory=list)
    """The names of those that the plan has asked for in vain."""

    def sets(self, *options: Option[Any]) -> bool:
        """Whether the user has set all of these options of the check; an empty text is not set. Raises BrokenCheck."""
        names = {id(known): name for name, known in self.options.items()}
        for option in options:
            if id(option) not in names:
                raise BrokenCheck("PLAN asks for an option that is not a constant of the module")
        missing = [names[id(option)] for option in options if names[id(option)] not in self.set_by_user]
        self.unset.extend(name for name in missing if name not in self.unset)
        return not missing


OLD_NAMES = {
    **{old: f"after={{id: After.{new}}}" for old, new in (
        ("needs", "NEEDS"), ("reads", "READS"), ("uses", "USES"), ("when", "WHEN_BAD"), ("unless", "UNLESS_FAILED"),
    )},
    "given": "level=lambda asked: ... if asked.sets(OPTION) else None",
    "sooner_with": "level=lambda asked: ... if asked.sets(OPTION) else Level.FULL",
    "sooner_on": "level=lambda asked: ... if asked.backend == 'nccl' else Level.FULL",
    "fresh_with": "fresh=lambda asked: asked.sets(OPTION)",
    "aside": "plot(), whose plots.Table(..., screen='quiet') is shown unless the check passed",
    "baseline": "record(reading, job), whose figures are compared",
}  # fmt: skip
"""Keywords that `Plan` still takes, for one release, and what to write instead. planning/old_plan.py reads them."""


def _takes_old_names(plan: type[T]) -> type[T]:
    initialize = plan.__init__

    def __init__(self: T, *args: Any, **fields: Any) -> None:  # noqa: N807 -- takes its place
        old = {name: fields.pop(name) for name in OLD_NAMES if name in fields}
        for name in old:
            warnings.warn(f"Plan({name}=...) is now {OLD_NAMES[name]}", DeprecationWarning, stacklevel=2)
        initialize(self, *args, **fields)
        object.__setattr__(self, "old", old)

    plan.__init__ = functools.wraps(initialize)(__init__)  # type: ignore[assignment]
    return plan


@_takes_old_names
@dataclass(frozen=True)
class Plan:
    """When and where a check runs."""

    scope: Scope
    level: Level | Callable[[Asked], Level | None]
    """The lowest level with the check; may depend on what the run is asked for. None leaves the check out: without its
    option there is nothing to check."""
    deadline_s: float | Callable[[Job], float] = 20.0
    """Seconds after which `measure` is killed; may depend on the job."""
    estimate_s: float = 1.0
    """Seconds that it takes on a sound machine: the check starts only if the run has that much time left."""
    after: Mapping[str, After] = field(default_factory=dict)
    """The checks after which it runs, by id, and what it has to do with each."""
    fresh: bool | Callable[[Asked], bool] = False
    """All workers of the run are replaced before it, so nothing that an earlier check allocated is still held."""
    last: bool = False
    """It runs after all others, including plugins."""
    judges_failures: bool = False
    """`judge` is also called where no rank has facts: it reads the outcomes (`run.outcomes`)."""
    enough: float = 1.0
    """The share of the deadline in which a sound machine has surely ended: where the run leaves it that much, a hang is
    the machine's, as it is at the whole deadline."""
    facts_version: int = 1
    old: ClassVar[Mapping[str, Any]] = {}
    """What was given by old names."""

    def ids(self, kinds: After) -> tuple[str, ...]:
        """The checks to which it has one of these relations: `plan.ids(After.READS | After.USES)`."""
        return tuple(id_ for id_, kind in self.after.items() if kind & kinds)
