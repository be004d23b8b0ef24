"""What a check's module must declare. An error raises BrokenCheck with its line, and affects no other check."""

import ast
import inspect
import os
from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import StrEnum
from types import ModuleType
from typing import Any

from preflight.check import Level, Plan, Scope
from preflight.errors import BrokenCheck, near_misses

IDS = ("needs", "reads", "uses", "when", "unless")
"""Fields of a plan that name other checks."""
NAMING_OPTIONS = ("given", "fresh_with", "sooner_with")
"""Fields of a plan that name options of the check."""
LISTS = (*IDS, *NAMING_OPTIONS, "sooner_on")
BACKENDS = ("nccl", "gloo")
FLAGS = ("fresh", "last", "judges_failures", "baseline", "aside")
LONGEST_S = 1e6


def valid_plan(module: ModuleType, options: Collection[str]) -> Plan:
    """The module's PLAN, with every field of the type declared in `Plan`. Raises BrokenCheck."""
    plan = getattr(module, "PLAN", None)
    if not isinstance(plan, Plan):
        raise BrokenCheck(f"it has no PLAN = Plan(...){line_of(module, 'PLAN')}")
    try:
        _refuse_flags(plan)
        for name in ("deadline_s", "estimate_s"):
            if name != "deadline_s" or not callable(plan.deadline_s):
                seconds(name, getattr(plan, name))
        if isinstance(plan.facts_version, bool) or not isinstance(plan.facts_version, int):
            raise BrokenCheck(f"PLAN.facts_version is {plan.facts_version!r}, expected a whole number")
        lists: dict[str, Any] = {name: _names(plan, name) for name in LISTS}
        _refuse_unknown(lists, NAMING_OPTIONS, options, "is not an option of it")
        _refuse_unknown(lists, ("sooner_on",), BACKENDS, "is not a backend")
        return replace(plan, scope=_one_of(plan, "scope", Scope), level=_one_of(plan, "level", Level), **lists)
    except BrokenCheck as error:
        raise BrokenCheck(f"{error}{line_of(module, 'PLAN')}") from None


def refuse_unknown_ids(module: ModuleType, plan: Plan, known: Collection[str]) -> None:
    """Raises BrokenCheck if the plan names a check that does not exist."""
    try:
        _refuse_unknown({name: getattr(plan, name) for name in IDS}, IDS, known, "is not a check")
    except BrokenCheck as error:
        raise BrokenCheck(f"{error}{line_of(module, 'PLAN')}") from None


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


def _one_of(plan: Plan, name: str, kind: type[StrEnum]) -> Any:
    value = getattr(plan, name)
    if value not in list(kind):
        *others, last = kind
        raise BrokenCheck(f"PLAN.{name} is {value!r}, expected {', '.join(others)} or {last}")
    return kind(value)


def _refuse_flags(plan: Plan) -> None:
    for name in FLAGS:
        if not isinstance(getattr(plan, name), bool):
            raise BrokenCheck(f"PLAN.{name} is {getattr(plan, name)!r}, expected True or False")


def _names(plan: Plan, name: str) -> tuple[str, ...]:
    value = getattr(plan, name)
    if isinstance(value, str):
        raise BrokenCheck(f"PLAN.{name} is the text {value!r}, expected a tuple: ({value!r},) with a comma")
    if not isinstance(value, tuple | list) or not all(isinstance(word, str) for word in value):
        raise BrokenCheck(f"PLAN.{name} is {value!r}, expected a tuple of names")
    return tuple(value)


def _refuse_unknown(
    lists: dict[str, tuple[str, ...]], fields: Iterable[str], known: Collection[str], what: str
) -> None:
    for field in fields:
        for name in lists[field]:
            if name not in known:
                raise BrokenCheck(f"PLAN.{field} names {name}, which {what}{near_misses(name, known)}")
