"""Curves over one axis, with the band of all ranks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from preflight.results.page import marks
from preflight.results.page.marks import COLOURS, Scale, figure, tag, text

WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 12, 42
SHAPED = 24
"""A curve with at most this many points has a mark at each."""

Series = Mapping[str, Any]


def draw(plot: Mapping[str, Any]) -> Markup:
    series = merged(plot["series"])
    x_name, unit = plot["x"], "bytes" if plot["x"].endswith("bytes") else ""
    points = [point for curve in series for point in curve["points"]]
    x = Scale.over([point[0] for point in points], LEFT, WIDTH - RIGHT, log="x" in plot["log"])
    y = Scale.over(
        [value for point in points for value in point[1:]],
        HEIGHT - BOTTOM,
        TOP,
        log="y" in plot["log"],
        zero=plot.get("from_zero", True),
    )
    content = [*_axes(x, y, x_name.removesuffix(", bytes"), plot["y"], unit)]
    for number, curve in enumerate(series):
        content += _curve(number, curve, x, y, unit)
    content += _marks(plot.get("marks", ()), x, y)
    return marks.picture(_sentence(plot, series), WIDTH, HEIGHT, content) + legend(series)


def merged(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Merges curves with the same points into one and joins their names."""
    found: dict[str, dict[str, Any]] = {}
    for curve in series:
        if curve["points"]:
            same = found.setdefault(f"{curve['role']} {curve['points']}", {**curve, "names": []})
            same["names"].append(curve["name"])
    return [{**curve, "name": _joined(curve["names"])} for curve in found.values()]


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]}, {names[1]} and {len(names) - 2} more alike"


def _sentence(plot: Mapping[str, Any], series: Sequence[Series]) -> str:
    return f"{plot['title']}: {plot['y']} over {plot['x']}; {'; '.join(curve['name'] for curve in series)}"


def _axes(x: Scale, y: Scale, x_name: str, y_name: str, unit: str) -> Iterator[Markup]:
    for value in y.ticks():
        yield tag("line", x1=x.start, x2=x.end, y1=y(value), y2=y(value), class_="grid")
        yield text(LEFT - 6, y(value) + 4, figure(value), "end")
    for value in x.byte_ticks() if unit else x.ticks():
        yield tag("line", x1=x(value), x2=x(value), y1=y.start, y2=y.start + 4, class_="axis")
        yield text(x(value), y.start + 17, figure(value, unit), "middle")
    yield tag("line", x1=x.start, x2=x.end, y1=y.start, y2=y.start, class_="axis")
    yield text((x.start + x.end) / 2, HEIGHT - 6, x_name, "middle", "name")
    yield tag("text", y_name, transform=f"rotate(-90) translate({-(y.start + y.end) / 2:.0f} 12)",
              text_anchor="middle", class_="name")  # fmt: skip


def _curve(number: int, curve: Series, x: Scale, y: Scale, unit: str) -> Iterator[Markup]:
    points, is_measured = curve["points"], not curve["role"]
    colour = f"c{number % COLOURS}"
    if is_measured and len(points[0]) == 4:
        edge = [(x(p[0]), y(p[1])) for p in points] + [(x(p[0]), y(p[3])) for p in reversed(points)]
        yield tag("polygon", points=marks.path(edge), class_=f"band {colour}")
    middle = 2 if len(points[0]) == 4 else 1
    line = marks.path((x(p[0]), y(p[middle])) for p in points)
    role = curve["role"] or f"d{number % 4}"
    yield tag("polyline", points=line, class_=f"curve {colour} {role}")
    if is_measured and len(points) <= SHAPED:
        for p in points:
            spread = f" ({figure(p[1])} to {figure(p[3])})" if len(p) == 4 else ""
            title = f"{curve['name']}, {figure(p[0], unit)}: {figure(p[middle])}{spread}"
            yield marks.point(x(p[0]), y(p[middle]), number, title)


def _marks(marked: Sequence[Sequence[Any]], x: Scale, y: Scale) -> Iterator[Markup]:
    """Vertical lines with their names, on the side with room."""
    for number, (at, name) in enumerate(marked):
        place, left = x(at), x(at) > (x.start + x.end) / 2
        yield tag("line", x1=place, x2=place, y1=y.start, y2=y.end, class_="step")
        yield text(place + (-5 if left else 5), y.end + 10 + 14 * number, name, "end" if left else "start", "odd-name")


def legend(series: Sequence[Series]) -> Markup:
    return tag("ul", marks.joined(_entry(number, curve) for number, curve in enumerate(series)), class_="legend")


def _entry(number: int, curve: Series) -> Markup:
    role = curve["role"] or f"d{number % 4}"
    line = tag("line", x1=0, x2=26, y1=7, y2=7, class_=f"curve c{number % COLOURS} {role}")
    shape = Markup("") if curve["role"] else marks.point(13, 7, number)
    return tag("li", tag("svg", line + shape, width=26, height=14, aria_hidden="true") + curve["name"])


def table(plot: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of the table behind the chart."""
    unit = "bytes" if plot["x"].endswith("bytes") else ""
    rows = []
    for curve in merged(plot["series"]):
        for x, *values in curve["points"]:
            least, middle, most = map(figure, values) if len(values) == 3 else ("", figure(values[0]), "")
            rows.append([curve["name"], figure(x, unit), least, middle, most])
    return ["curve", plot["x"], "least", plot["y"], "most"], rows
