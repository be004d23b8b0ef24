"""Our own reports, of `preflight run`, `rendezvous` and `explain`, beside a job's logs or alone."""

from collections.abc import Iterator, Mapping
from typing import Any

from preflight import ranges, report
from preflight.explain.hint import Hint
from preflight.explain.signatures import Cause
from preflight.policy import counts
from preflight.registry import UsageError

WEIGHTS = {"fail": 80, "error": 60, "warn": 30}
"""By severity: what a check has seen names a cause, what it could not measure says where to look."""
SURENESS = {"high": 80, "medium": 60, "low": 40}
"""Of what `preflight explain` has told before."""
SECOND = 10
"""Of further causes that a finding may mean: they count only where a log speaks of one."""
FAMILY = "explain."
UNREADABLE = "explain.unreadable"


def hints(path: str, causes: Mapping[str, Cause]) -> list[Hint]:
    """What each finding says of a cause; a code that no cause is seen by stays as it is. What was waived, or is only
    for information, does not count. Raises UsageError for a file that is no report of ours."""
    try:
        loaded, file = report.load(path)
        return [hint for finding in report.findings(loaded) for hint in _of(finding, file, causes)]
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        text = f"{path}: is no well-formed report of preflight ({type(error).__name__}: {str(error)[:80]})"
        raise UsageError(text) from None


def _of(finding: Mapping[str, Any], file: str, causes: Mapping[str, Cause]) -> Iterator[Hint]:
    severity, code, message = (_text(finding[name]) for name in ("severity", "code", "message"))
    if severity not in WEIGHTS or not counts(finding) or code == UNREADABLE:
        return
    ours = code.startswith(FAMILY)
    sure = SURENESS.get(str(_mapping(finding["evidence"]).get("confidence")), SURENESS["low"]) if ours else 100
    weight = min(sure, WEIGHTS[severity])
    slugs = [code.removeprefix(FAMILY)] if ours else _slugs(code, severity, causes)
    said = message if ours else f"preflight's check said: {_whose(finding)}{message}"
    for place, slug in enumerate([slug for slug in slugs if slug in causes] or [""]):
        noticed = () if place else ranges.from_text(_text(finding["noticed_by"]))
        yield Hint(
            slug, said, _where(finding["where"]), noticed, file, SECOND if place else weight,
            quote=f"{code}: {message}", fix=_text(finding["fix"]), code=code,
        )  # fmt: skip


def _slugs(code: str, severity: str, causes: Mapping[str, Cause]) -> list[str]:
    """The causes that are seen by this code, the likeliest first. What only runs slower is none of a failure's."""
    exact = [slug for slug, cause in causes.items() if code in cause.seen_by]
    family = f"{code.rpartition('.')[0]}.*"
    found = [*exact, *(slug for slug, cause in causes.items() if family in cause.seen_by and slug not in exact)]
    return [slug for slug in found if severity == "warn" or causes[slug].severity != "warn"]


def _whose(finding: Mapping[str, Any]) -> str:
    """Of equal findings of many ranks or nodes, which are written as one."""
    if listed := _text(finding.get("ranks", "")):
        return f"{ranges.ranks(ranges.from_text(listed))}: "
    nodes = finding.get("nodes", [])
    return f"{', '.join(map(str, nodes[:3]))}{' and others' if len(nodes) > 3 else ''}: " if nodes else ""


def _where(value: Any) -> dict[str, Any]:
    return {key: one for key, one in _mapping(value).items() if isinstance(one, int | str)}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text was expected")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("a mapping was expected")
    return value
