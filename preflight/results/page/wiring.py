"""How one kind of node is wired: GPUs in a row, network cards below, and lines for what connects them."""

from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from preflight.core import node_names, rank_ranges
from preflight.results.page import marks
from preflight.results.page.marks import tag, text

BOX, HIGH, GAP = 92, 30, 16
LEFT = 16


def draw(plot: Mapping[str, Any]) -> Markup:
    places = _places(plot["devices"])
    gpus = [number for number, (name, _) in enumerate(plot["devices"]) if name.startswith("GPU")]
    bus = _all_alike(plot, gpus)
    arcs = [link for link in plot["links"] if link[0] in gpus and link[1] in gpus and not bus]
    top = 30 + (20 if bus else min(150, 20 + 16 * max((abs(b - a) for a, b, _ in arcs), default=0)))
    height = top + HIGH + (90 if len(gpus) < len(plot["devices"]) else 24)
    content = [*_boxes(plot, places, top), *_links(plot, places, gpus, top, bus)]
    width = int(max(x for x, _ in places.values()) + BOX + LEFT)
    count = rank_ranges.count(len(plot["nodes"]), "node")
    nodes = node_names.folded(plot["nodes"])
    shown = nodes if len(nodes) < 200 else f"{nodes[:200]}…"
    head = tag("p", f"{count} with this wiring: {shown}")
    return head + marks.scrolled(f"{plot['title']}: {count}", width, height, content)


def _places(devices: list[list[str]]) -> dict[int, tuple[int, int]]:
    """(x, row) by device: GPUs in row 0, everything else in row 1; each group is one column."""
    found: dict[int, tuple[int, int]] = {}
    x = LEFT
    for group in dict.fromkeys(sorted(group for _, group in devices)):
        rows = [[n for n, (name, own) in enumerate(devices) if own == group and name.startswith("GPU") == gpu]
                for gpu in (True, False)]  # fmt: skip
        for row, numbers in enumerate(rows):
            found |= {number: (x + place * (BOX + GAP), row) for place, number in enumerate(numbers)}
        x += max(map(len, rows)) * (BOX + GAP) + GAP
    return found


def _all_alike(plot: Mapping[str, Any], gpus: list[int]) -> str:
    """What connects every pair of GPUs if it is the same for all (one line then shows it better), else ""."""
    words = [word for a, b, word in plot["links"] if a in gpus and b in gpus]
    pairs = len(gpus) * (len(gpus) - 1) // 2
    return words[0] if pairs > 1 and len(words) == pairs and len(set(words)) == 1 else ""


def _boxes(plot: Mapping[str, Any], places: Mapping[int, tuple[int, int]], top: int) -> Iterator[Markup]:
    for group in dict.fromkeys(group for _, group in plot["devices"]):
        own = [places[number] for number, (_, of) in enumerate(plot["devices"]) if of == group]
        left, right = min(x for x, _ in own) - 7, max(x for x, _ in own) + BOX + 7
        rows = {row for _, row in own}
        y, high = top - 7 + 60 * min(rows), HIGH + 14 + 60 * (max(rows) - min(rows))
        yield tag("rect", x=left, y=y, width=right - left, height=high, class_="group")
        yield text(left + 4, y + high + 13, group)
    for number, (name, _) in enumerate(plot["devices"]):
        x, row = places[number]
        yield tag("rect", tag("title", name), x=x, y=top + 60 * row, width=BOX, height=HIGH, class_="device")
        short = name if len(name) < 14 else f"{name[:12]}…"
        yield text(x + BOX / 2, top + 60 * row + 19, short, "middle")


def _links(
    plot: Mapping[str, Any], places: Mapping[int, tuple[int, int]], gpus: list[int], top: int, bus: str
) -> Iterator[Markup]:
    if bus:
        xs = [places[number][0] + BOX / 2 for number in gpus]
        yield tag("line", x1=min(xs), x2=max(xs), y1=top - 16, y2=top - 16, class_="wire c0")
        yield from (tag("line", x1=x, x2=x, y1=top - 16, y2=top, class_="wire c0") for x in xs)
        yield text(min(xs), top - 22, f"{bus} between all GPUs")
    odd = {frozenset(pair) for pair in plot["odd"]}
    drawn = {frozenset(link[:2]) for link in plot["links"]}
    missing = [(*sorted(pair), "missing or odd") for pair in odd - drawn if len(pair) == 2]
    for a, b, word in (*plot["links"], *missing):
        is_odd = frozenset((a, b)) in odd
        if a in gpus and b in gpus and (not bus or is_odd):
            yield _arc(places[a][0], places[b][0], top, word, is_odd)
        elif (a in gpus) != (b in gpus):
            x1, x2 = places[a][0] + BOX / 2, places[b][0] + BOX / 2
            class_ = "wire odd" if is_odd else "wire c1"
            yield tag("line", tag("title", word), x1=x1, y1=top + HIGH, x2=x2, y2=top + 60, class_=class_)


def _arc(x1: int, x2: int, top: int, word: str, is_odd: bool) -> Markup:
    a, b = x1 + BOX / 2, x2 + BOX / 2
    high = top - min(140, 14 + abs(b - a) / (BOX + GAP) * 15)
    path = f"M{a:.0f},{top} Q{(a + b) / 2:.0f},{high - 12:.0f} {b:.0f},{top}"
    mark = f"! {word}" if is_odd else word
    label = text((a + b) / 2, (top + high) / 2 - 8, mark, "middle")
    return tag("path", tag("title", word), d=path, class_="wire odd" if is_odd else "wire c0") + label


def table(plot: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    names = [name for name, _ in plot["devices"]]
    odd = {frozenset(pair) for pair in plot["odd"]}
    rows = [[names[a], names[b], f"{word}{' !' if frozenset((a, b)) in odd else ''}"] for a, b, word in plot["links"]]
    return ["device", "device", "connected by"], rows
