"""Which checks there are to run: built-in ones are imported here, plugins in a child that may hang or crash."""

import sys
import traceback
from functools import partial
from typing import Any

from preflight.core.answer import Failure
from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.engine.event_loop import EventLoop
from preflight.engine.membership import STRANGERS
from preflight.errors import BrokenCheck, UsageError
from preflight.planning import registry, validation
from preflight.planning.plan import Request
from preflight.planning.registry import Source, Spec
from preflight.results.result import Result

PLUGIN_S = 20.0
"""For the import of a plugin."""


def load(loop: EventLoop, job: Job, request: Request) -> tuple[list[Spec], list[Result]]:
    """All checks, and a result for every selected plugin that cannot be loaded. Raises UsageError for a
    setting that a plugin does not have."""
    specs: list[Spec] = []
    broken: list[Result] = []
    for source in request.sources.values():
        if source.kind == "builtin":
            specs.append(registry.spec_of(registry.load(source), job))
            continue
        answer = loop.ask("plugin", partial(_load_plugin, source, job, request), PLUGIN_S)
        if isinstance(answer, Failure):
            if request.selection.names(source.id):
                broken.append(_broken(source, answer.text, str(answer.kind), answer.stack))
            continue
        told = answer.value
        if "usage" in told:
            raise UsageError(told["usage"])
        if "spec" in told:
            specs.append(Spec.from_json(told["spec"]))
        elif request.selection.names(source.id):
            broken.append(_broken(source, told["error"], stack=told["stack"]))
    flaws = {spec.id: _needs_itself(spec, specs) for spec in specs}
    broken += [_broken(spec.source, flaws[spec.id]) for spec in specs if flaws[spec.id]]
    sound = [spec for spec in specs if not flaws[spec.id]]
    return sound, broken


def _needs_itself(spec: Spec, specs: list[Spec]) -> str:
    """What is wrong with its needs, or ""."""
    by_id = {spec.id: spec for spec in specs}
    needed, pending = set(), list(spec.plan.needs)
    while pending:
        need = pending.pop()
        if need not in needed and need in by_id:
            needed.add(need)
            pending.extend(by_id[need].plan.needs)
    return f"it needs itself, by way of {', '.join(spec.plan.needs)}" if spec.id in needed else ""


def _load_plugin(source: Source, job: Job, request: Request) -> dict[str, Any]:
    """In a child."""
    try:
        module = registry.import_module(source)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_initialized():
            raise BrokenCheck("it initialises a process group on import: ask ctx.process_group() in measure()")
        check = registry.describe(source, module)
        validation.refuse_unknown_ids(module, check.plan, {*request.sources, STRANGERS})
        registry.unknown_settings(check, request.settings)
        registry.unknown_codes(check, request.policy.codes)
        return {"spec": registry.spec_of(check, job).to_json()}
    except UsageError as error:
        return {"usage": str(error)}
    except Exception as error:
        stack = "" if isinstance(error, BrokenCheck) else traceback.format_exc()
        return {"error": registry.load_error(source, error), "stack": stack}


def _broken(source: Source, why: str, slug: str = "raised", stack: str = "") -> Result:
    finding = Reported(
        severity="error",
        code=f"{source.id}.{slug}",
        message=f"the plugin {source.target} cannot be loaded: {why}",
        where={"file": source.target},
        evidence={"stack": stack} if stack else {},
        fix=f"Fix it, then try: preflight describe {source.id}{registry.with_plugin(source)}",
    )
    return Result(source.id, "A plugin.", findings=[finding])
