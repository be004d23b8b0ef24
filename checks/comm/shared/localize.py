"""Which links are slower than the others of the run, and what they have in common: a rail, a node, a rank, two sides of
the network, or nothing. Pure; takes linear time.

A link (a, b) carries data from rank a to rank b. preflight/sdk/pairs.py finds a culprit among bad pairs.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from preflight.check import After, Job, Run, option, pairs
from preflight.checks.comm.shared.transfers import Doubt, Facts

SYMPTOMS = (
    "comm.all_reduce", "comm.all_gather", "comm.reduce_scatter", "comm.all_to_all", "comm.broadcast", "comm.send_recv",
    "comm.rails", "net.mesh",
)  # fmt: skip
"""Checks whose findings justify the time to look for the node or the pair."""
AFTER_SYMPTOMS = dict.fromkeys(SYMPTOMS, After.WHEN_BAD)
Link = pairs.Pair
MOST_OF_A_RAIL = 0.75
ENOUGH = 8
"""The fewest links for a meaningful spread."""
SPREADS = 6
"""Median absolute deviations (MAD): 4 standard deviations of a normal distribution."""

MUCH_SLOWER = option(float, 4.0, "warn if a link is this many times slower than usual in this run")
"""As in net.mesh: a busy core, or a link that several streams share, halves a rate, and the best of three or more
counts; a bad link is far slower."""
SLOWER = option(float, 1.6, "on nccl: the same, if all other links differ little")
"""Between the spread of a sound GPU's links and a half: a network card with half its PCIe lanes, one of two rails."""


@dataclass(frozen=True)
class Position:
    node: int
    """The node's number in the job's list."""
    rail: int
    """The rank's place among its node's ranks."""


@dataclass(frozen=True)
class Blame:
    """Each of the `bad` links is explained by `rails`, `nodes`, `ranks` or `sides`, or is in `links`."""

    usual: float
    """The median, in GB/s of 10^9 bytes."""
    limit: float
    """Slower links are bad."""
    rates: Mapping[Link, float]
    places: Mapping[int, Position]
    bad: frozenset[Link]
    rails: tuple[int, ...] = ()
    nodes: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """SENDS, RECEIVES or both, by node number."""
    ranks: Mapping[int, frozenset[int]] = field(default_factory=dict)
    sides: tuple[tuple[int, ...], ...] = ()
    """Groups of nodes; the slow links between them are explained by nothing else."""
    links: Mapping[tuple[int, int], tuple[Link, ...]] = field(default_factory=dict)
    """By pair of nodes, lower number first."""

    def node_pair(self, link: Link) -> pairs.Pair:
        return self.places[link[0]].node, self.places[link[1]].node


def link_rates(facts: Mapping[int, Facts]) -> dict[Link, float]:
    """GB/s of 10^9 bytes."""
    found = {}
    for rank, measured in facts.items():
        for sender, seconds in measured["links"]:
            found[sender, rank] = measured["bytes"] / max(seconds, 1e-9) / 1e9
    return found


def positions(job: Job) -> dict[int, Position]:
    return {
        rank: Position(number, rail)
        for number, node in enumerate(job.nodes)
        for rail, rank in enumerate(sorted(node.ranks))
    }


def slow_below(values: Collection[float], run: Run) -> float:
    """The limit below which a rate is odd. On nccl it may lie between SLOWER and MUCH_SLOWER, far outside the others'
    spread; on gloo the shared processor decides the rates."""
    usual = statistics.median_high(values)
    lowest = usual / run[MUCH_SLOWER]
    if run.job.backend != "nccl" or len(values) < ENOUGH:
        return lowest
    spread = statistics.median(abs(value - usual) for value in values)
    return max(lowest, min(usual / run[SLOWER], usual - SPREADS * spread))


def find_blame(facts: Mapping[int, Facts], run: Run, *, with_sides: bool = False) -> Blame | None:
    """None if no link was timed. `with_sides`: only if all nodes meet, since any two slow links divide a ring."""
    nothing = _measured(facts, run)
    return _explain(nothing, with_sides) if nothing and nothing.bad else nothing


def doubt(facts: Mapping[int, Facts], run: Run) -> Doubt:
    """The slow links, which a second measurement should confirm."""
    known = _measured(facts, run)
    return Doubt(known.bad if known else frozenset())


def _measured(facts: Mapping[int, Facts], run: Run) -> Blame | None:
    """The slow links, not explained yet."""
    measured = link_rates(facts)
    if not measured:
        return None
    sound = _well(measured, run)
    usual, least = statistics.median_high(sound), slow_below(sound, run)
    bad = frozenset(link for link, rate in measured.items() if rate < least)
    return Blame(usual, least, measured, positions(run.job), bad)


