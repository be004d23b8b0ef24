"""A verdict in one line, for a scheduler to keep with a node."""

import re
from collections.abc import Mapping
from typing import Any

from preflight.core.finding import Reported
from preflight.results.report import Report

LONGEST = 128
"""Characters of a drain reason: what sinfo, tickets and dashboards show."""
OF_NODE = ("node", "rank", "local_rank", "uuid", "serial")
"""What the line leaves out, since the node's name is beside it; UUIDs and serial numbers are in the report."""


def line(report: Report, prefix: str) -> str:
    """ "preflight:gpu.nvlink.inactive gpu 3 link 7 (reset_gpu)"; if nothing failed, "ok" and the checks that ran."""
    if report.exit_code == 0:
        return " ".join(("ok", *(check.check for check in report.checks if check.status in ("pass", "warn"))))
    failed = [finding for finding in report.findings if finding.severity == "fail" and finding.counts]
    if not failed:
        return f"{prefix}strict"
    more = f" ({failed[0].action})" if failed[0].action else ""
    more += f" (+{len(failed) - 1})" if len(failed) > 1 else ""
    text = f"{prefix}{failed[0].code} {_place(failed[0].where) or _plain(failed[0])}"
    room = LONGEST - len(more)
    return (text if len(text) <= room else f"{text[: room - 3]}...") + more


def _place(where: Mapping[str, Any]) -> str:
    return _ascii(" ".join(f"{key} {value}" for key, value in where.items() if key not in OF_NODE))


def _plain(finding: Reported) -> str:
    return _ascii(finding.message)


def _ascii(text: str) -> str:
    """Replaces characters that a shell, a table or scontrol would interpret."""
    return re.sub(r"[^ -~]|[\"'`\\|$]", " ", text)
