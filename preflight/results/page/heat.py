"""Pairs of nodes, or nodes by rails: each as a share of the usual value; slow ones are outlined."""

from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from preflight.core import rank_ranges
from preflight.results.page import marks
from preflight.results.page.marks import figure, tag, text

DRAWN = 400
"""The most cells drawn as SVG; larger ones use a canvas, which the script fills."""
CELL, LABEL = 26, 130
LEVELS = 5
"""Steps of the scale, the same on every page: up to 20, 40, 60, 80 % of the usual value, and above."""
NAMED = 20


def draw(plot: Mapping[str, Any], number: int) -> Markup:
    """`number`: the plot's number, by which the script finds its data."""
    small = len(plot["rows"]) * len(plot["columns"]) <= DRAWN and plot["binned"] == 1
    image = _image(plot) if small else _canvas(plot, number)
    joined = ""
    if plot["binned"] > 1:
        joined = f"Each row and column merges {plot['binned']} neighbors and shows the slowest of their values. "
    return tag("p", joined + sentence(plot)) + image + _scale(plot)


def sentence(plot: Mapping[str, Any]) -> str:
    """What the reader should see in it."""
    usual = f"usual: {figure(plot['usual'])} {plot['unit']}"
    if not plot["slow"]:
        return f"None is slow; {usual}."
    first = "; ".join(f"{row} to {column} {figure(value)}" for row, column, value in plot["slow"][:3])
    count = rank_ranges.count(plot["slow_cells"], "cell")
    return f"{count} below {figure(plot['limit'])} {plot['unit']} ({usual}): {first}{'…' * (plot['slow_cells'] > 3)}"


def level(value: float, usual: float) -> int:
    """The step of the scale, 0 to LEVELS - 1."""
    return min(LEVELS - 1, int(LEVELS * value / usual)) if usual > 0 else LEVELS - 1


def cells(plot: Mapping[str, Any]) -> Iterator[tuple[int, int, float]]:
    flat = plot["cells"]
    return zip(flat[::3], flat[1::3], flat[2::3], strict=True)


def _image(plot: Mapping[str, Any]) -> Markup:
    content = []
    for number, name in enumerate(plot["columns"]):
        at = LABEL + number * CELL + CELL / 2 + 4
        content.append(tag("text", _cut(name), transform=f"translate({at:.0f} 84) rotate(-60)"))
    for number, name in enumerate(plot["rows"]):
        content.append(text(LABEL - 6, 90 + number * CELL + 17, _cut(name), "end"))
    for row, column, value in cells(plot):
        x, y = LABEL + column * CELL, 90 + row * CELL
        title = f"{plot['rows'][row]}, {plot['columns'][column]}: {figure(value)} {plot['unit']}"
        slow = value < plot["limit"]
        inside = tag("rect", tag("title", title), x=x + 1, y=y + 1, width=CELL - 2, height=CELL - 2,
                     class_=f"h{level(value, plot['usual'])}{' slow' if slow else ''}")  # fmt: skip
        content.append(inside + (text(x + CELL / 2, y + 18, "!", "middle", "cell") if slow else Markup("")))
    width, height = LABEL + len(plot["columns"]) * CELL + 60, 96 + len(plot["rows"]) * CELL
    return tag("div", marks.picture(f"{plot['title']}. {sentence(plot)}", width, height, content, wide=True),
               class_="scroll", tabindex=0)  # fmt: skip


def _cut(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:7]}…{name[-8:]}"


def _canvas(plot: Mapping[str, Any], number: int) -> Markup:
    label = f"{plot['title']}. {sentence(plot)} Arrow keys move; Enter filters by the row's node."
    canvas = tag("canvas", sentence(plot), class_="heat", data_plot=number, tabindex=0, role="img", aria_label=label)
    missing = tag("noscript", "This matrix is drawn by a script, which is off; the table below names the slow ones.")
    return missing + tag("div", canvas, class_="scroll") + tag("output", "", class_="read", aria_live="polite")


def _scale(plot: Mapping[str, Any]) -> Markup:
    entries = []
    for step in range(LEVELS):
        text_ = f"{step * 100 // LEVELS} to {(step + 1) * 100 // LEVELS} %" if step < LEVELS - 1 else "80 % and more"
        swatch = tag(
            "svg", tag("rect", width=14, height=14, class_=f"h{step}"), width=14, height=14, aria_hidden="true"
        )
        entries.append(tag("li", swatch + text_))
    slow = tag("rect", x=1, y=1, width=12, height=12, class_="h4 slow")
    entries.append(tag("li", tag("svg", slow, width=14, height=14, aria_hidden="true") + "outlined: slow"))
    return tag("ul", tag("li", f"of the usual {figure(plot['usual'])} {plot['unit']}:") + marks.joined(entries),
               class_="legend")  # fmt: skip


def table(plot: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The slow cells; if there are none, the slowest."""
    rows = plot["slow"] or sorted(
        ([plot["rows"][row], plot["columns"][column], value] for row, column, value in cells(plot)),
        key=lambda cell: cell[2],
    )
    shown = [[row, column, f"{figure(value)}{' !' if plot['slow'] else ''}"] for row, column, value in rows[:NAMED]]
    return ["row", "column", plot["unit"]], shown
