"""What a check shows beside its findings, as data: curves, strips, a heat map, a wiring, a table.

A check's `plot(facts, run)` yields them on rank 0, the report holds them as JSON (`checks[].plots`), and
preflight/results/page draws them. Everything that grows with the job is bounded here to keep reports small. Every run
imports this module, so these are NamedTuples: a dataclass takes several times as long to create.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from preflight.core import words

MOST_SUBJECTS = 8192
"""In strips. Beyond this only the odd subjects keep their names, and the others are counted in BINS."""
MOST_SIDE = 1024
"""Rows and columns of a heat map; if there are more, neighbours are merged."""
MOST_ROWS = 200
"""In a table."""
BINS = 120
MOST_NODES = 8
"""How many nodes are named beside a value."""
DIGITS = 4
"""Significant digits: more carry no information, and a report holds tens of thousands of values."""


def short(value: float) -> float:
    """Rounds to DIGITS significant digits; infinities and NaN, which JSON cannot hold, become 0."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else 0.0


class Series(NamedTuple):
    """One curve of a chart."""

    name: str
    points: Sequence[Sequence[float]]
    """(x, y), or (x, least, median, most) for a band over ranks."""
    role: str = ""
    """"": measured. "baseline", "expected": what it is compared with, drawn as a dashed line."""


class Chart(NamedTuple):
    """Curves over one axis, such as bandwidth over message size."""

    title: str
    x: str
    y: str
    """Names of the axes, with their units; "bytes" is written as KiB and MiB."""
    series: Sequence[Series]
    log: str = ""
    """Axes with a logarithmic scale: "", "x", "y" or "xy"."""
    note: str = ""
    """A sentence below the chart: where an expected figure comes from."""
    marks: Sequence[tuple[float, str]] = ()
    """(x, what happened there): each is drawn as a vertical line."""
    from_zero: bool = True
    """Whether the y axis starts at 0: it does not where small changes matter."""

    def to_json(self) -> dict[str, Any]:
        drawn = [
            {**line._asdict(), "points": [[short(v) for v in point] for point in line.points]} for line in self.series
        ]
        marks = [[short(x), text] for x, text in self.marks]
        return {"kind": "chart", **self._asdict(), "series": drawn, "marks": marks}


class Strip(NamedTuple):
    """One quantity, measured for all subjects."""

    name: str
    unit: str
    values: Sequence[float | None]
    """None where it was not measured; never 0 for that."""
    odd: Sequence[int] = ()
    """Indices of the subjects to name, such as those that a finding names."""