def _well(measured: Mapping[Link, float], run: Run) -> Collection[float]:
    """The rates to compare with: all, unless most links are slow although most ranks have a fast one. That happens if
    one of three nodes is slow, or if two halves of the network are slow with each other."""
    best: dict[int, float] = defaultdict(float)
    for link, rate in measured.items():
        for rank in link:
            best[rank] = max(rate, best[rank])
    usual = statistics.median(best.values())
    factor = run[SLOWER] if run.job.backend == "nccl" else run[MUCH_SLOWER]
    if usual < factor * statistics.median_high(measured.values()):
        return measured.values()
    return [rate for rate in measured.values() if rate * factor >= usual]


def _explain(known: Blame, with_sides: bool) -> Blame:
    rails = _rails(known)
    left = [link for link in known.bad if known.places[link[0]].rail not in rails]
    good = known.rates.keys() - known.bad
    ranks = pairs.bad_with_all(good, left)
    nodes = _whole_nodes(ranks, known)
    left = [
        link
        for link in left
        if not (pairs.is_explained(link, ranks) or pairs.is_explained(known.node_pair(link), nodes))
    ]
    sides = _sides(good, left, nodes, known) if with_sides else ()
    if sides:
        left = []
    nodes |= pairs.bad_with_most(left, known.rates, lambda rank: known.places[rank].node, partners=2)
    left = [link for link in left if not pairs.is_explained(known.node_pair(link), nodes)]
    ranks |= pairs.bad_with_most(left, known.rates, lambda rank: rank, partners=pairs.FEW)
    left = [link for link in left if not pairs.is_explained(link, ranks)]
    ranks = {rank: roles for rank, roles in ranks.items() if not roles <= nodes.get(known.places[rank].node, set())}
    if 2 * len(nodes) >= len({position.node for position in _used(known)}):
        nodes, ranks, sides, left = {}, {}, (), [*known.bad]
    found = {node: frozenset(roles) for node, roles in sorted(nodes.items())}
    by_rank = {rank: frozenset(roles) for rank, roles in sorted(ranks.items())}
    return Blame(
        known.usual,
        known.limit,
        known.rates,
        known.places,
        known.bad,
        rails,
        found,
        by_rank,
        sides,
        _by_nodes(left, known.places),
    )


def _used(known: Blame) -> list[Position]:
    return [known.places[rank] for rank in {rank for link in known.rates for rank in link}]


def _rails(known: Blame) -> tuple[int, ...]:
    """Rails with mostly slow links, if most rails are not. Between two nodes it may be one of their cards instead."""
    if len({position.node for position in _used(known)}) < 3:
        return ()
    tried = Counter(known.places[link[0]].rail for link in known.rates)
    slow = Counter(known.places[link[0]].rail for link in known.bad)
    rails = [rail for rail, count in slow.items() if count >= MOST_OF_A_RAIL * tried[rail]]
    return tuple(sorted(rails)) if 2 * len(rails) < len(tried) else ()


def _whole_nodes(ranks: Mapping[int, Collection[int]], known: Blame) -> dict[int, set[int]]:
    """Nodes with more than half of their ranks slow in the same role."""
    width = Counter(position.node for position in _used(known))
    slow = Counter((known.places[rank].node, role) for rank, roles in ranks.items() for role in roles)
    nodes: dict[int, set[int]] = defaultdict(set)
    for (node, role), count in slow.items():
        if 2 * count > width[node]:
            nodes[node].add(role)
    return dict(nodes)


def _sides(
    good: Iterable[Link], left: Collection[Link], nodes: Mapping[int, object], known: Blame
) -> tuple[tuple[int, ...], ...]:
    """Groups of nodes that are slow only with each other. Excludes so few pairs that they may be cables of a ring: each
    node outside the largest group must have at least two, on average."""
    used = {position.node for position in _used(known)}
    between = [known.node_pair(link) for link in left]
    sides = pairs.split_sides(used, map(known.node_pair, good), between, nodes)
    fewer = sum(map(len, sides[:-1]))
    return sides if len({tuple(sorted(pair)) for pair in between}) >= 2 * fewer else ()


def _by_nodes(left: Iterable[Link], where: Mapping[int, Position]) -> dict[tuple[int, int], tuple[Link, ...]]:
    found: dict[tuple[int, int], list[Link]] = defaultdict(list)
    for a, b in sorted(left):
        first, second = sorted((where[a].node, where[b].node))
        found[first, second].append((a, b))
    return {pair: tuple(links) for pair, links in sorted(found.items())}
