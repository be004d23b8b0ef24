"""Which links are slow beside the others of the run, and what they have in common: a rail, a node, a rank, two sides of
the network, or nothing. Pure, and linear in the links.

A link (a, b) is what rank a sends to rank b. Only a partner that does well with somebody else is a witness against a
rank: between two sick ones nobody can tell whose fault it is.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from preflight.check import Job, Run, option
from preflight.checks.comm.transfers import Facts

SYMPTOMS = (
    "comm.all_reduce", "comm.all_gather", "comm.reduce_scatter", "comm.all_to_all", "comm.broadcast", "comm.send_recv",
    "comm.rails", "net.mesh",
)  # fmt: skip
"""Checks after whose findings it is worth the time to look for the node or the pair."""
Link = tuple[int, int]
SENDS, RECEIVES = 0, 1
"""A rank's place in the link."""
WITNESSES = 2
"""One slow link may be the fault of either end."""
OFTEN = 3
"""So many slow links with one end in common, if they are most of its links, are its fault."""
MOST_OF_A_RAIL = 0.75
ENOUGH = 8
"""Links, for their spread to say much."""
SPREADS = 6
"""Medians of the distances from the median (MAD): 4 standard deviations of a normal distribution."""

MUCH_SLOWER = option(float, 4.0, "warn where a link is so many times slower than is usual in this run")
"""As net.mesh: a busy core, or a link that several streams share, halves a rate, and the best of three or more counts;
a bad link is slower by far."""
SLOWER = option(float, 1.6, "on nccl: the same, where all other links differ little")
"""Between what a sound GPU's links differ by and a half: a network card with half its PCIe lanes, one of two rails."""


@dataclass(frozen=True)
class Place:
    node: int
    """Its number in the job's list."""
    rail: int
    """The rank's place among its node's ranks."""


@dataclass(frozen=True)
class Blame:
    """`bad` are explained by `rails`, `nodes`, `ranks` or `sides`, or they are in `links`."""

    usual: float
    """GB/s of 10^9 bytes, in the middle."""
    limit: float
    """A link below it is slow."""
    rates: Mapping[Link, float]
    places: Mapping[int, Place]
    bad: frozenset[Link]
    rails: tuple[int, ...] = ()
    nodes: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """SENDS, RECEIVES or both, by the node's number."""
    ranks: Mapping[int, frozenset[int]] = field(default_factory=dict)
    sides: tuple[tuple[int, ...], ...] = ()
    """Nodes; the links between them are in none of the others."""
    links: Mapping[tuple[int, int], tuple[Link, ...]] = field(default_factory=dict)
    """By the two nodes, the lower number first."""


def rates(facts: Mapping[int, Facts]) -> dict[Link, float]:
    """GB/s of 10^9 bytes."""
    found = {}
    for rank, one in facts.items():
        for sender, seconds in one["links"]:
            found[sender, rank] = one["bytes"] / max(seconds, 1e-9) / 1e9
    return found


def places(job: Job) -> dict[int, Place]:
    return {
        rank: Place(number, rail)
        for number, node in enumerate(job.nodes)
        for rail, rank in enumerate(sorted(node.ranks))
    }


def limit(values: Collection[float], run: Run) -> float:
    """Below it a rate is odd. On nccl also between SLOWER and MUCH_SLOWER, if it is far outside the others' spread; on
    gloo the processor, which all share, decides the rates."""
    usual = statistics.median_high(values)
    lowest = usual / run[MUCH_SLOWER]
    if run.job.backend != "nccl" or len(values) < ENOUGH:
        return lowest
    spread = statistics.median(abs(value - usual) for value in values)
    return max(lowest, min(usual / run[SLOWER], usual - SPREADS * spread))


def blame(facts: Mapping[int, Facts], run: Run) -> Blame | None:
    """None where no link was timed."""
    measured, where = rates(facts), places(run.job)
    if not measured:
        return None
    sound = _well(measured, run)
    usual, least = statistics.median_high(sound), limit(sound, run)
    bad = frozenset(link for link, rate in measured.items() if rate < least)
    nothing = Blame(usual, least, measured, where, bad)
    return _explain(nothing) if bad else nothing


def _well(measured: Mapping[Link, float], run: Run) -> Collection[float]:
    """The rates to compare with: all, unless most links are slow though most ranks have a quick one. So it is where one
    of three nodes is slow, or where two halves of the network are slow with each other."""
    best: dict[int, float] = defaultdict(float)
    for link, rate in measured.items():
        for rank in link:
            best[rank] = max(rate, best[rank])
    usual = statistics.median(best.values())
    factor = run[SLOWER] if run.job.backend == "nccl" else run[MUCH_SLOWER]
    if usual < factor * statistics.median_high(measured.values()):
        return measured.values()
    return [rate for rate in measured.values() if rate * factor >= usual]


