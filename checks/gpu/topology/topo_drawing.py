"""How the nodes' GPUs and network cards are wired, as a table like that of `nvidia-smi topo -m`."""

import textwrap
from collections.abc import Hashable, Iterator, Mapping, Sequence

from preflight.check import grouped, plots, ranges
from preflight.checks.gpu.topology.outliers import Cell, pairs
from preflight.checks.gpu.topology.paths import NEARNESS
from preflight.checks.gpu.topology.topo_facts import Layout, kind

WIDTH = 114
"""Columns: 120 with the screen's indentation."""
MOST_LAYOUTS, MOST_CPUS = 3, 16
LEGEND = {
    "NV#": "NVLinks", "PIX": "one PCIe switch at most", "PXB": "several PCIe switches", "PHB": "host bridge",
    "NODE": "one NUMA node", "SYS": "across NUMA nodes", "!": "see the findings",
}  # fmt: skip
Wrong = Mapping[Cell, str]
"""Cells to mark with "!", and their text; "" means the usual word."""


def tables(layouts: Sequence[Layout], wrong: Mapping[str, Wrong]) -> Iterator[plots.Table]:
    """A matrix per kind of node, the most frequent first. `wrong`: by node."""
    kinds = alike(layouts, wrong)
    for place, same in enumerate(kinds[:MOST_LAYOUTS]):
        rest = kinds[MOST_LAYOUTS:] if place == MOST_LAYOUTS - 1 else []
        left = [f"{ranges.count(sum(map(len, rest)), 'node')} of {ranges.count(len(rest), 'other layout')} not shown"]
        first = same[0]
        others = f" and {ranges.count(len(same) - 1, 'other')} like it" if len(same) > 1 else ""
        nics = _fitting(first, wrong.get(first.node, {}))
        heads, *rows = _rows(first, wrong.get(first.node, {}), nics)
        note = [*_names(first, nics), *_p2p(first), *_legend({word for row in rows for word in row})]
        note += left if rest else []
        yield plots.Table(f"{first.node}{others}: {kind(first)}", heads, rows, "\n".join(note), screen="always")


def alike(layouts: Sequence[Layout], wrong: Mapping[str, Wrong]) -> list[list[Layout]]:
    """Kinds of nodes with more than one device, the most frequent first."""
    several = (layout for layout in layouts if len(layout.cards) + len(layout.nics) > 1)
    kinds = grouped(several, lambda layout: _looks(layout, wrong.get(layout.node, {})))
    return sorted(kinds.values(), key=len, reverse=True)


def _looks(layout: Layout, wrong: Wrong) -> Hashable:
    """All that a matrix shows, except names."""
    cpus = tuple(tuple(place["cpus"] or ()) for place in layout.places)
    models = tuple(card.name for card in layout.cards)
    return models, layout.near, layout.links, layout.nic_near, layout.numa, cpus, frozenset(wrong.items())


def _fitting(layout: Layout, wrong: Wrong) -> list[int]:
    """Numbers of as many NICs as fit, those nearest to a GPU first."""
    gpus = len(layout.cards)
    near = [[row[gpus + nic] for row in layout.near] for nic in range(len(layout.nics))]
    distance = [min((NEARNESS.index(word) for word in words if word in NEARNESS), default=9) for words in near]
    nearest = sorted(range(len(near)), key=distance.__getitem__)
    while nearest and _width(_rows(layout, wrong, nearest)) > WIDTH:
        nearest.pop()
    return sorted(nearest)


def _rows(layout: Layout, wrong: Wrong, nics: list[int]) -> list[list[str]]:
    """The header, then a row per device."""
    gpus = len(layout.cards)
    shown = [*range(gpus), *(gpus + nic for nic in nics)]
    labels = [*layout.labels, *(f"NIC{nic}" for nic in range(len(layout.nics)))]
    on_grace = any(place["numa"] is not None for place in layout.places)
    rows = [["", *(labels[at] for at in shown), "CPU affinity", "NUMA", *(["GPU NUMA"] if on_grace else [])]]
    for row in shown:
        cells = [_cell(layout, row, column, wrong) for column in shown]
        rows.append([labels[row], *cells, *_affinity(layout, row, on_grace)])
    return [row + [""] * (len(rows[0]) - len(row)) for row in rows]


def _cell(layout: Layout, row: int, column: int, wrong: Wrong) -> str:
    gpus = len(layout.cards)
    if row >= gpus and column >= gpus:
        word = layout.nic_near[row - gpus][column - gpus]
    else:
        gpu, other = (row, column) if row < gpus else (column, row)
        links = layout.links[gpu][other] if other < gpus else 0
        word = f"NV{links}" if links else layout.near[gpu][other]
    marked = wrong.get((row, column), wrong.get((column, row)))
    if marked is None and not _lacks_links(layout, row, column):
        return word
    return f"{marked or word}!"


def _lacks_links(layout: Layout, row: int, column: int) -> bool:
    """Whether links are missing: with NVSwitches all GPUs have the same number (gpu.nvlink reports it)."""
    gpus = len(layout.cards)
    if not layout.switched or row == column or row >= gpus or column >= gpus:
        return False
    return layout.links[row][column] < max(map(max, layout.links))


def _affinity(layout: Layout, row: int, on_grace: bool) -> list[str]:
    numa = str(layout.numa[row]) if layout.numa[row] >= 0 else "-"
    if row >= len(layout.cards):
        return ["", numa]
    place = layout.places[row]
    cpus = _short(ranges.to_text(place["cpus"])) if place["cpus"] else "-"
    near = ranges.to_text(place["memory_nodes"]) if place["memory_nodes"] else numa
    return [cpus, near, *([str(place["numa"]) if place["numa"] is not None else "-"] if on_grace else [])]


def _short(cpus: str) -> str:
    """A list of CPUs, shortened: some firmware alternates the numbers of two sockets, 0,2,4 and so on."""
    parts = cpus.split(",")
    return cpus if len(cpus) <= MOST_CPUS else f"{parts[0]},{parts[1]}..{parts[-1]}"


def _width(rows: list[list[str]]) -> int:
    """With a space between columns: with two, as a terminal has them, the last ones stand below the others."""
    return sum(max(map(len, column)) + 1 for column in zip(*rows, strict=True)) - 1


def _names(layout: Layout, shown: list[int]) -> list[str]:
    names = [f"NIC{number}: {layout.nics[number]}" for number in shown]
    hidden = len(layout.nics) - len(shown)
    names += [f"({hidden} farther from the GPUs not shown)"] if hidden else []
    lines = textwrap.wrap("  ".join(name.replace(" ", "\0") for name in names), WIDTH)
    return [line.replace("\0", " ") for line in lines]


def _p2p(layout: Layout) -> Iterator[str]:
    """How many pairs at each distance reach each other's memory: "P2P: NV2 8 of 8 pairs, SYS 0 of 12"."""
    near = grouped(pairs([layout]), lambda pair: _cell(layout, pair.gpu, pair.other, {}).rstrip("!"))
    counts = [f"{word} {sum(pair.works for pair in alike)} of {len(alike)}" for word, alike in near.items()]
    if counts:
        yield f"P2P works: {', '.join(counts)} pairs"


def _legend(words: set[str]) -> Iterator[str]:
    drawn = {"NV#" if word.startswith("NV") else word.rstrip("!") for word in words if not word.startswith("NIC")}
    drawn |= {"!"} if any(word.endswith("!") for word in words) else set()
    entries = [f"{word} {meaning}" for word, meaning in LEGEND.items() if word in drawn]
    yield from [", ".join(entries)] if entries else []
