"""`preflight describe`: what a check does, its settings and its findings, taken from its own code."""

import inspect
from collections.abc import Mapping

from preflight.check import After, Code
from preflight.core.finding import OWN_SLUGS, RUN, RUN_SLUGS
from preflight.errors import UsageError, near_misses
from preflight.planning import levels
from preflight.planning.registry import Check, how_to_set


def page(check: Check, what: str) -> str:
    """The page of a check, or of one of its codes. Raises UsageError for a code that it does not have."""
    if what == check.id:
        return _check_page(check)
    slug = what.rpartition(".")[2]
    if slug in check.codes:
        code = check.codes[slug]
        return "\n".join([what, *_code_lines(code, "  ")])
    if slug in OWN_SLUGS:
        return own_page(what)
    known = [f"{check.id}.{name}" for name in (*check.codes, *OWN_SLUGS)]
    raise UsageError(f"{what}: {check.id} has no such code{near_misses(what, known)}")


def own_page(what: str) -> str:
    """The page of one of the engine's codes; `what` may have a check's id before the code."""
    return f"{what}\n  {OWN_SLUGS[what.rpartition('.')[2]]} (the engine's code, under every check)"


def run_page() -> str:
    """The page of `preflight.run`, with all its codes."""
    lines = [RUN, "", "Problems of the run itself, not of a check: lost ranks, the store, interruptions.", ""]
    return "\n".join([*lines, *(f"  {RUN}.{slug}: {meaning}" for slug, meaning in RUN_SLUGS.items())])


def command_page(what: str, family: str, purpose: str, codes: Mapping[str, Code]) -> str:
    """The page of one of a command's codes, or of all (`family`, the prefix of their ids). Raises UsageError."""
    named = {f"{family}.{slug}": code for slug, code in codes.items()}
    if what not in (family, *named):
        raise UsageError(f"{what}: there is no such code{near_misses(what, named)}")
    lines = [family, "", purpose, ""] if what == family else []
    for name, code in named.items():
        if what in (name, family):
            lines += [name, *_code_lines(code, "  ")]
    return "\n".join(lines)


def _code_lines(code: Code, indent: str) -> list[str]:
    return [f"{indent}{text}" for text in (code.meaning, f"fix: {code.fix}", f"action: {code.action}")]


def _check_page(check: Check) -> str:
    lines = [check.id, "", inspect.cleandoc(check.module.__doc__ or check.title), "", cost(check), *check.old_names]
    if check.options:
        lines += ["", "options:"]
    for name, option in check.options.items():
        lines.append(f"  --set {check.id}.{name}=...   {option.help} (default: {default_text(option.default)})")
    if check.codes:
        lines += ["", "findings:"]
    for slug, code in check.codes.items():
        lines += [f"  {check.id}.{slug}", *_code_lines(code, "    ")]
    return "\n".join(lines)


WHO = {"node": "one rank per node", "rank": "every rank alone", "world": "all ranks together"}


def cost(check: Check) -> str:
    """Who measures, from which level on, and how long it takes."""
    plan, known = check.plan, levels.of(check)
    deadline = "depends on the job's size" if callable(plan.deadline_s) else f"{plan.deadline_s:g} s"
    text = f"level {known.level}, measured by {WHO[plan.scope]}, about {plan.estimate_s:g} s, deadline {deadline}"
    for word, kinds in (
        ("needs", After.NEEDS),
        ("reads", After.READS | After.USES),
        ("after a finding of", After.WHEN_BAD),
        ("not after a fail of", After.UNLESS_FAILED),
    ):
        ids = plan.ids(kinds)
        text += f", {word} {', '.join(ids)}" if ids else ""
    text += "".join(f", from {level} on with {how}" for how, level in known.sooner)
    given = [how_to_set(f"{check.id}.{name}") for name in known.given]
    return f"{text}, only with {' and '.join(given)}" if given else text


def default_text(value: object) -> str:
    return "none" if value in (None, "", ()) else str(value)