def _explain(known: Blame) -> Blame:
    rails = _rails(known)
    left = [link for link in known.bad if known.places[link[0]].rail not in rails]
    good = known.rates.keys() - known.bad
    ranks = always(good, left)
    nodes = _whole_nodes(ranks, known)
    left = [link for link in left if not (_explains(ranks, link) or _explains_node(nodes, link, known.places))]
    sides = _sides(good, left, nodes, known)
    if sides:
        left = []
    nodes |= _often(left, known.rates, lambda rank: known.places[rank].node, partners=2)
    left = [link for link in left if not _explains_node(nodes, link, known.places)]
    ranks |= _often(left, known.rates, lambda rank: rank, partners=OFTEN)
    left = [link for link in left if not _explains(ranks, link)]
    ranks = {rank: roles for rank, roles in ranks.items() if not roles <= nodes.get(known.places[rank].node, set())}
    if 2 * len(nodes) >= len({where.node for where in _used(known)}):
        nodes, ranks, sides, left = {}, {}, (), [*known.bad]
    found = {node: frozenset(roles) for node, roles in sorted(nodes.items())}
    by_rank = {rank: frozenset(roles) for rank, roles in sorted(ranks.items())}
    return Blame(
        known.usual, known.limit, known.rates, known.places, known.bad, rails, found, by_rank, sides,
        _by_nodes(left, known.places),
    )  # fmt: skip


def _used(known: Blame) -> list[Place]:
    return [known.places[rank] for rank in {rank for link in known.rates for rank in link}]


def _explains(ranks: Mapping[int, Collection[int]], link: Link) -> bool:
    return any(role in ranks.get(rank, ()) for role, rank in enumerate(link))


def _explains_node(nodes: Mapping[int, Collection[int]], link: Link, where: Mapping[int, Place]) -> bool:
    return any(role in nodes.get(where[rank].node, ()) for role, rank in enumerate(link))


def _rails(known: Blame) -> tuple[int, ...]:
    """Those of which most links are slow, where most rails are not so. Between two nodes it may be a card of theirs."""
    if len({where.node for where in _used(known)}) < 3:
        return ()
    tried = Counter(known.places[link[0]].rail for link in known.rates)
    slow = Counter(known.places[link[0]].rail for link in known.bad)
    rails = [rail for rail, count in slow.items() if count >= MOST_OF_A_RAIL * tried[rail]]
    return tuple(sorted(rails)) if 2 * len(rails) < len(tried) else ()


def always(good: Collection[Link], bad: Iterable[Link]) -> dict[int, set[int]]:
    """Ranks that do badly with all that they send to, or get from."""
    do_well = tuple({link[role] for link in good} for role in (SENDS, RECEIVES))
    witnesses: Counter[tuple[int, int]] = Counter()
    for link in bad:
        for role in (SENDS, RECEIVES):
            if link[role] not in do_well[role] and link[1 - role] in do_well[1 - role]:
                witnesses[link[role], role] += 1
    roles: dict[int, set[int]] = defaultdict(set)
    for (rank, role), count in witnesses.items():
        if count >= WITNESSES:
            roles[rank].add(role)
    return dict(roles)


def _whole_nodes(ranks: Mapping[int, Collection[int]], known: Blame) -> dict[int, set[int]]:
    """Nodes more than half of whose ranks are slow in the same place."""
    width = Counter(where.node for where in _used(known))
    slow = Counter((known.places[rank].node, role) for rank, roles in ranks.items() for role in roles)
    nodes: dict[int, set[int]] = defaultdict(set)
    for (node, role), count in slow.items():
        if 2 * count > width[node]:
            nodes[node].add(role)
    return dict(nodes)


def _often(
    left: Iterable[Link], tried: Iterable[Link], unit: Callable[[int], int], partners: int
) -> dict[int, set[int]]:
    """Units with OFTEN slow links at least, which are most of theirs in that place, with so many partners; the one with
    the most first, as its links then are explained."""
    rest, found = [*left], defaultdict[int, set[int]](set)
    total = Counter((unit(link[role]), role) for link in (tried if rest else ()) for role in (SENDS, RECEIVES))
    while True:
        slow: dict[tuple[int, int], list[int]] = defaultdict(list)
        for link in rest:
            for role in (SENDS, RECEIVES):
                slow[unit(link[role]), role].append(unit(link[1 - role]))
        able = [
            (len(others), key) for key, others in slow.items()
            if len(others) >= OFTEN and 2 * len(others) > total[key] and len(set(others)) >= partners
        ]  # fmt: skip
        if not able:
            return dict(found)
        one, role = max(able)[1]
        found[one].add(role)
        rest = [link for link in rest if unit(link[role]) != one]


def _sides(
    good: Iterable[Link], left: Collection[Link], nodes: Mapping[int, object], known: Blame
) -> tuple[tuple[int, ...], ...]:
    """Groups of two nodes at least, all well within and slow between them; the smallest first."""
    between = {tuple(sorted(known.places[rank].node for rank in link)) for link in left}
    used = {where.node for where in _used(known)}
    if not left or len(between) < len(used):  # as in a ring, which any two slow links part
        return ()
    parent = {node: node for node in used}

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for a, b in good:
        parent[root(known.places[a].node)] = root(known.places[b].node)
    groups: dict[int, list[int]] = defaultdict(list)
    for node in parent:
        if node not in nodes:
            groups[root(node)].append(node)
    crossing = all(root(known.places[a].node) != root(known.places[b].node) for a, b in left)
    whole = crossing and len(groups) > 1 and all(len(group) > 1 for group in groups.values())
    return tuple(sorted((tuple(sorted(group)) for group in groups.values()), key=len)) if whole else ()


def _by_nodes(left: Iterable[Link], where: Mapping[int, Place]) -> dict[tuple[int, int], tuple[Link, ...]]:
    found: dict[tuple[int, int], list[Link]] = defaultdict(list)
    for a, b in sorted(left):
        one, other = sorted((where[a].node, where[b].node))
        found[one, other].append((a, b))
    return {pair: tuple(links) for pair, links in sorted(found.items())}
