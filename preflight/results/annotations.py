"""Findings as annotations of GitHub Actions: beside a step, and at the file and line where there is one.

The form is that of GitHub's workflow commands: `::error file=...,line=...,title=...::message`.
"""

from collections.abc import Iterator

from preflight.results import console
from preflight.results.report import Report

SWITCH = "GITHUB_ACTIONS"
"""Is "true" in a step of GitHub Actions."""
MOST = 10
"""GitHub shows so many of a kind for each step."""
KINDS = {"fail": "error", "error": "error", "warn": "warning"}


def lines(report: Report) -> Iterator[str]:
    """Worst first; without what counts for nothing."""
    counted = [found for found in console.merged(report) if found.counts and found.severity in KINDS]
    for found in sorted(counted, key=console.order)[:MOST]:
        where = {name: str(found.where[name]) for name in ("file", "line") if name in found.where}
        properties = {**where, "title": found.code}
        listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
        who = console.culprit(found)
        text = ": ".join(filter(None, (who, found.message)))
        yield f"::{KINDS[found.severity]} {listed}::{_data(f'{text}. {found.fix}')}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
