"""A row per speed, as a share of before: how far it moved, how far it may move, and how much it varies anyway."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from preflight.core.words import some
from preflight.results.page import marks
from preflight.results.page.marks import Scale, figure, tag, text

DRAWN = 40
"""The lowest ones that are drawn; the table has all."""
WIDTH, LEFT, RIGHT, TOP, ROW = 900, 250, 60, 24, 22
LEAST, MOST = 0.1, 10.0
"""Shares beyond these are drawn at the edge, with their number beside the mark."""
TICKS = (0.1, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0, 10.0)
Speed = Mapping[str, Any]


def draw(speeds: Sequence[Speed]) -> Markup:
    """`speeds`: those of a difference, the lowest share first."""
    shown = speeds[:DRAWN]
    low, high = min(0.7, *(_at(its["ratio"]) for its in shown)), max(1.4, *(_at(its["ratio"]) for its in shown))
    x = Scale(low / 1.1, high * 1.1, LEFT, WIDTH - RIGHT, log=True)
    height = TOP + ROW * len(shown) + 8
    content = [*_axis(x, height)]
    for number, its in enumerate(shown):
        content += _row(its, x, TOP + number * ROW + ROW / 2)
    worse = sum(its["verdict"] == "worse" for its in speeds)
    title = f"{len(speeds)} speeds as shares of before; {worse} fell further than they may"
    left = f" Only the {DRAWN} lowest of {len(speeds):,} are drawn." if len(speeds) > DRAWN else ""
    told = f"The mark is the share of before (1: as fast), ! and a diamond where it fell too far. The bar is the noise \
between ranks, the short line the least that is expected.{left}"
    return tag("p", told, class_="small") + marks.scrolled(title, WIDTH, height, content)


def _at(ratio: float) -> float:
    return min(MOST, max(LEAST, ratio))


def _axis(x: Scale, height: int) -> Iterator[Markup]:
    for value in TICKS:
        if x.least <= value <= x.most:
            yield tag("line", x1=x(value), x2=x(value), y1=18, y2=height, class_="axis" if value == 1 else "grid")
            yield text(x(value), 14, f"{value:g}", "middle")


def _row(its: Speed, x: Scale, y: float) -> Iterator[Markup]:
    name, ratio = f"{its['check']} {its['name']}", its["ratio"]
    worse = its["verdict"] == "worse"
    yield text(LEFT - 8, y + 4, name if len(name) < 46 else f"{name[:45]}…", "end")
    first, last = (max(x.start, min(x.end, x(_at(1 + sign * its["noise"])))) for sign in (-1, 1))
    yield tag("rect", x=first, y=y - 3, width=max(1.0, last - first), height=6, class_="band c0")
    if its["least"] >= x.least:
        yield tag("line", x1=x(its["least"]), x2=x(its["least"]), y1=y - 7, y2=y + 7, class_="axis")
    title = f"{name}: {figure(its['old'])} to {figure(its['new'])} {its['unit']}, {ratio:.0%} of before"
    mark = marks.point(x(_at(ratio)), y, 3 if worse else 0, title, 4)
    yield tag("g", mark, class_="fell") if worse else mark
    label = f"{'! ' if worse else ''}{ratio:.2g}"
    yield text(x(_at(ratio)) + 9, y + 4, label, class_="odd-name" if worse else None)


def table(speeds: Sequence[Speed]) -> tuple[list[str], list[list[str]]]:
    rows = [
        [its["verdict"], its["check"], its["name"], f"{its['old']:.4g}", f"{its['new']:.4g}", its["unit"],
         f"{its['ratio']:.3f}", f"{its['least']:.2f}", f"{its['noise']:.1%}",
         some([unit["node"] if unit["node"] == unit["unit"] else f"{unit['node']} {unit['unit']}"
               for unit in its["slow"]])]
        for its in speeds
    ]  # fmt: skip
    return ["", "check", "speed", "before", "now", "unit", "share", "expected", "noise", "slow on"], rows
