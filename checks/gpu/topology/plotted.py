"""The drawings of the wiring in report.html, one per kind of node."""

from collections.abc import Iterator, Mapping, Sequence

from preflight.check import plots
from preflight.checks.gpu.topology.topo_drawing import MOST_LAYOUTS, Wrong, alike
from preflight.checks.gpu.topology.topo_facts import Layout, kind

CLOSE = ("PIX", "PXB")
"""A GPU and a NIC this near are drawn as connected."""


def wirings(layouts: Sequence[Layout], wrong: Mapping[str, Wrong]) -> Iterator[plots.Plot]:
    for same in alike(layouts, wrong)[:MOST_LAYOUTS]:
        first = same[0]
        nics = [f"NIC{number} {name}" for number, name in enumerate(first.nics)]
        names = [*first.labels, *nics]
        groups = [f"NUMA {numa}" if numa >= 0 else "NUMA unknown" for numa in first.numa]
        odd = [(row, column) for row, column in wrong.get(first.node, {}) if row != column]
        yield plots.Wiring(
            kind(first), [layout.node for layout in same], [*zip(names, groups, strict=True)], [*_links(first)], odd
        )


def _links(layout: Layout) -> Iterator[tuple[int, int, str]]:
    gpus = len(layout.cards)
    for gpu, other in layout.pairs:
        if layout.linked(gpu, other):
            yield gpu, other, f"NV{layout.links[gpu][other]}"
    for gpu, row in enumerate(layout.near):
        yield from ((gpu, gpus + nic, word) for nic, word in enumerate(row[gpus:]) if word in CLOSE)
