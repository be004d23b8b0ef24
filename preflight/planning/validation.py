"""What a check's module must declare. An error raises BrokenCheck with its line, and affects no other check."""

import ast
import inspect
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import StrEnum
from types import ModuleType
from typing import Any, TypeVar

from preflight.check import After, Asked, Level, Option, Plan, Scope
from preflight.errors import BrokenCheck, near_misses
from preflight.planning import old_plan

T = TypeVar("T", bound=StrEnum)
FLAGS = ("last", "judges_failures")
LONGEST_S = 1e6


def valid_plan(module: ModuleType, options: Mapping[str, Option[Any]]) -> Plan:
    """The module's PLAN by today's names, with every field of the type declared in `Plan`. Raises BrokenCheck."""
    plan = getattr(module, "PLAN", None)
    if not isinstance(plan, Plan):
        raise BrokenCheck(f"it has no PLAN = Plan(...){line_of(module, 'PLAN')}")
    try:
        _refuse_relations(plan.after)
        plan = old_plan.translated(plan)
        for name in FLAGS:
            _flag(name, getattr(plan, name))
        for name in ("deadline_s", "estimate_s"):
            if name != "deadline_s" or not callable(plan.deadline_s):
                seconds(name, getattr(plan, name))
        if isinstance(plan.facts_version, bool) or not isinstance(plan.facts_version, int):
            raise BrokenCheck(f"PLAN.facts_version is {plan.facts_version!r}, expected a whole number")
        for asked_of in (level, fresh):
            asked_of(plan, Asked(options=options))
        return replace(
            plan,
            scope=_word("scope", plan.scope, Scope),
            level=plan.level if callable(plan.level) else _word("level", plan.level, Level),
        )
    except BrokenCheck as error:
        raise BrokenCheck(f"{error}{line_of(module, 'PLAN')}") from None


def refuse_unknown_ids(module: ModuleType, plan: Plan, known: Collection[str]) -> None:
    """Raises BrokenCheck if the plan names a check that does not exist."""
    for id_ in plan.after:
        if id_ not in known:
            what = f"PLAN.after names {id_}, which is not a check{near_misses(id_, known)}"
            raise BrokenCheck(f"{what}{line_of(module, 'PLAN')}")


def level(plan: Plan, asked: Asked) -> Level | None:
    """The level from which it runs; None: left out. Raises BrokenCheck, and what the plan's function raises."""
    value = plan.level(asked) if callable(plan.level) else plan.level
    return None if value is None and callable(plan.level) else _word("level", value, Level)


def fresh(plan: Plan, asked: Asked) -> bool:
    """Whether all workers are replaced before it. Raises BrokenCheck, and what the plan's function raises."""
    return _flag("fresh", plan.fresh(asked) if callable(plan.fresh) else plan.fresh)


def seconds(name: str, value: object) -> float:
    """Raises BrokenCheck."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LONGEST_S:
        raise BrokenCheck(f"PLAN.{name} is {value!r}, expected a number of seconds above 0")
    return float(value)


def line_of(module: ModuleType, name: str) -> str:
    """ " (nvlink.py line 12)": where the module assigns this constant; "" where it does not."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return ""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return f" ({os.path.basename(module.__file__ or module.__name__)} line {node.lineno})"
    return ""


def _word(name: str, value: object, kind: type[T]) -> T:
    if value not in list(kind):
        *others, last = kind
        raise BrokenCheck(f"PLAN.{name} is {value!r}, expected {', '.join(others)} or {last}")
    return kind(str(value))


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BrokenCheck(f"PLAN.{name} is {value!r}, expected True or False")
    return value


def _refuse_relations(after: object) -> None:
    if not isinstance(after, Mapping):
        raise BrokenCheck(f"PLAN.after is {after!r}, expected {{id: After.NEEDS}} or the like")
    for id_, kind in after.items():
        if not isinstance(id_, str) or not isinstance(kind, After) or not kind:
            raise BrokenCheck(f"PLAN.after is {{{id_!r}: {kind!r}}}, expected {{id: After.NEEDS}} or the like")
