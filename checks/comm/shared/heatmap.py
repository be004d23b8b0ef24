"""Draws link rates: node by local rank, node by node, rank by rank. Marks slow ones without color."""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from preflight.check import Run, ranges
from preflight.checks.comm.shared.localize import Blame, Link
from preflight.sdk.pairs import RECEIVES, SENDS

MOST_ROWS, MOST_NUMBERS, MOST_COLUMNS = 60, 10, 16
"""The most nodes to draw; up to MOST_NUMBERS as numbers, more as a character each."""
FEW_ROWS = 8
"""The most nodes to draw if nothing is slow."""
NAME = 24
"""The longest name of a node, in characters."""


def by_rank(blame: Blame, run: Run) -> Iterator[str]:
    """Node by local rank: the slower of its best sending and its best receiving link, so that a sick partner does not
    make a rank look slow."""
    best: dict[tuple[int, int], float] = defaultdict(float)
    for link, rate in blame.rates.items():
        for role in (SENDS, RECEIVES):
            best[link[role], role] = max(rate, best[link[role], role])
    cells: dict[int, dict[int, float]] = defaultdict(dict)
    for (rank, _), rate in best.items():
        place = blame.places[rank]
        cells[place.node][place.rail] = min(rate, cells[place.node].get(place.rail, rate))
    columns = sorted({rail for row in cells.values() for rail in row})[:MOST_COLUMNS]
    shown = _rows(blame, sorted(cells))
    yield "node by local rank, GB/s: the slower of its best sending and receiving link (! is slow)"
    rows = [["", *map(str, columns)]]
    rows += [[_name(node, run), *(_number(cells[node].get(rail), blame) for rail in columns)] for node in shown]
    yield from _aligned(rows)
    rest = [rate for node in cells.keys() - set(shown) for rate in cells[node].values()]
    if rest:
        nodes = ranges.count(len(cells) - len(shown), "other node")
        yield f"{nodes}: {min(rest):.3g} to {max(rest):.3g}"


def by_node(blame: Blame, run: Run) -> Iterator[str]:
    """From the row's node to the column's: the median of their links, or the slow one."""
    between: dict[tuple[int, int], list[Link]] = defaultdict(list)
    for a, b in blame.rates:
        between[blame.places[a].node, blame.places[b].node].append((a, b))
    nodes = sorted({node for pair in between for node in pair})
    shown = _rows(blame, nodes)
    if len(shown) <= MOST_NUMBERS:
        yield "from the row's node to the column's, GB/s (! is slow)"
        rows = [["", *(str(node) for node in shown)]]
        for a in shown:
            cells = ["-" if a == b else _between(between.get((a, b)), blame) for b in shown]
            rows.append(
                [f"{a} {_name(a, run)}", *("-" if a == b else text for b, text in zip(shown, cells, strict=True))]
            )
        yield from _aligned(rows)
    else:
        tenths = f"0-9 slow, in tenths of {blame.usual:.3g} GB/s"
        yield f"from the row's node to the columns': . is sound, {tenths}, blank not tried"
        width = max(len(_name(node, run)) for node in shown)
        for a in shown:
            yield f"{_name(a, run):{width}}  {''.join(_character(a, b, between.get((a, b)), blame) for b in shown)}"
    if len(shown) < len(nodes):
        sound = "" if blame.bad else ": all are sound"
        yield f"{ranges.count(len(nodes) - len(shown), 'other node')} not drawn{sound}"


def within_node(node: int, slow: Collection[Link], rates: Mapping[Link, float], run: Run) -> Iterator[str]:
    """Rank by rank within one node."""
    ranks = sorted({rank for link in rates for rank in link})[:MOST_COLUMNS]
    yield f"{_name(node, run)}, from the row's rank to the column's, GB/s (! is slow)"
    rows = [["", *map(str, ranks)]]
    for a in ranks:
        cells = [f"{rates[a, b]:.3g}{'!' * ((a, b) in slow)}" if (a, b) in rates else "-" for b in ranks]
        rows.append([str(a), *cells])
    yield from _aligned(rows)


def _rows(blame: Blame, nodes: Sequence[int]) -> list[int]:
    """The nodes to draw: those named, then those on slow links, then others as far as there is room."""
    named = [
        *blame.nodes,
        *(blame.places[rank].node for rank in blame.ranks),
        *(n for pair in blame.links for n in pair),
    ]
    ends = [blame.places[rank].node for link in sorted(blame.bad) for rank in link]
    room = (MOST_NUMBERS if len(nodes) > MOST_ROWS else MOST_ROWS) if blame.bad else FEW_ROWS
    chosen = dict.fromkeys([*named, *ends, *nodes])
    return sorted([*chosen][: max(room, min(len({*named}), MOST_ROWS))])


def _between(links: Sequence[Link] | None, blame: Blame) -> str:
    """The slowest link if one is slow, since the median would hide it."""
    slow = [blame.rates[link] for link in links or () if link in blame.bad]
    if slow:
        return f"{min(slow):.3g}!"
    return f"{statistics.median(blame.rates[link] for link in links):.3g}" if links else ""


def _character(a: int, b: int, links: Sequence[Link] | None, blame: Blame) -> str:
    if not links:
        return "\\" if a == b else " "
    slow = [blame.rates[link] for link in links if link in blame.bad]
    return str(min(9, int(10 * min(slow) / blame.usual))) if slow else "."


def _number(value: float | None, blame: Blame) -> str:
    return "" if value is None else f"{value:.3g}{'!' * (value < blame.limit)}"


def _name(node: int, run: Run) -> str:
    name = run.job.nodes[node].node
    return name if len(name) <= NAME else f"{name[: NAME - 2]}.."


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
