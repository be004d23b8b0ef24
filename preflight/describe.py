"""`preflight describe`: what a check does, its settings and its findings, out of its own code."""

import inspect

from preflight.registry import OWN_SLUGS, Check, UsageError, near_misses
from preflight.result import RUN
from preflight.run_findings import SLUGS


def page(check: Check, what: str) -> str:
    """The page of a check, or of one of its codes. Raises UsageError for a code that it does not have."""
    if what == check.id:
        return _check_page(check)
    slug = what.rpartition(".")[2]
    if slug in check.codes:
        code = check.codes[slug]
        return f"{what}\n  {code.meaning}\n  fix: {code.fix}"
    if slug in OWN_SLUGS:
        return f"{what}\n  {OWN_SLUGS[slug]} (the engine's code, under every check)"
    known = [f"{check.id}.{name}" for name in (*check.codes, *OWN_SLUGS)]
    raise UsageError(f"{what}: {check.id} has no such code{near_misses(what, known)}")


def run_page() -> str:
    """The codes of what is no check's."""
    lines = [RUN, "", "What is no check's: ranks that are lost, the store, interruptions.", ""]
    return "\n".join([*lines, *(f"  {RUN}.{slug}: {meaning}" for slug, meaning in SLUGS.items())])


def _check_page(check: Check) -> str:
    plan = check.plan
    deadline = "depends on the job" if callable(plan.deadline_s) else f"{plan.deadline_s:.0f} s"
    lines = [check.id, "", inspect.cleandoc(check.module.__doc__ or check.title), ""]
    lines.append(f"level {plan.level}, scope {plan.scope}, deadline {deadline}")
    if plan.needs:
        lines.append(f"needs {', '.join(plan.needs)}")
    if check.options:
        lines += ["", "options:"]
    for name, option in check.options.items():
        lines.append(f"  --set {check.id}.{name}=...   {option.help} (default: {option.default})")
    if check.codes:
        lines += ["", "findings:"]
    for slug, code in check.codes.items():
        lines += [f"  {check.id}.{slug}", f"    {code.meaning}", f"    fix: {code.fix}"]
    return "\n".join(lines)