class Strips(NamedTuple):
    """Quantities of many things of one kind, such as GPUs: one strip per quantity."""

    title: str
    subjects: Sequence[tuple[str, str]]
    """(node, name there): ("gpu-17", "gpu 3")."""
    strips: Sequence[Strip]

    def to_json(self) -> dict[str, Any]:
        strips = [
            {
                **strip._asdict(),
                "values": [value if value is None else short(value) for value in strip.values],
                "odd": [*strip.odd],
            }
            for strip in self.strips
        ]
        whole = {"kind": "strips", "title": self.title, "subjects": [[*own] for own in self.subjects], "strips": strips}
        return whole if len(self.subjects) <= MOST_SUBJECTS else self._counted(strips)

    def _counted(self, strips: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """Names the odd subjects only; `counts` is a histogram of all values in BINS from `least` to `most`."""
        named = sorted({place for strip in self.strips for place in strip.odd})[:MOST_SUBJECTS]
        place_of = {place: number for number, place in enumerate(named)}
        few = [
            {
                **strip,
                "values": [strip["values"][place] for place in named],
                "odd": [place_of[place] for place in strip["odd"] if place in place_of],
                **_histogram(strip["values"]),
            }
            for strip in strips
        ]
        subjects = [[*self.subjects[place]] for place in named]
        return {"kind": "strips", "title": self.title, "subjects": subjects, "strips": few, "of": len(self.subjects)}


def _histogram(values: Iterable[float | None]) -> dict[str, object]:
    known = [value for value in values if value is not None]
    least, most = min(known, default=0.0), max(known, default=0.0)
    counts = [0] * BINS
    for value in known:
        counts[min(BINS - 1, int((value - least) / ((most - least) or 1.0) * BINS))] += 1
    return {"least": least, "most": most, "counts": counts}


class HeatMap(NamedTuple):
    """A value per pair, such as from node to node; not every pair needs one."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[tuple[int, int], float]
    """By row and column."""
    unit: str
    usual: float
    """A value at this level is drawn as sound."""
    limit: float
    """A value below it is slow, and outlined."""

    def to_json(self) -> dict[str, Any]:
        """`cells` are flat: row, column, value, row and so on. `binned`: how many neighbours share one row and one
        column, which shows the least of their values."""
        size = max(1, math.ceil(max(len(self.rows), len(self.columns)) / MOST_SIDE))
        least: dict[tuple[int, int], float] = {}
        for (row, column), value in self.cells.items():
            place = (row // size, column // size)
            least[place] = min(value, least.get(place, value))
        flat = [number for (row, column), value in sorted(least.items()) for number in (row, column, short(value))]
        slow = sorted((value, row, column) for (row, column), value in self.cells.items() if value < self.limit)
        return {
            "kind": "heatmap",
            "title": self.title,
            "unit": self.unit,
            "usual": short(self.usual),
            "limit": short(self.limit),
            "rows": _joined(self.rows, size),
            "columns": _joined(self.columns, size),
            "cells": flat,
            "binned": size,
            "slow_cells": len(slow),
            "slow": [[self.rows[row], self.columns[column], short(value)] for value, row, column in slow[:MOST_ROWS]],
        }


def _joined(names: Sequence[str], size: int) -> list[str]:
    parts = [names[first : first + size] for first in range(0, len(names), size)]
    return [part[0] if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts]


class Wiring(NamedTuple):
    """How the devices of one kind of node are connected."""

    title: str
    nodes: Sequence[str]
    """The nodes that are wired this way."""
    devices: Sequence[tuple[str, str]]
    """(name, group): ("GPU0", "NUMA 0")."""
    links: Sequence[tuple[int, int, str]]
    """The indices of two devices, and what connects them: "NV18"."""
    odd: Sequence[tuple[int, int]] = ()
    """Links that a finding names."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": "wiring", **self._asdict()}


class Table(NamedTuple):
    """Values side by side; the first column names the row."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    screen: str = ""
    """Whether the terminal shows it, too: "always"; "quiet": unless its check passed and was not asked for by its id;
    "": never."""

    def to_json(self) -> dict[str, Any]:
        rows = [[str(cell)[:500] for cell in row] for row in self.rows[:MOST_ROWS]]
        left = len(self.rows) - len(rows)
        note = f"{self.note} {left} more rows are not shown.".strip() if left else self.note
        shown = {"kind": "table", "title": self.title, "heads": [*self.heads], "rows": rows, "note": note}
        return {**shown, "screen": self.screen} if self.screen else shown


Plot = Chart | Strips | HeatMap | Wiring | Table


def differing(title: str, values: Mapping[str, Mapping[str, str]], called: str) -> Table | None:
    """A table of what differs between nodes: a row per value with the nodes that have it, the rarest first. `values`:
    by name and node, "" where it is not set. None if nothing is known."""
    rows: list[tuple[str, str, str]] = []
    odd = 0
    for name, of_node in sorted(values.items()):
        nodes: dict[str, list[str]] = {}
        for node, value in of_node.items():
            nodes.setdefault(value, []).append(node)
        if len(nodes) > 1:
            odd += 1
            rare = sorted(nodes.items(), key=lambda pair: len(pair[1]))
            rows += [(name, value or "not set", words.some(on_nodes, MOST_NODES)) for value, on_nodes in rare]
    equal = f"{len(values) - odd:,} {called} are the same on all nodes."
    return Table(title, ("name", "value", "nodes"), rows, equal) if values else None
