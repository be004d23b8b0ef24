"""Plots for a terminal: a heat map as numbers, or as a character per cell where these do not fit, and a table.

What grows with the job is bounded, as a screen is: the rows with slow cells come first, and the others are counted."""

import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from preflight.core import rank_ranges
from preflight.core.words import plain

MOST_ROWS, FEW_ROWS = 24, 8
"""Of a heat map: the most rows with slow cells, and as many as are shown where fewer are slow."""
MOST_TABLE_ROWS = 32
NAME = 24
"""The longest name of a row, in characters."""

_NUMBER = re.compile(r"-|-?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?(e[-+]?\d+)?[!% ]?")

Cells = Mapping[tuple[int, int], float]


def lines(plot: Mapping[str, Any], width: int) -> list[str]:
    """A heat map or a table in at most `width` columns; [] for the kinds that only report.html draws."""
    draw = {"heatmap": _heat_map, "table": _table}.get(plot["kind"])
    return [plain(line).rstrip() for line in draw(plot, width)] if draw else []


def is_on_screen(plot: Mapping[str, Any], status: str) -> bool:
    """`status`: of its check."""
    shown = "always" if plot["kind"] == "heatmap" else plot.get("screen", "")
    return shown == "always" or (shown == "quiet" and status != "pass")


def _heat_map(plot: Mapping[str, Any], width: int) -> Iterator[str]:
    flat = plot["cells"]
    cells = {(flat[at], flat[at + 1]): flat[at + 2] for at in range(0, len(flat), 3)}
    slow = {place for place, value in cells.items() if value < plot["limit"]}
    rows, columns = _chosen(plot, cells, slow)
    names = [_cut(plot["rows"][row]) for row in rows]
    grid = [["", *_short([plot["columns"][column] for column in columns])]]
    grid += [
        [name, *(_number(cells, row, column, slow) for column in columns)]
        for name, row in zip(names, rows, strict=True)
    ]
    if _width(grid) <= width:
        yield from _wrapped(f"{plot['title']}, {plot['unit']} (! is slow)", width)
        yield from _aligned(grid)
    else:
        about = f". is sound, 0-9 slow, in tenths of {plot['usual']:.3g} {plot['unit']}, blank not tried"
        yield from _wrapped(f"{plot['title']}: {about}", width)
        yield from _characters(plot, cells, slow, rows, width)
    if left := len(plot["rows"]) - len(rows):
        sound = "" if {row for row, _ in slow} - {*rows} else ", all sound"
        yield f"{rank_ranges.count(left, 'other row')} not drawn{sound}"


def _chosen(plot: Mapping[str, Any], cells: Cells, slow: Collection[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The rows and columns to draw: those with the most slow cells. Node by node they are the same."""
    of_rows, of_columns = Counter(row for row, _ in slow), Counter(column for _, column in slow)
    is_square = plot["rows"] == plot["columns"]
    bad = of_rows + of_columns if is_square else of_rows
    known = {row for row, _ in cells} | ({column for _, column in cells} if is_square else set())
    worst_first = sorted(known, key=lambda row: (-bad[row], row))
    rows = sorted(worst_first[: max(FEW_ROWS, min(MOST_ROWS, len(bad)))])
    return rows, rows if is_square else sorted({column for _, column in cells})


def _number(cells: Cells, row: int, column: int, slow: Collection[tuple[int, int]]) -> str:
    """With room for the mark, so that numbers stand below each other."""
    value, mark = cells.get((row, column)), "!" if (row, column) in slow else " " if slow else ""
    return f"{value:.3g}{mark}" if value is not None else ""


def _characters(
    plot: Mapping[str, Any], cells: Cells, slow: Collection[tuple[int, int]], rows: Sequence[int], width: int
) -> Iterator[str]:
    """All columns that fit, with a ruler of every tenth."""
    names = [_cut(plot["rows"][row]) for row in rows]
    indent = max(map(len, names)) + 2
    columns = range(min(len(plot["columns"]), max(1, width - indent)))
    yield " " * indent + "".join(f"{column:<10}" for column in columns[::10])[: len(columns)]
    for name, row in zip(names, rows, strict=True):
        tenths = {place: _tenths(cells[place], plot["usual"]) for place in slow if place[0] == row}
        drawn = (str(tenths.get((row, column), "." if (row, column) in cells else " ")) for column in columns)
        yield f"{name:<{indent}}{''.join(drawn)}"
    yield f"columns: {plot['columns'][0]} to {plot['columns'][columns[-1]]}"


def _tenths(value: float, usual: float) -> int:
    """0 to 9, whatever a plugin or a changed report holds."""
    return int(max(0, min(9, 10 * value / usual))) if usual > 0 else 0


def _table(plot: Mapping[str, Any], width: int) -> Iterator[str]:
    """Columns that do not fit stand below the others, beside the names of the rows."""
    if plot["title"]:
        yield from _wrapped(plot["title"], width)
    grid = [[*plot["heads"]], *plot["rows"][:MOST_TABLE_ROWS]]
    columns = [*zip(*grid, strict=True)]
    place = 1
    while plot["rows"] and place < len(columns):
        sizes = range(place + 1, len(columns) + 1)
        fits = [*takewhile(lambda end: _width([*zip(columns[0], *columns[place:end], strict=True)]) <= width, sizes)]  # noqa: B023
        end = fits[-1] if fits else place + 1
        yield from ([""] if place > 1 else [])
        yield from _aligned([*zip(columns[0], *columns[place:end], strict=True)])
        place = end
    if left := len(plot["rows"]) - MOST_TABLE_ROWS:
        yield from [f"{left:,} more rows: see report.html"] if left > 0 else []
    for line in plot.get("note", "").splitlines():
        yield from _wrapped(line, width)


def _width(grid: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 2 for column in zip(*grid, strict=True)) - 2


def _aligned(grid: Sequence[Sequence[str]]) -> Iterator[str]:
    """Numbers to the right, words to the left."""
    columns = [*zip(*grid, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    to_right = [False, *(all(not cell or _NUMBER.fullmatch(cell) for cell in column[1:]) for column in columns[1:])]
    for row in grid:
        cells = zip(row, widths, to_right, strict=True)
        yield "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells)


def _short(names: Sequence[str]) -> list[str]:
    """Without what all have in common, but with their numbers whole: "0", "1" for "local rank 0", "local rank 1"."""
    alike = takewhile(lambda letters: len({*letters}) == 1, zip(*names, strict=False))
    common = "".join(letters[0] for letters in alike).rstrip("0123456789") if len(names) > 1 else ""
    return [name[len(common) :] for name in names]


def _cut(name: str) -> str:
    return name if len(name) <= NAME else f"{name[: NAME - 2]}.."


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
