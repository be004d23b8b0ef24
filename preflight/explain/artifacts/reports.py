"""Our own reports, of `preflight run`, `rendezvous` and `explain`, beside a job's logs or alone."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from preflight.core import rank_ranges, words
from preflight.core.finding import Reported
from preflight.explain.candidates import Candidate, from_artifact
from preflight.failure_book.book import Cause
from preflight.results import report_files

WEIGHTS = {"fail": 80, "error": 60, "warn": 30}
"""By severity: a failure names a cause, and what could not be measured says where to look."""
SURENESS = {"high": 80, "medium": 60, "low": 40, "none": 20}
"""By confidence, of earlier findings of `preflight explain`."""
SECOND = 10
"""Of further causes that a finding may mean: they count only if a log names one of them."""
FAMILY = "explain."
UNREADABLE = "explain.unreadable"


def find_candidates(path: str, causes: Mapping[str, Cause]) -> list[Candidate]:
    """The cause of each finding; a code without a cause stays as it is. Waived findings and informational ones do not
    count. Raises UsageError for a file that is not a report of preflight."""
    loaded, file = report_files.load(path)
    return [candidate for finding in loaded.findings for candidate in _from_finding(finding, file, causes)]


def _from_finding(finding: Reported, file: str, causes: Mapping[str, Cause]) -> Iterator[Candidate]:
    severity, code, message = finding.severity, finding.code, finding.message
    if severity not in WEIGHTS or not finding.counts or code == UNREADABLE:
        return
    ours = code.startswith(FAMILY)
    sure = SURENESS.get(str(finding.evidence.get("confidence")), SURENESS["low"]) if ours else 100
    weight = min(sure, WEIGHTS[severity])
    listed = [code.removeprefix(FAMILY)] if ours else slugs(code, severity, causes)
    text = message if ours else f"preflight's check found: {_subjects(finding)}{message}"
    for place, slug in enumerate([slug for slug in listed if slug in causes] or [""]):
        noticed = () if place else rank_ranges.from_text(finding.noticed_by)
        candidate = from_artifact(
            slug, text, _where(finding.where), noticed, file, SECOND if place else weight,
            quote=f"{code}: {message}", fix=finding.fix, code=code,
        )  # fmt: skip
        yield replace(candidate, action=finding.action)


def slugs(code: str, severity: str, causes: Mapping[str, Cause]) -> list[str]:
    """Causes with this code in `seen_by`, the likeliest first. A slower path does not explain a failure."""
    exact = [slug for slug, cause in causes.items() if code in cause.seen_by]
    family = f"{code.rpartition('.')[0]}.*"
    listed = [*exact, *(slug for slug, cause in causes.items() if family in cause.seen_by and slug not in exact)]
    return [slug for slug in listed if severity == "warn" or causes[slug].severity != "warn"]


def _subjects(finding: Reported) -> str:
    """Ranks or nodes of equal findings that are reported as one."""
    if finding.ranks:
        return f"{rank_ranges.ranks(rank_ranges.from_text(finding.ranks))}: "
    return f"{words.some(finding.nodes, 3)}: " if finding.nodes else ""


def _where(culprit: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in culprit.items() if isinstance(value, int | str)}
