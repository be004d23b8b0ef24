"""Which pairs of GPUs, and which of their network cards, differ from their siblings."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import lru_cache
from typing import Any, NamedTuple

from preflight.check import grouped, ranges, vote
from preflight.checks.gpu.shared.readings import Peer
from preflight.checks.gpu.topology.topo_facts import UNKNOWN, Layout, farther

STATUSES = {
    1: "the chipset does not support it", 2: "the GPU does not support it", 3: "the topology does not support it",
    4: "the driver's registry turns it off", 5: "it is not supported",
}  # fmt: skip
"""NVML's reasons for the lack of P2P (nvml.h, nvmlGpuP2PStatus_t); 6 is unknown."""
CHIPSET = 1
GEFORCE = re.compile(r"GeForce RTX|TITAN RTX")
"""Since Turing, only modified kernel modules let these reach each other over PCIe, by way of BAR1."""
FEWEST = 8
"""The fewest GPUs per node for calling a single one odd: servers with fewer slots are often uneven."""
Cell = tuple[int, int]
"""Positions of two devices in a layout: GPUs, then NICs."""


class GpuPair(NamedTuple):
    """Two GPUs of a node that were queried together, both ways."""

    layout: Layout
    gpu: int
    other: int
    forth: Peer
    back: Peer

    @property
    def cell(self) -> Cell:
        return self.gpu, self.other

    @property
    def ways(self) -> tuple[int | None, int | None]:
        return _way(self.forth), _way(self.back)

    @property
    def works(self) -> bool:
        return self.ways == (0, 0)

    @property
    def linked(self) -> bool:
        return self.layout.linked(self.gpu, self.other)

    @property
    def geforce(self) -> bool:
        """Whether NVIDIA's driver refuses them P2P over PCIe, whatever reason it names (older ones: the chipset)."""
        return any(GEFORCE.search(self.layout.cards[gpu].name) for gpu in self.cell)

    @property
    def siblings(self) -> tuple[str, ...]:
        """A key that is equal for comparable pairs."""
        models = sorted((self.layout.cards[self.gpu].name, self.layout.cards[self.other].name))
        return self.layout.near[self.gpu][self.other], *models


def _way(peer: Peer) -> int | None:
    """The combined P2P status of reads and writes; 0 works."""
    known = [status for status in (peer["read"], peer["write"]) if status is not None and status in (0, *STATUSES)]
    return max(known) if len(known) == 2 else None


def pairs(layouts: Iterable[Layout], left_out: Set[str] = frozenset()) -> list[GpuPair]:
    """All pairs with known P2P. `left_out`: UUIDs of GPUs that lack P2P for a reason reported elsewhere."""
    found = []
    for layout in layouts:
        for gpu, other in layout.pairs:
            forth, back = layout.peer(gpu, other), layout.peer(other, gpu)
            uuids = layout.cards[gpu].uuid, layout.cards[other].uuid
            if forth and back and left_out.isdisjoint(uuids):
                pair = GpuPair(layout, gpu, other, forth, back)
                found += [pair] if None not in pair.ways else []
    return found


class DifferingPairs(NamedTuple):
    layout: Layout
    cells: list[Cell]
    text: str
    expected: str
    possible: int = 0
    """How many pairs of the node this could affect."""

    def culprits(self) -> Iterator[tuple[dict[str, Any], str, list[Cell]]]:
        """(where, "between GPU 2 and GPU 5", pairs): the one GPU that all pairs share, else the node if it has no other
        pairs, else each pair."""
        cards = self.layout.cards
        shared = set.intersection(*map(set, self.cells))
        if len(self.cells) > 1 and len(shared) == 1:
            odd = min(shared)
            others = [self._number(gpu if other == odd else other) for gpu, other in self.cells]
            yield cards[odd].where, f"between GPU {self._number(odd)} and GPUs {ranges.to_text(others)}", self.cells
        elif 1 < len(self.cells) == self.possible:
            yield {"node": self.layout.node}, f"between any two of {len(cards)} GPUs", self.cells
        else:
            for gpu, other in self.cells:
                where = {**cards[gpu].where, "peer_gpu": cards[other].gpu}
                yield where, f"between GPU {self._number(gpu)} and GPU {self._number(other)}", [(gpu, other)]

    def _number(self, place: int) -> int:
        return int(self.layout.labels[place].removeprefix("GPU"))


