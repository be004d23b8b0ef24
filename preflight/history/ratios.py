"""A row per speed, as a share of before: how far it moved, how far it may move, and how much it varies anyway."""

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from preflight.core.words import some
from preflight.history.difference import SpeedChange
from preflight.results.page import marks
from preflight.results.page.marks import Scale, figure, tag, text

DRAWN = 40
"""The lowest ones that are drawn; the table has all."""
WIDTH, LEFT, RIGHT, TOP, ROW = 900, 250, 60, 24, 22
LEAST, MOST = 0.1, 10.0
"""Shares beyond these are drawn at the edge, with their number beside the mark."""
TICKS = (0.1, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0, 10.0)


def draw(speeds: Sequence[SpeedChange]) -> Markup:
    """`speeds`: those of a difference, the lowest share first."""
    shown = speeds[:DRAWN]
    low, high = min(0.7, *(_at(speed.ratio) for speed in shown)), max(1.4, *(_at(speed.ratio) for speed in shown))
    x = Scale(low / 1.1, high * 1.1, LEFT, WIDTH - RIGHT, log=True)
    height = TOP + ROW * len(shown) + 8
    content = [*_axis(x, height)]
    for number, speed in enumerate(shown):
        content += _row(speed, x, TOP + number * ROW + ROW / 2)
    worse = sum(speed.verdict == "worse" for speed in speeds)
    title = f"{len(speeds)} speeds as shares of before; {worse} fell further than they may"
    left = f" Only the {DRAWN} lowest of {len(speeds):,} are drawn." if len(speeds) > DRAWN else ""
    note = f"The mark is the share of before (1: as fast), ! and a diamond where it fell too far. The bar is the noise \
between ranks, the short line the least that is expected.{left}"
    return tag("p", note, class_="small") + marks.scrolled(title, WIDTH, height, content)


def _at(ratio: float) -> float:
    return min(MOST, max(LEAST, ratio))


def _axis(x: Scale, height: int) -> Iterator[Markup]:
    for value in TICKS:
        if x.least <= value <= x.most:
            yield tag("line", x1=x(value), x2=x(value), y1=18, y2=height, class_="axis" if value == 1 else "grid")
            yield text(x(value), 14, f"{value:g}", "middle")


def _row(speed: SpeedChange, x: Scale, y: float) -> Iterator[Markup]:
    name, ratio = f"{speed.check} {speed.name}", speed.ratio
    worse = speed.verdict == "worse"
    yield text(LEFT - 8, y + 4, name if len(name) < 46 else f"{name[:45]}…", "end")
    first, last = (max(x.start, min(x.end, x(_at(1 + sign * speed.noise)))) for sign in (-1, 1))
    yield tag("rect", x=first, y=y - 3, width=max(1.0, last - first), height=6, class_="band c0")
    if speed.least >= x.least:
        yield tag("line", x1=x(speed.least), x2=x(speed.least), y1=y - 7, y2=y + 7, class_="axis")
    title = f"{name}: {figure(speed.old)} to {figure(speed.new)} {speed.unit}, {ratio:.0%} of before"
    mark = marks.point(x(_at(ratio)), y, 3 if worse else 0, title, 4)
    yield tag("g", mark, class_="fell") if worse else mark
    label = f"{'! ' if worse else ''}{ratio:.2g}"
    yield text(x(_at(ratio)) + 9, y + 4, label, class_="odd-name" if worse else None)


def table(speeds: Sequence[SpeedChange]) -> tuple[list[str], list[list[str]]]:
    rows = [
        [speed.verdict, speed.check, speed.name, f"{speed.old:.4g}", f"{speed.new:.4g}", speed.unit,
         f"{speed.ratio:.3f}", f"{speed.least:.2f}", f"{speed.noise:.1%}",
         some([unit.label for unit in speed.slow])]
        for speed in speeds
    ]  # fmt: skip
    return ["", "check", "speed", "before", "now", "unit", "share", "expected", "noise", "slow on"], rows
