"""One line per quantity of all GPUs or ranks: where most are, and which are outliers."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from preflight.results.page import marks
from preflight.results.page.marks import Scale, figure, tag, text

WIDTH, HEIGHT, BASE = 680, 62, 44
LEFT, RIGHT = 20, 20
SINGLE = 64
"""Up to this many subjects have a mark each; more are shown as a histogram."""
BARS = 120
LABELLED, LISTED = 3, 50
"""How many outliers are named in the picture, and how many rows the table has."""

Strip = Mapping[str, Any]


def draw(plot: Mapping[str, Any]) -> Markup:
    parts = []
    for strip in plot["strips"]:
        known = [value for value in strip["values"] if value is not None]
        if known or "counts" in strip:
            count = plot.get("of", len(known))
            parts.append(_figure(plot, strip, known, count))
    return tag("div", marks.joined(parts), class_="strips")


def _figure(plot: Mapping[str, Any], strip: Strip, known: Sequence[float], count: int) -> Markup:
    ends = (strip["least"], strip["most"]) if "counts" in strip else (min(known), max(known))
    scale = Scale.over(ends, LEFT, WIDTH - RIGHT)
    content = [tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=BASE, y2=BASE, class_="axis")]
    content += _bars(strip, known, scale) if count > SINGLE else _marks(plot, strip, scale)
    content += [
        text(scale(value), BASE + 14, figure(value), anchor)
        for value, anchor in ((ends[0], "start"), (ends[1], "end"))
        if ends[0] != ends[1] or anchor == "start"
    ]
    content += _odd(plot, strip, scale)
    name = f"{strip['name']}, {strip['unit']}"
    middle = f", median {figure(statistics.median(known))}" if known and "counts" not in strip else ""
    sentence = f"{name}: {figure(ends[0])} to {figure(ends[1])}{middle}, {count:,} measured"
    image = marks.picture(f"{sentence}{_named(plot, strip)}", WIDTH, HEIGHT, content)
    silent = sum(value is None for value in strip["values"])
    caption = tag("span", sentence + (f", n/a on {silent:,}" if silent else ""))
    return tag(
        "div", caption + image, class_="strip", data_least=scale.least, data_most=scale.most, data_from=LEFT,
        data_to=WIDTH - RIGHT,
    )  # fmt: skip


def _marks(plot: Mapping[str, Any], strip: Strip, scale: Scale) -> Iterator[Markup]:
    """Marks, stacked where values coincide."""
    height: dict[int, int] = {}
    for place, value in enumerate(strip["values"]):
        if value is not None and place not in strip["odd"]:
            at = round(scale(value) / 8)
            height[at] = height.get(at, 0) + 1
            title = f"{_name(plot, place)}: {figure(value)}"
            yield marks.point(scale(value), BASE - 1 - min(4 * height[at], 26), 0, title)


def _bars(strip: Strip, known: Sequence[float], scale: Scale) -> Iterator[Markup]:
    """Bars as high as the square root of their count, so that a few are visible beside thousands."""
    counts = strip.get("counts")
    if counts is None:
        counts = [0] * BARS
        for value in known:
            counts[min(BARS - 1, int((value - scale.least) / (scale.most - scale.least) * BARS))] += 1
    wide = (scale.end - scale.start) / len(counts)
    most = math.sqrt(max(counts))
    heights = ((number, max(2.0, 30 * math.sqrt(count) / most)) for number, count in enumerate(counts) if count)
    bars = (
        f"M{scale.start + number * wide:.0f},{BASE}v-{high:.0f}h{wide - 0.6:.1f}v{high:.0f}" for number, high in heights
    )
    yield tag("path", d="".join(bars), class_="bar")


def _odd(plot: Mapping[str, Any], strip: Strip, scale: Scale) -> Iterator[Markup]:
    taken = -1e9
    for number, place in enumerate(sorted(strip["odd"], key=lambda place: strip["values"][place] or 0.0)):
        value = strip["values"][place]
        if value is None:
            continue
        name, at = _name(plot, place), scale(value)
        corners = ((at, BASE - 13), (at + 6, BASE - 6), (at, BASE + 1), (at - 6, BASE - 6))
        yield tag("polygon", tag("title", f"{name}: {figure(value)}"), class_="odd", points=marks.path(corners))
        wide = 7 * len(name)
        if number < LABELLED and at - taken > 10:
            left = at + 10 + wide < WIDTH
            yield text(at + (9 if left else -9), BASE - 16, name, "start" if left else "end", "odd-name")
            taken = at + wide


def _name(plot: Mapping[str, Any], place: int) -> str:
    return " ".join(plot["subjects"][place])


def _named(plot: Mapping[str, Any], strip: Strip) -> str:
    names = [_name(plot, place) for place in strip["odd"][:LABELLED]]
    return f"; apart: {', '.join(names)}" if names else ""


def table(plot: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The outliers, then the others as far as there is room."""
    odd = dict.fromkeys(place for strip in plot["strips"] for place in strip["odd"])
    places = [*odd, *(place for place in range(len(plot["subjects"])) if place not in odd)][:LISTED]
    heads = ["node", "", *(f"{strip['name']}, {strip['unit']}" for strip in plot["strips"])]
    rows = [
        [*plot["subjects"][place], *(_cell(strip, place) for strip in plot["strips"])]
        for place in places
    ]  # fmt: skip
    return heads, rows


def _cell(strip: Strip, place: int) -> str:
    value = strip["values"][place]
    return "n/a" if value is None else f"{figure(value)}{' !' if place in strip['odd'] else ''}"