def _by_node(found: Iterable[tuple[GpuPair, str, str]], everyone: Iterable[GpuPair]) -> list[DifferingPairs]:
    """Groups findings by node. `found`: (pair, message, what was expected)."""
    possible = Counter(pair.layout.node for pair in everyone)
    groups = grouped(found, lambda row: (row[0].layout.node, *row[1:]))
    return [
        DifferingPairs(alike[0][0].layout, [pair.cell for pair, _, _ in alike], text, expected, possible[node])
        for (node, text, expected), alike in groups.items()
    ]


def one_way(everyone: list[GpuPair]) -> list[DifferingPairs]:
    """Pairs whose P2P works in one direction only."""
    found = []
    for pair in everyone:
        forth, back = pair.ways
        if (forth == 0) != (back == 0):
            first, last = (pair.gpu, pair.other) if forth == 0 else (pair.other, pair.gpu)
            names = f"{pair.layout.labels[first]} to {pair.layout.labels[last]}"
            found.append((pair, f"{names}, not back: {STATUSES[(forth or 0) + (back or 0)]}", "expected both ways"))
    return _by_node(found, everyone)


def no_p2p(everyone: list[GpuPair]) -> tuple[list[DifferingPairs], list[tuple[str | None, str]]]:
    """(pairs that should have P2P, ties with their node or None). Pairs with NVLinks must have it; others if most pairs
    of such GPUs at that distance do, or if NCCL would use it and only the chipset forbids it."""
    alike_both_ways = [pair for pair in everyone if pair.works or 0 not in pair.ways]
    lacking = [pair for pair in alike_both_ways if pair.linked and not pair.works]
    found = [(pair, STATUSES[pair.ways[0] or 0], "expected it: NVLinks connect them") for pair in lacking]
    unlinked = (pair for pair in alike_both_ways if not pair.linked)
    ties = []
    for (word, *_), alike in grouped(unlinked, lambda pair: pair.siblings).items():
        votes = vote(enumerate(pair.works for pair in alike))
        if votes.decided and votes.usual:
            expected = f"expected it as between {votes.share('pair')} that are {word} apart"
            found += [(pair, STATUSES[pair.ways[0] or 0], expected) for pair in alike if not pair.works]
        elif wanted := [
            pair for pair in alike if CHIPSET in pair.ways and word in pair.layout.p2p_within and not pair.geforce
        ]:
            expected = f"expected it: NCCL uses it between GPUs that are {word} apart"
            found += [(pair, STATUSES[CHIPSET], expected) for pair in wanted]
        elif not votes.decided:
            sides = ", ".join(
                f"{answer} {_first_pair(alike, works)}" for works, answer in ((True, "works"), (False, "not"))
            )
            nodes = {pair.layout.node for pair in alike}
            ties.append((min(nodes) if len(nodes) == 1 else None, f"P2P between GPUs that are {word} apart: {sides}"))
    return _by_node(found, everyone), ties


def _first_pair(alike: list[GpuPair], works: bool) -> str:
    first, *others = [pair for pair in alike if pair.works == works]
    labels = first.layout.labels
    more = f" and {ranges.count(len(others), 'other pair')}" if others else ""
    return f"between {labels[first.gpu]} and {labels[first.other]} of {first.layout.node}{more}"


def nvlink_unused(everyone: list[GpuPair]) -> list[DifferingPairs]:
    """Pairs with NVLinks whose P2P does not use them, while most such pairs do."""
    linked = [
        pair
        for pair in everyone
        if pair.linked and pair.works and pair.forth["nvlink"] is not None and pair.back["nvlink"] is not None
    ]
    votes = vote(enumerate(pair.forth["nvlink"] == pair.back["nvlink"] == 0 for pair in linked))
    if not votes.decided or not votes.usual:
        return []
    expected = f"expected it over NVLink as between {votes.share('pair')} with links"
    return _by_node(((linked[at], "not over NVLink", expected) for at, _ in votes.odd()), linked)


# Between nodes: how near the GPUs are to each other, and to the NICs


def _comparable(layouts: Iterable[Layout]) -> Iterator[list[Layout]]:
    """Groups of nodes with as many GPUs of the same models, none hidden."""
    known = (layout for layout in layouts if layout.whole and not any(UNKNOWN in row for row in layout.near))
    yield from grouped(known, lambda layout: tuple(card.name for card in layout.cards)).values()


