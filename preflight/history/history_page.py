"""The page of `preflight history --html`: its answers as tables, and a small picture of each figure over time."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from preflight.core.plots import Chart, Series
from preflight.core.rank_ranges import count
from preflight.core.vote import grouped
from preflight.core.words import clauses, some
from preflight.history.questions import Answers, FigureSeries, FigureStep, KeptRun
from preflight.history.rows import DAY_S, time_text
from preflight.results import console
from preflight.results.page import frame, plotted
from preflight.results.page.marks import tag

Course = tuple[FigureSeries, Sequence[tuple[KeptRun, float]]]
"""What a figure is, and its values in the order of time."""
DRAWN, POINTS, MARKS = 80, 100, 4
"""The most figures, those with a step first; points of a curve: of more runs, neighbors are merged; and marked steps of
a figure."""
MOST = 200
"""The most rows of a table; the JSON has all."""
OWN = 3
"""How many nodes or GPUs with a step have their own curve beside the band of all."""


def html(found: Answers, courses: Sequence[Course], path: str) -> str:
    bad = [
        f"{count(len(listed), what)} {which}"
        for listed, what, which in ((found.failing, "node", "failed again and again"),
                                    (found.steps, "step", "for the worse"),
                                    (found.came_back, "finding", "came back after a repair"))
        if listed
    ]  # fmt: skip
    since = f", from {found.first} to {found.last}" if found.runs else ""
    body = frame.render(
        "runs.html", word="History", severity="warn" if bad else "pass",
        sentence=f"{', '.join(bad) or 'No node failed again and again, and no figure became worse'}.",
        lines=[console.plain(f"{path}: {count(found.runs, 'run')}{since}.")], sections=[*_sections(found, courses)],
    )  # fmt: skip
    return frame.document("preflight history", body, {"plots": []})


def _sections(found: Answers, courses: Sequence[Course]) -> Iterator[dict[str, object]]:
    failing = [[node.node, f"{node.score:.2f}", node.failed, node.runs, node.spells, some(node.codes)]
               for node in found.failing]  # fmt: skip
    yield _section("failing", "Nodes that fail again and again", "Of the last 30 days, by their score.",
                   ["node", "score", "failed", "runs", "occasions", "findings"], failing)  # fmt: skip
    steps = [_step(step) for step in found.steps]
    yield _section("steps", "Figures that became worse", "", ["check", "figure", "of", "since", "before", "after",
                   "unit", "change", "", "what changed then"], steps)  # fmt: skip
    heads = ["node or GPU", "node now", "finding", "runs", "first", "last"]
    for name, title, repairs in (("came_back", "Repaired, and came back", found.came_back),
                                 ("repaired", "Repaired", found.repaired)):  # fmt: skip
        rows = [[each.unit, each.node, each.code, each.found, each.first, each.last] for each in repairs]
        yield _section(name, title, "", heads, rows)
    if found.renamed:
        rows = [[host.node, host.earlier, host.until] for host in found.renamed]
        yield _section("renamed", "Renamed hosts", "By their machine ids: their history goes on.",
                       ["node", "earlier name", "until"], rows)  # fmt: skip
    yield _figures(found.steps, courses)


def _step(step: FigureStep) -> list[str]:
    changed = clauses(step.changed) or "nothing that is recorded"
    values = [f"{step.before:.4g}", f"{step.after:.4g}", step.series.measure, f"{step.ratio - 1:+.1%}"]
    of = [step.series.check, step.series.name, step.series.unit or step.series.kind, step.since]
    return [*of, *values, "over" if step.over else "", changed]


def _section(id_: str, title: str, note: str, heads: list[str], rows: list[list[Any]]) -> dict[str, object]:
    shown = [[console.plain(str(cell)) for cell in row] for row in rows[:MOST]]
    content = plotted.table(heads, shown, id_) or tag("p", "None.")
    content += tag("p", f"{len(rows) - MOST:,} more are in --json.") if len(rows) > MOST else Markup("")
    return {"id": id_, "title": title, "note": note, "content": content, "count": len(rows), "figures": []}


def _figures(steps: Sequence[FigureStep], courses: Sequence[Course]) -> dict[str, object]:
    """A picture of each figure: a curve for the job; for nodes or GPUs a band of all, and curves of some with steps."""
    last = max((points[-1][0].started for _, points in courses), default=0.0)
    groups = grouped(courses, lambda course: course[0].of)
    stepped = grouped(steps, lambda step: step.series.of)
    order = [*(of for of in groups if of in stepped), *(of for of in groups if of not in stepped)]
    charts = [(of[1], [_chart(of, groups[of], stepped.get(of, []), last).to_json()]) for of in order[:DRAWN]]
    note = "Those with a step for the worse first; the y axis does not start at 0. A band goes from least to most."
    note += f" {len(order) - DRAWN:,} more are not drawn." if len(order) > DRAWN else ""
    shown, _ = plotted.figures(charts)
    return {"id": "figures", "title": "Each figure over time", "note": note if shown else "", "count": len(order),
            "content": Markup("") if shown else tag("p", "No figure was kept."), "figures": shown}  # fmt: skip


def _chart(of: tuple[str, ...], courses: Sequence[Course], steps: Sequence[FigureStep], last: float) -> Chart:
    kind, _, name, measure = of
    odd = list(dict.fromkeys(step.series.unit for step in steps if step.series.unit))[:OWN]
    units = {series.unit: points for series, points in courses}
    every = [point for points in units.values() for point in points]
    label = "all runs" if "" in units else f"{len(units):,} nodes or GPUs"
    series = [Series(label, _binned(every, last)), *(Series(unit, _binned(units[unit], last)) for unit in odd)]
    began = {time_text(run.started): run.started for run, _ in every}
    marks = [
        (_days(began[step.since], last), f"{step.ratio - 1:+.1%} {step.since[:10]} {step.series.unit}".strip())
        for step in steps[:MARKS]
        if step.since in began
    ]
    title = f"{name}, {kind}" if kind else name
    return Chart(title, "days before the last run", measure, series, marks=marks, from_zero=False)


def _days(started: float, last: float) -> float:
    return (started - last) / DAY_S


def _binned(points: Sequence[tuple[KeptRun, float]], last: float) -> list[list[float]]:
    """(days, least, median, most) per run or merged neighbors; (days, value) if each run has one value."""
    runs = grouped(sorted(points, key=lambda point: point[0].started), lambda point: point[0])
    listed = [(run.started, [value for _, value in own]) for run, own in runs.items()]
    size = -(-len(listed) // POINTS)
    bins = [listed[at : at + size] for at in range(0, len(listed), size)] if size else []
    if size == 1 and all(len(values) == 1 for _, values in listed):
        return [[_days(started, last), values[0]] for started, values in listed]
    found = []
    for own in bins:
        values = [value for _, of_run in own for value in of_run]
        found.append([_days(own[-1][0], last), min(values), statistics.median(values), max(values)])
    return found
