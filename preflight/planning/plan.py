"""Which checks run, and in which order."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from preflight.check import Level
from preflight.core.facts import content_hash
from preflight.core.plan import DEPENDS_ON
from preflight.errors import UsageError
from preflight.planning import registry
from preflight.planning.node_kinds import ProfileKind
from preflight.planning.policy import Policy
from preflight.planning.registry import Source, Spec

SHORTEST_S, LONGEST_S = 3.0, 86400.0
DEADLINES_S = {Level.QUICK: 60.0, Level.STANDARD: 120.0, Level.FULL: 900.0}
"""Of a run, where the user gives none; and what one may be."""


@dataclass(frozen=True)
class CheckSelection:
    """What the user asked for."""

    level: Level = Level.STANDARD
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    """Checks that were asked for by id, not as part of a family."""

    def names(self, id_: str) -> bool:
        """Whether the user asked for this check. For a plugin that cannot be loaded, whose level is unknown."""
        words = {id_, id_.partition(".")[0]}
        return not words & set(self.skip) and (not self.only or bool(words & set(self.only)))

    def asks_for(self, id_: str) -> bool:
        """Whether the user named this check or its family: it runs also where nothing calls for it."""
        return bool(self.only) and self.names(id_)


@dataclass(frozen=True)
class Request:
    """What the user asked rank 0 for."""

    selection: CheckSelection
    settings: Mapping[str, str]
    """`--set` texts by name."""
    sources: Mapping[str, Source]
    backend: str = "auto"
    policy: Policy = field(default_factory=Policy)
    baseline: str = ""
    """The path of `--baseline REPORT`."""
    profile: tuple[ProfileKind, ...] = ()
    """What each kind of node has: `--profile FILE`."""
    profile_path: str = ""

    @property
    def arguments(self) -> str:
        """A hash of what ranks must have in common, since each takes its checks and settings from its own command
        line: the ids of its plugins, and all settings."""
        plugins = sorted(source.id for source in self.sources.values() if source.kind in ("file", "module"))
        return content_hash(json.dumps([plugins, dict(self.settings)], sort_keys=True))


def expand(words: Iterable[str], known: Mapping[str, Source], option: str) -> set[str]:
    """The ids that these ids and families name. Raises UsageError that lists the near misses."""
    families = {id_.partition(".")[0] for id_ in known}
    chosen: set[str] = set()
    for word in words:
        matching = {id_ for id_ in known if word in (id_, id_.partition(".")[0])}
        if not matching:
            hint = registry.hint(word, {*known, *families})
            raise UsageError(f"{option} {word}: there is no such check or family{hint}")
        chosen |= matching
    return chosen


def choose(specs: list[Spec], request: Request) -> list[Spec]:
    """The checks to run, in order, with what they need. A needed check that the user skipped stays out: the check that
    needs it is then skipped and says so."""
    selection, known = request.selection, request.sources
    specs = [s for s in specs if s.id in selection.ids or not s.left_out]
    by_id = {spec.id: spec for spec in specs}
    skipped = expand(selection.skip, known, "--skip")
    if selection.only:
        wanted = expand(selection.only, known, "--only")
    else:
        wanted = {spec.id for spec in specs if selection.level.includes(spec.level)}
    pending = list(wanted & set(by_id))
    while pending:
        spec = by_id[pending.pop()]
        ids = spec.plan.ids(DEPENDS_ON)
        needed = [id_ for id_ in ids if id_ in by_id and id_ not in wanted]
        wanted.update(needed)
        pending.extend(needed)
    return _in_order([spec for spec in specs if spec.id in wanted - skipped])


def _in_order(specs: list[Spec]) -> list[Spec]:
    """Sorts stably, each check after those that it needs, reads or is triggered by (a plugin may need a later one)."""
    ids = {spec.id for spec in specs}
    done: list[Spec] = []
    waiting = sorted(specs, key=lambda spec: spec.plan.last)
    while waiting:
        placed = {spec.id for spec in done}
        after = {spec.id: set(spec.plan.after) & ids - placed for spec in waiting}
        ready = next((spec for spec in waiting if not after[spec.id]), waiting[0])
        done.append(ready)
        waiting.remove(ready)
    return done
