"""Pieces of SVG, escaped: shapes, scales and their ticks."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from preflight.core import words

SHAPES = ("circle", "square", "triangle", "diamond")
COLOURS = 6
"""Classes c0 to c5 of style.css; each also has its own shape and dash."""


def tag(name: str, content: object = "", /, **attributes: object) -> Markup:
    """<name attributes>content</name>. In an attribute's name, a trailing _ is dropped and an inner _ becomes -:
    class_, text_anchor. None is left out; numbers have one decimal, which is finer than a pixel."""
    written = Markup("").join(
        Markup(' {}="{}"').format(key.strip("_").replace("_", "-"), _number(value))
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, content)  # noqa: S704 -- our own word


def _number(value: object) -> object:
    return f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def picture(title: str, width: int, height: int, content: Iterable[Markup], *, wide: bool = False) -> Markup:
    """An image with a title for screen readers. `wide`: it scrolls in its frame instead of shrinking."""
    head = tag("title", title)
    return tag(
        "svg", head + joined(content), viewBox=f"0 0 {width} {height}", role="img", aria_label=title,
        class_="wide" if wide else "plot", width=width if wide else None, height=height if wide else None,
    )  # fmt: skip


def scrolled(title: str, width: int, height: int, content: Iterable[Markup]) -> Markup:
    """A wide picture in a frame that can be reached by keyboard."""
    return tag("div", picture(title, width, height, content, wide=True), class_="scroll", tabindex=0)


def text(x: float, y: float, content: object, anchor: str = "start", class_: str | None = None) -> Markup:
    return tag("text", content, x=x, y=y, text_anchor=anchor, class_=class_)


def point(x: float, y: float, number: int, title: str = "", size: float = 3.2) -> Markup:
    """A mark whose shape, like its color, shows the series."""
    shape, class_ = SHAPES[number % len(SHAPES)], f"mark c{number % COLOURS}"
    inside = tag("title", title) if title else Markup("")
    if shape == "circle":
        return tag("circle", inside, cx=x, cy=y, r=size, class_=class_)
    corners = {
        "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)), "triangle": ((0, -1.2), (1.2, 1), (-1.2, 1)),
        "diamond": ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    }[shape]  # fmt: skip
    return tag("polygon", inside, points=path((x + size * dx, y + size * dy) for dx, dy in corners), class_=class_)


def path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


@dataclass(frozen=True)
class Scale:
    """Maps a value to a coordinate on the page."""

    least: float
    most: float
    start: float
    end: float
    log: bool = False

    @staticmethod
    def over(values: Sequence[float], start: float, end: float, *, log: bool = False, zero: bool = False) -> "Scale":
        """A scale over all these values. A logarithmic scale cannot show 0: if there is one, the scale is linear."""
        if log and min(values, default=1.0) > 0:
            least, most = min(values), max(values)
            return (
                Scale(least / 1.15, most * 1.15, start, end, log=True) if least < most else _around(least, start, end)
            )
        least, most = min(values, default=0.0), max(values, default=1.0)
        least = min(least, 0.0) if zero else least
        return Scale(least, most, start, end) if least < most else _around(least, start, end)

    def __call__(self, value: float) -> float:
        low, high, at = (self.least, self.most, value)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, self.least))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """At most `most` round values."""
        return _log_ticks(self.least, self.most, most) if self.log else _round_ticks(self.least, self.most, most)

    def byte_ticks(self, most: int = 6) -> list[float]:
        """Powers of 2."""
        first, last = math.ceil(math.log2(max(self.least, 1))), math.floor(math.log2(max(self.most, 1)))
        step = max(1, math.ceil((last - first + 1) / most))
        return [float(2**power) for power in range(first, last + 1, step)]


def time_axis(scale: Scale, height: int, label: Callable[[float], str]) -> Iterator[Markup]:
    """Vertical lines with their times above them."""
    for value in scale.ticks(8):
        yield tag("line", x1=scale(value), x2=scale(value), y1=20, y2=height, class_="grid")
        yield text(scale(value), 14, label(value), "middle")


def _around(value: float, start: float, end: float) -> Scale:
    margin = abs(value) * 0.1 or 1.0
    return Scale(value - margin, value + margin, start, end)


def _round_ticks(least: float, most: float, count: int) -> list[float]:
    raw = (most - least) / count
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    first = math.ceil(least / step - 1e-9)
    return [number * step for number in range(first, math.floor(most / step + 1e-9) + 1)]


def _log_ticks(least: float, most: float, count: int) -> list[float]:
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    for factors in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        found = [value for value in found if least <= value <= most]
        if len(found) <= count:
            return found
    return found[:: math.ceil(len(found) / count)]


def figure(value: float, unit: str = "") -> str:
    """A number as people write it: 1,250 and 0.0034, and 64 KiB for bytes."""
    if unit == "bytes":
        return words.size(value)
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
