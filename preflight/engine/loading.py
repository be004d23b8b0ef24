"""Loads the checks to run: imports built-in ones here, and plugins in a child that may hang or crash."""

import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from preflight.check import After, Level
from preflight.core.action import Action
from preflight.core.answer import Failure, FailureKind, Returned
from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.core.plan import DEPENDS_ON
from preflight.engine.event_loop import EventLoop
from preflight.engine.membership import STRANGERS
from preflight.errors import BrokenCheck, UsageError
from preflight.planning import built_in, plan, registry, validation
from preflight.planning.plan import Request
from preflight.planning.registry import Check, Source, Spec
from preflight.results.result import Result

PLUGIN_S = 20.0
"""Time for the import of a plugin."""


def load(loop: EventLoop, job: Job, request: Request) -> tuple[list[Spec], list[Result]]:
    """All checks that may run, and a result for every selected plugin that cannot be loaded. Raises UsageError for a
    setting that a plugin does not have."""
    specs: dict[str, Spec] = {}
    broken: list[Result] = []
    for source in request.sources.values():
        if source.kind == "builtin":
            continue
        answer = ask_plugin(loop, source, partial(_spec, job, request))
        if isinstance(answer, Returned):
            specs[source.id] = Spec.from_json(answer.value)
        elif request.selection.names(source.id):
            broken.append(_broken(source, answer))
    _load_built_in(specs, job, request)
    in_order = [specs[id_] for id_ in request.sources if id_ in specs]
    flaws = {spec.id: _needs_itself(spec, in_order) for spec in in_order}
    flawed = [spec for spec in in_order if flaws[spec.id]]
    broken += [_broken(spec.source, Failure(FailureKind.RAISED, flaws[spec.id])) for spec in flawed]
    return [spec for spec in in_order if not flaws[spec.id]], broken


def _load_built_in(specs: dict[str, Spec], job: Job, request: Request) -> None:
    """Adds those that the request may want, and what these and the plugins want: others cost their import."""
    known, selection = built_in.listed(), request.selection
    named = plan.expand(selection.only, request.sources, "--only")
    pending = [id_ for spec in specs.values() for id_ in _wanted_by(spec)]
    for id_, source in request.sources.items():
        is_soon = id_ not in known or selection.level.includes(Level(known[id_].lowest))
        if source.kind == "builtin" and (id_ in named if selection.only else is_soon):
            pending.append(id_)
    while pending:
        id_ = pending.pop()
        if id_ not in specs and id_ in request.sources and request.sources[id_].kind == "builtin":
            specs[id_] = registry.spec_of(registry.load(request.sources[id_]), job, request.settings)
            pending += _wanted_by(specs[id_])


def _wanted_by(spec: Spec) -> tuple[str, ...]:
    return spec.plan.ids(DEPENDS_ON)


def _needs_itself(spec: Spec, specs: list[Spec]) -> str:
    """The error if a check's needs lead back to itself, or ""."""
    by_id = {spec.id: spec for spec in specs}
    needed, pending = set(), list(spec.plan.ids(After.NEEDS))
    while pending:
        need = pending.pop()
        if need not in needed and need in by_id:
            needed.add(need)
            pending.extend(by_id[need].plan.ids(After.NEEDS))
    return f"it needs itself, through {', '.join(spec.plan.ids(After.NEEDS))}" if spec.id in needed else ""


def ask_plugin(loop: EventLoop, source: Source, tell: Callable[[Check], dict[str, object]]) -> Returned | Failure:
    """Imports a plugin in a child, since it may hang, and returns what `tell` returns or raises (UsageError)."""

    def work() -> dict[str, object]:
        try:
            module = registry.import_module(source)
            distributed = sys.modules.get("torch.distributed")
            if distributed is not None and distributed.is_initialized():
                raise BrokenCheck("it initializes a process group on import: call ctx.process_group() in measure()")
            return {"told": tell(registry.describe(source, module))}
        except UsageError as error:
            return {"usage": str(error)}
        except Exception as error:
            stack = "" if isinstance(error, BrokenCheck) else traceback.format_exc()
            return {"error": registry.load_error(source, error), "stack": stack}

    answer = loop.ask(work, PLUGIN_S)
    if isinstance(answer, Failure):
        return replace(answer, text=f"its import {answer.text}")
    if "usage" in answer.value:
        raise UsageError(answer.value["usage"])
    if "error" in answer.value:
        return Failure(FailureKind.RAISED, answer.value["error"], answer.value["stack"])
    return Returned(answer.value["told"])


def _spec(job: Job, request: Request, check: Check) -> dict[str, object]:
    """In a child."""
    validation.refuse_unknown_ids(check.module, check.plan, {*request.sources, STRANGERS})
    registry.unknown_settings(check, request.settings)
    registry.unknown_codes(check, request.policy.codes)
    return registry.spec_of(check, job, request.settings).to_json()


def _broken(source: Source, why: Failure) -> Result:
    finding = Reported(
        severity="error",
        code=f"{source.id}.{why.kind}",
        message=f"the plugin {source.target} cannot be loaded: {why.text}",
        where={"file": source.target},
        evidence={"stack": why.stack} if why.stack else {},
        fix=f"Fix it, then try: preflight describe {source.id}{registry.with_plugin(source)}",
        action=Action.FIX_CONFIG,
    )
    return Result(source.id, "A plugin.", findings=[finding])
