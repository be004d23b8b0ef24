"""The texts of the page: the verdict in a sentence, findings with their fixes, what was skipped."""

import json
from collections import Counter
from collections.abc import Sequence

from preflight.core import node_names, rank_ranges
from preflight.core.finding import Reported
from preflight.results import console
from preflight.results.page.statuses import LETTERS, Places
from preflight.results.report import Report
from preflight.results.report_nodes import bad_nodes

WHOLE, LINES = 3, 100
"""How many findings of one code are shown in full, and how many more with one line each."""
KINDS = {"fail": "failure", "warn": "warning"}
EVIDENCE = 6000
"""Characters."""


def verdict(report: Report, found: Sequence[Reported]) -> dict[str, object]:
    """`found`: worst first."""
    counting = [finding for finding in found if finding.counts and finding.severity != "info"]
    first = counting[0] if counting else None
    rest = Counter(finding.severity for finding in counting[1:])
    more = [rank_ranges.count(count, f"more {KINDS.get(kind, kind)}") for kind, count in rest.items()]
    names = bad_nodes(report)
    return {
        "word": report.verdict, "letter": LETTERS[report.verdict], "meaning": _sentence(console.meaning(report)),
        "culprit": console.plain(console.culprit(first)) if first else "",
        "message": console.plain(first.message) if first else "",
        "fix": console.plain(first.fix) if first else "", "action": first.action if first else "",
        "more": " and ".join(more), "bad": names, "folded": node_names.folded(names), "exit_code": report.exit_code,
        "bad_json": json.dumps(names),
    }  # fmt: skip


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def skipped(report: Report) -> list[tuple[str, str]]:
    """(checks, why), for each reason."""
    reasons: dict[str, list[str]] = {}
    for check in report.checks:
        if check.skipped is not None:
            reasons.setdefault(check.skipped, []).append(check.check)
    return [(", ".join(ids), console.plain(why)) for why, ids in reasons.items()]


def groups(
    found: Sequence[Reported], places: Places, checks: Sequence[str], *, from_logs: bool
) -> list[dict[str, object]]:
    """Findings grouped by severity, code and waiver, in the order of each group's first. `from_logs`: their evidence is
    lines of a job's log."""
    kinds: dict[tuple[object, ...], list[Reported]] = {}
    for finding in found:
        kinds.setdefault((finding.severity, finding.code, finding.counts), []).append(finding)
    return [_group([_entry(each, places, checks, from_logs) for each in kind]) for kind in kinds.values()]


def _group(entries: list[dict[str, object]]) -> dict[str, object]:
    whole = len(entries) if len(entries) == WHOLE + 1 else WHOLE
    return {
        "code": entries[0]["code"], "whole": entries[:whole], "rest": entries[whole : whole + LINES],
        "count": len(entries) - whole, "left_out": max(0, len(entries) - whole - LINES),
    }  # fmt: skip


def _entry(finding: Reported, places: Places, checks: Sequence[str], from_logs: bool) -> dict[str, object]:
    severity = finding.severity if finding.counts else "waived"
    return {
        "severity": severity, "letter": LETTERS.get(severity, "i" if severity == "info" else "W"),
        "culprit": console.plain(console.culprit(finding)) or "no known culprit", "code": finding.code,
        "message": console.plain(finding.message), "fix": console.plain(finding.fix),
        "action": finding.action,
        "noticed_by": _noticed(finding), "waiver": console.plain(console.waiver(finding)),
        "evidence": "" if from_logs else _evidence(finding),
        "confidence": finding.evidence.get("confidence", "") if from_logs else "",
        "quotes": console.quotes(finding) if from_logs else [],
        "nodes": rank_ranges.to_text(places.named(finding)), "check": _check_of(finding.code, checks),
    }  # fmt: skip


def _noticed(finding: Reported) -> str:
    """ "rank 3, which is"."""
    noticed = rank_ranges.from_text(finding.noticed_by)
    return f"{rank_ranges.ranks(noticed)}, which {'is' if len(noticed) == 1 else 'are'}" if noticed else ""


def _check_of(code: str, checks: Sequence[str]) -> str:
    """The check of a code, which begins with the check's id; "" for codes of commands."""
    return next((check for check in checks if code.startswith(f"{check}.")), "")


def _evidence(finding: Reported) -> str:
    if not finding.evidence:
        return ""
    text = json.dumps(finding.evidence, indent=1, ensure_ascii=False)
    return console.plain(text if len(text) <= EVIDENCE else f"{text[:EVIDENCE]}\n… ({len(text):,} characters)")
