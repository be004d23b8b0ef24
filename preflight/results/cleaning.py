"""A report without secrets. Cleans free text only: a secret that equals the name of a field or a node must not break
the report. (The output of workers was cleaned when it came.)"""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from preflight.core.finding import Reported
from preflight.core.secrets import Scrubber
from preflight.planning.policy import Policy
from preflight.results.report import CheckEntry, Explained, Report, SavedCheckpoint, UnreadFile


def without_secrets(report: Report, scrub: Scrubber) -> Report:
    return replace(
        report,
        options=scrub.value(dict(report.options)),
        policy=Policy.from_json(scrub.value(report.policy.to_json())),
        command=scrub.value(report.command),
        explained=_explained(report.explained, scrub) if report.explained else None,
        checkpoint=SavedCheckpoint(**scrub.value(asdict(report.checkpoint))) if report.checkpoint else None,
        checks=[_check(check, scrub) for check in report.checks],
    )


def _check(check: CheckEntry, scrub: Scrubber) -> CheckEntry:
    return replace(
        check,
        summary=scrub.text(check.summary),
        skipped=check.skipped and scrub.text(check.skipped),
        picture=[scrub.text(line) for line in check.picture],
        plots=[_plot(plot, scrub) for plot in check.plots],
        findings=[_finding(finding, scrub) for finding in check.findings],
    )


def _plot(plot: Mapping[str, Any], scrub: Scrubber) -> Mapping[str, Any]:
    """Cleans tables only: they may hold the user's values; other plots hold numbers, and many of them."""
    return {**plot, "rows": scrub.value(plot["rows"])} if plot["kind"] == "table" else plot


def _finding(finding: Reported, scrub: Scrubber) -> Reported:
    where = {key: value if key == "node" else scrub.value(value) for key, value in finding.where.items()}
    message, fix = scrub.text(finding.message), scrub.text(finding.fix)
    return replace(finding, message=message, fix=fix, where=where, evidence=scrub.value(dict(finding.evidence)))


def _explained(explained: Explained, scrub: Scrubber) -> Explained:
    unread = [UnreadFile(**scrub.value(asdict(file))) for file in explained.unread]
    return replace(explained, unread=unread)


def without_surrogates(report: Report) -> Report:
    """Without lone surrogates, which names of files and others' JSON may hold, and strict readers refuse."""
    text = json.dumps(report.to_json(), ensure_ascii=False, allow_nan=False)
    return Report.from_json(json.loads(text.encode("utf-8", "replace")))
