"""The page of a report."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from preflight.core import rank_ranges
from preflight.results import console
from preflight.results.page import findings, frame, plotted, statuses, timeline, waits
from preflight.results.page.statuses import LETTERS, MOST_ROWS, Places, StatusTable
from preflight.results.report import CheckEntry, Report

TITLES = {
    "comm": "Speed between ranks", "net": "Network", "gpu": "GPUs", "train": "Training", "data": "Data",
    "node": "Nodes", "env": "Environment",
}  # fmt: skip
"""Titles of the sections with plots, in this order; those of plugins come last."""
KINDS = ("heatmap", "chart", "wiring", "strips", "table")
"""The order within a section: small ones come next to each other."""
STACKS, STACK = 40, 5000
"""The most outcomes with a stack or a log in the appendix, and characters of each."""
SMALL = 64
"""Up to this many nodes the table needs no canvas beside it."""


def html(report: Report) -> str:
    """report.html: one file that needs no network, see docs/report.md."""
    found = sorted(console.merged(report), key=console.order)
    places, names = Places(report.job), [check.check for check in report.checks]
    table, explained = statuses.build(report), report.explained
    sections, data = _sections(report.checks)
    groups = findings.groups(found, places, names, from_logs=explained is not None)
    body = frame.render(
        "report.html", report=report, verdict=findings.verdict(report, found), about=console.about(report),
        skipped=findings.skipped(report), groups=groups, found=len(found), table=table, kinds=table.kinds[:MOST_ROWS],
        more_kinds=table.kinds[MOST_ROWS:], letters=LETTERS, canvas=places.count > SMALL, nodes=places.count,
        sections=sections, spans=_spans(report), appendix=_appendix(report),
        waits=None if explained is None else waits.draw(explained, found),
    )  # fmt: skip
    return frame.document(f"preflight: {report.verdict}", body, _data(report, table, data))


def _data(report: Report, table: StatusTable, plots: list[dict[str, object]]) -> dict[str, object]:
    return {
        "nodes": [node.node for node in report.job.nodes], "checks": table.checks,
        "letters": table.letters(), "plots": plots,
    }  # fmt: skip


def _sections(checks: Sequence[CheckEntry]) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    shown, data = plotted.figures((check.check, check.plots) for check in checks)
    family = {figure["check"]: figure["check"].partition(".")[0] for figure in shown}
    order = [*TITLES, *dict.fromkeys(name for name in family.values() if name not in TITLES)]
    sections = []
    for name in (own for own in order if own in family.values()):
        figures = sorted((figure for figure in shown if family[figure["check"]] == name), key=_kind)
        sections.append({"id": name, "title": TITLES.get(name, name), "figures": figures})
    return sections, data


def _kind(figure: Mapping[str, Any]) -> int:
    return KINDS.index(figure["kind"])


def _spans(report: Report) -> dict[str, object] | None:
    """The timeline; None for a command that measures nothing."""
    if not any(check.seconds.rank is not None for check in report.checks):
        return None
    heads, rows = timeline.table(report.checks)
    image = timeline.draw(report.checks, report.seconds)
    return {"image": image, "table": plotted.table(heads, rows, "timeline")}


def _appendix(report: Report) -> dict[str, object]:
    rows = [
        [check.status, check.check, f"{check.seconds.max:.1f}",
         console.plain(check.skipped or check.summary or check.title)]
        for check in report.checks
    ]  # fmt: skip
    unread = [(file.file, file.why) for file in report.explained.unread] if report.explained else []
    return {
        "checks": plotted.table(["status", "check", "seconds", ""], rows, "checks"),
        "pictures": "\n".join(console.pictures(report, page=True)), "outcomes": [*_outcomes(report.checks)][:STACKS],
        "options": sorted(report.options.items()), "command": " ".join(report.command), "unread": unread[:100],
        "overview": "\n".join(report.checkpoint.overview if report.checkpoint else ()),
    }  # fmt: skip


def _outcomes(checks: Sequence[CheckEntry]) -> Iterator[dict[str, str]]:
    """The outcomes of ranks that neither measured nor were skipped."""
    for check in checks:
        for entry in check.outcomes:
            outcome = entry.outcome
            if not outcome.sound:
                text = "\n".join(filter(None, (outcome.reason, outcome.doing, outcome.stack, outcome.log_tail)))
                ranks = rank_ranges.ranks(rank_ranges.from_text(entry.ranks))
                head = f"{check.check}, {entry.node or 'no node'}, {ranks}: {outcome.kind}"
                yield {"head": head, "text": console.plain(text[-STACK:])}
