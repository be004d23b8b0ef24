"""Turns the flaws of a checkpoint into findings. Pure."""

from collections.abc import Iterable

from preflight.checkpoint import codes
from preflight.checkpoint.contents import Flaw
from preflight.core import words
from preflight.core.finding import Reported
from preflight.core.rank_ranges import count

NAMED = 3
"""How many tensors a sentence names."""
LISTED = 1000
"""How many tensors a finding's evidence lists."""


def findings(flaws: Iterable[Flaw]) -> list[Reported]:
    """One finding per kind of flaw and file, the worst first."""
    groups: dict[tuple[str, str, bool], list[Flaw]] = {}
    for flaw in flaws:
        groups.setdefault((flaw.slug, flaw.file, bool(flaw.tensor)), []).append(flaw)
    found = [_finding(group) for group in groups.values()]
    return sorted(found, key=lambda finding: ("fail", "error", "warn").index(finding.severity))


def _finding(group: list[Flaw]) -> Reported:
    first = group[0]
    code = codes.by_slug()[first.slug]
    names = list(dict.fromkeys(flaw.tensor for flaw in group if flaw.tensor))
    where = {"file": first.file} if first.file else {}
    if len(names) == 1:
        where["parameter"] = names[0]
    return Reported(
        severity=codes.SEVERITIES.get(code, "fail"),
        code=f"{codes.FAMILY}.{first.slug}",
        message=_message(group, names),
        where=where,
        evidence={"tensors": names[:LISTED]} if names else {},
        fix=code.fix,
        action=code.action,
    )


def _message(group: list[Flaw], names: list[str]) -> str:
    texts = list(dict.fromkeys(flaw.text for flaw in group))
    if not names:
        subject = f"{group[0].file}: " * bool(group[0].file)
        return f"{subject}{words.clauses(texts, NAMED)}"
    if len(names) == 1:
        return f"{names[0]}: {words.clauses(texts, NAMED)}"
    if len(texts) == 1:
        return f"{count(len(names), 'tensor')}: each {texts[0]}: {words.some(names, NAMED)}"
    told = "; ".join(f"{flaw.tensor}: {flaw.text}" for flaw in group[:NAMED])
    rest = len(group) - NAMED
    return f"{count(len(names), 'tensor')}: {told}" + (f"; and {rest:,} more" if rest > 0 else "")
