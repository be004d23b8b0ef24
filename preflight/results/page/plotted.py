"""A plot of a report as a figure: its drawing, and the table behind it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from preflight.results.page import charts, frame, heat, strips, wiring

DRAW = {"chart": charts.draw, "strips": strips.draw, "wiring": wiring.draw}
TABLES = {"chart": charts.table, "strips": strips.table, "wiring": wiring.table, "heatmap": heat.table}


def figures(
    plots_of: Iterable[tuple[str, Sequence[Mapping[str, Any]]]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All plots of these checks: (for the template, for the script). Leaves out kinds of a newer preflight.
    `plots_of`: (check, its plots)."""
    shown: list[dict[str, Any]] = []
    data: list[dict[str, Any]] = []
    for check, plots in plots_of:
        for plot in plots:
            image = _image(plot, len(data))
            if image is None:
                continue
            heads, rows = (plot["heads"], plot["rows"]) if plot["kind"] == "table" else TABLES[plot["kind"]](plot)
            shown.append(
                {"check": check, "kind": plot["kind"], "title": plot["title"], "note": _note(plot),
                 "image": image, "table": table(heads, rows, plot["title"]), "number": len(data)}
            )  # fmt: skip
            data.append(_for_the_script(plot))
    return shown, data


def _note(plot: Mapping[str, Any]) -> str:
    if "of" in plot:
        return f"Of {plot['of']:,}, only outliers are kept by name; the others are counted."
    return str(plot.get("note", ""))


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], name: str) -> Markup:
    """A sortable table; empty if it has no rows."""
    return frame.render("table.html", heads=heads, rows=rows, name=name) if rows else Markup("")


def _image(plot: Mapping[str, Any], number: int) -> Markup | None:
    if plot["kind"] == "heatmap":
        return heat.draw(plot, number)
    if plot["kind"] == "table":
        return Markup("")
    return DRAW[plot["kind"]](plot) if plot["kind"] in DRAW else None


def _for_the_script(plot: Mapping[str, Any]) -> dict[str, object]:
    """The data of a canvas, or the values of each subject, in which the script looks up a node."""
    if plot["kind"] == "heatmap":
        return {name: plot[name] for name in ("rows", "columns", "cells", "unit", "usual", "limit")}
    if plot["kind"] == "strips":
        return {"subjects": plot["subjects"], "values": [strip["values"] for strip in plot["strips"]]}
    return {}