def other_layout(layouts: Iterable[Layout]) -> tuple[list[DifferingPairs], list[str]]:
    """(nodes whose GPUs are farther from each other than on most nodes, ties)."""
    found, ties = [], []
    for alike in _comparable(layouts):
        votes = vote(enumerate(tuple(row[: len(layout.cards)] for row in layout.near) for layout in alike))
        for at, _ in votes.odd():
            found += list(_other_words(alike[at], alike[votes.ranks_of[votes.usual][0]], votes.share("node")))
        if not votes.unanimous and not votes.decided:
            layout, other = (alike[places[0]] for places in [*votes.ranks_of.values()][:2])
            cell = next(cell for cell in layout.pairs if _word(layout, cell) != _word(other, cell))
            names = " and ".join(layout.labels[place] for place in cell)
            sides = f"{_word(layout, cell)} apart on {layout.node}, {_word(other, cell)} on {other.node}"
            ties.append(f"the nodes are wired differently: {names} are {sides}")
    return found, ties


def _other_words(odd: Layout, usual: Layout, share: str) -> Iterator[DifferingPairs]:
    far = (cell for cell in odd.pairs if farther(_word(odd, cell), _word(usual, cell)))
    for (got, expected), cells in grouped(far, lambda cell: (_word(odd, cell), _word(usual, cell))).items():
        yield DifferingPairs(odd, cells, got, f"expected {expected} as on {share}", len([*odd.pairs]))


def _word(layout: Layout, cell: Cell) -> str:
    return layout.near[cell[0]][cell[1]]


class FarNic(NamedTuple):
    """A GPU whose nearest RDMA device is farther than its siblings'."""

    layout: Layout
    gpu: int
    usual: str
    share: str

    @property
    def word(self) -> str:
        return self.layout.nearest_nic(self.gpu)

    @property
    def cell(self) -> Cell | None:
        return (self.gpu, self.layout.near[self.gpu].index(self.word, len(self.layout.cards))) if self.word else None


def far_nics(layouts: Sequence[Layout]) -> list[FarNic]:
    """Compares a GPU first with the same GPU on other nodes, then with the others of its node, if it alone is odd."""
    found = [
        FarNic(alike[at], gpu, votes.usual, votes.share("node"))
        for alike in _comparable(layouts)
        for gpu in range(len(alike[0].cards))
        for votes in [vote(enumerate(layout.nearest_nic(gpu) for layout in alike))]
        for at, word in votes.odd()
        if farther(word, votes.usual)
    ]
    named = {far.layout.node for far in found}
    return found + [far for layout in layouts if layout.node not in named for far in _far_inside(layout)]


def _far_inside(layout: Layout) -> Iterator[FarNic]:
    votes = vote(enumerate(layout.nearest_nic(gpu) for gpu in range(len(layout.cards))))
    odd = [*votes.odd()]
    if len(odd) == 1 and votes.voters >= FEWEST and votes.usual in ("PIX", "PXB") and farther(odd[0][1], votes.usual):
        yield FarNic(layout, odd[0][0], votes.usual, f"{votes.share('GPU')} of the node")


def nic_ties(layouts: Sequence[Layout], found: Iterable[FarNic]) -> Iterator[str]:
    """Ties that need more nodes to decide. `found`: already reported."""
    named = {far.gpu for far in found}
    for alike in _comparable(layouts):
        for gpu in sorted(set(range(len(alike[0].cards))) - named):
            votes = vote(enumerate(layout.nearest_nic(gpu) for layout in alike))
            if not votes.unanimous and not votes.decided:
                sides = [f"{word or 'none'} on {alike[places[0]].node}" for word, places in votes.ranks_of.items()]
                yield f"the nearest RDMA device of {alike[0].labels[gpu]}: {', '.join(sides)}"
                break


# CPUs


class OddCpus(NamedTuple):
    """A GPU whose CPUs, according to the driver, are not those of its NUMA node."""

    layout: Layout
    gpu: int
    share: str

    @property
    def own(self) -> str:
        return ranges.to_text(self.layout.places[self.gpu]["cpus"] or ())

    @property
    def of_node(self) -> str:
        return self.layout.cpus[self.gpu]


def odd_cpus(layout: Layout) -> list[OddCpus]:
    """GPUs with odd CPUs; none if most GPUs contradict their NUMA nodes, which then is normal on the platform."""
    known = [gpu for gpu, place in enumerate(layout.places) if place["cpus"] and layout.cpus[gpu]]
    odd = [gpu for gpu in known if numbers(layout.cpus[gpu]).isdisjoint(layout.places[gpu]["cpus"] or ())]
    share = f"{len(known) - len(odd)} of {ranges.count(len(known), 'GPU')} of the node"
    return [OddCpus(layout, gpu, share) for gpu in odd] if 2 * len(odd) <= len(known) else []


@lru_cache
def numbers(text: str) -> frozenset[int]:
    """The numbers in "0-55,112-167"."""
    return frozenset(ranges.from_text(text))
