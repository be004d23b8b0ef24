"""Writes for the textfile collector of Prometheus' node exporter: one file, by rename, in its text format 0.0.4."""

import os
from collections.abc import Iterator, Mapping

from preflight.core.finding import Reported
from preflight.history import rows
from preflight.history.run_entry import RunEntry
from preflight.results import report_files
from preflight.results.report import Report
from preflight.results.report_nodes import blamed_nodes

NAME = "preflight.prom"
STATUSES = ("pass", "skip", "warn", "error", "fail")
"""By number: 0 to 4."""
MOST = 10_000
"""The most series of one name, so that a job of a thousand nodes does not fill the server; failed ones come first."""
HELP = {
    "preflight_check_status": "Status of a check on a node: 0 pass, 1 skip, 2 warn, 3 error, 4 fail.",
    "preflight_finding": "1 for each finding that counts.",
    "preflight_busbw_gbs": "Bus bandwidth of a collective, the median of the ranks, in GB/s (10^9 bytes).",
    "preflight_figure": "Other speeds, in the unit of the label; the median of the node's ranks, or of the job's.",
    "preflight_exit_code": "Exit code of the last run: 0 no failure, 1 a failure was found, 3 could not finish.",
    "preflight_run_timestamp_seconds": "Start time of the last run.",
    "preflight_run_duration_seconds": "Duration of the last run.",
}
Series = tuple[str, dict[str, str], float]


def write(folder: str, report: Report, entry: RunEntry) -> None:
    """Raises OSError. `entry`: the same run's entry in the history."""
    report_files.write(os.path.join(folder, NAME), text(report, entry))


def text(report: Report, entry: RunEntry) -> str:
    found: dict[str, list[str]] = {name: [] for name in HELP}
    for name, labels, value in _series(report, entry):
        found[name].append(line(name, labels, value))
    lines: list[str] = []
    for name, series in found.items():
        if series:
            lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} gauge", *series[:MOST]]
    return "".join(f"{line}\n" for line in lines)


def line(name: str, labels: Mapping[str, str], value: float) -> str:
    escaped = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{escaped}}} {value:.9g}" if labels else f"{name} {value:.9g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _series(report: Report, entry: RunEntry) -> Iterator[Series]:
    yield from sorted(_statuses(report), key=lambda series: -series[2])
    yield from _findings(report)
    yield from _figures(report, entry)
    yield "preflight_exit_code", {}, report.exit_code
    yield "preflight_run_timestamp_seconds", {}, rows.seconds(report.started)
    yield "preflight_run_duration_seconds", {}, report.seconds


def _statuses(report: Report) -> Iterator[Series]:
    """A finding that blames nodes counts for those; the others passed or were skipped."""
    for check in report.checks:
        named: dict[str, str] = {}
        everywhere = "pass" if check.skipped is None else "skip"
        for finding in check.findings:
            nodes = blamed_nodes(finding, report.job) - {""}
            if finding.counts and finding.severity in STATUSES:
                named |= {node: _worse(finding.severity, named.get(node, "pass")) for node in nodes}
                everywhere = everywhere if nodes else _worse(finding.severity, everywhere)
        for node in report.job.nodes:
            status = _worse(everywhere, named.get(node.node, "pass"))
            labels = {"check": check.check, "node": node.node}
            yield "preflight_check_status", labels, float(STATUSES.index(status))


def _worse(*statuses: str) -> str:
    return max(statuses, key=STATUSES.index)


def _findings(report: Report) -> list[Series]:
    """One series per set of labels."""
    found: dict[tuple[tuple[str, str], ...], None] = {}
    for check in report.checks:
        for finding in check.findings:
            for node in (
                sorted(blamed_nodes(finding, report.job) - {""}) or [""]
                if finding.counts and finding.severity in STATUSES
                else ()
            ):
                found[tuple(_labels(finding, node).items())] = None
    return [("preflight_finding", dict(labels), 1.0) for labels in found]


def _labels(finding: Reported, node: str) -> dict[str, str]:
    gpu = finding.where.get("uuid", finding.where.get("gpu", ""))
    return {"code": finding.code, "node": node, "gpu": str(gpu), "severity": finding.severity}


def _figures(report: Report, entry: RunEntry) -> Iterator[Series]:
    size = {"nranks": str(report.job.world_size), "n_nodes": str(len(report.job.nodes))}
    for figure in entry.figures:
        if "message_size" in figure.labels:
            collective = {"collective": figure.check.rpartition(".")[2]}
            yield "preflight_busbw_gbs", {**collective, **figure.labels, **size}, figure.value
            continue
        for place, value in (figure.units or {"": figure.value}).items():
            gpu = {"gpu": place} if place in entry.places else {}
            node = entry.places.get(place, place)
            yield (
                "preflight_figure",
                {"check": figure.check, "figure": figure.name, "unit": figure.measure, "node": node, **gpu},
                value,
            )
