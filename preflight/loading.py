"""Which checks there are to run: built-in ones are imported here, plugins in a child that may hang or crash."""

import sys
from functools import partial
from typing import Any

from preflight import registry
from preflight.control import Control
from preflight.job import Job
from preflight.plan import Request
from preflight.registry import BrokenCheck, Source, Spec, UsageError, near_misses
from preflight.result import Result
from preflight.roll_call import STRANGERS

PLUGIN_S = 20.0
"""For the import of a plugin."""


def load(control: Control, job: Job, request: Request) -> tuple[list[Spec], list[Result]]:
    """All checks, and a result for every selected plugin that cannot be loaded. Raises UsageError for a
    setting that a plugin does not have."""
    specs: list[Spec] = []
    broken: list[Result] = []
    for source in request.sources.values():
        if source.kind == "builtin":
            specs.append(registry.spec_of(registry.load(source), job))
            continue
        answer, why = control.ask("plugin", partial(_load_plugin, source, job, request), PLUGIN_S)
        told = answer or {"error": why}
        if "usage" in told:
            raise UsageError(told["usage"])
        if "spec" in told:
            specs.append(Spec.from_json(told["spec"]))
        elif request.selection.names(source.id):
            broken.append(_broken(source, told["error"]))
    known = {*request.sources, STRANGERS}
    flaws = {spec.id: _flaw(spec, specs, known) for spec in specs}
    broken += [_broken(spec.source, flaws[spec.id]) for spec in specs if flaws[spec.id]]
    sound = [spec for spec in specs if not flaws[spec.id]]
    return sound, broken


def _flaw(spec: Spec, specs: list[Spec], known: set[str]) -> str:
    """What is wrong with the other checks that it names, or ""."""
    for word in (*spec.needs, *spec.reads, *spec.uses, *spec.when, *spec.unless):
        if word not in known:
            return f"it names {word}, which is no check{near_misses(word, known)}"
    by_id = {one.id: one for one in specs}
    needed, pending = set(), list(spec.needs)
    while pending:
        need = pending.pop()
        if need not in needed and need in by_id:
            needed.add(need)
            pending.extend(by_id[need].needs)
    return f"it needs itself, by way of {', '.join(spec.needs)}" if spec.id in needed else ""


def _load_plugin(source: Source, job: Job, request: Request) -> dict[str, Any]:
    """In a child."""
    try:
        module = registry.import_module(source)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_initialized():
            raise BrokenCheck("it initialises a process group on import: ask ctx.process_group() in measure()")
        check = registry.describe(source, module)
        registry.unknown_settings(check, request.settings)
        registry.unknown_codes(check, request.policy.codes)
        return {"spec": registry.spec_of(check, job).to_json()}
    except UsageError as error:
        return {"usage": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _broken(source: Source, why: str) -> Result:
    first, _, stack = why.partition("\n")
    slug = "timed_out" if first.startswith("did not end") else "crashed" if first.startswith("ended") else "raised"
    finding = {
        "severity": "error", "code": f"{source.id}.{slug}",
        "message": f"the plugin {source.target} cannot be loaded: {first}",
        "where": {"file": source.target}, "noticed_by": "", "evidence": {"stack": stack} if stack else {},
        "fix": f"Try it alone: python {source.target if source.kind == 'file' else f'-m {source.target}'}",
    }  # fmt: skip
    return Result(source.id, "A plugin.", findings=[finding])
