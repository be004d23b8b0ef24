"""What bad pairs of nodes have in common: a node, two sides, or nothing. Pure, and linear in the pairs.

A pair (a, b) is what a sends, or opens, to b. Only a partner that does well with somebody else is a witness against a
node: between two sick ones nobody can tell whose fault it is.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

Pair = tuple[int, int]
SENDS, RECEIVES = 0, 1
"""Its place in the pair."""
WITNESSES = 2
"""One bad pair may be the fault of either end."""
FEW = 3
"""Of all bad pairs that have one end in common, if they are most of its pairs."""
MANY = 5
"""The same, if they are not most (they are with three others at least): a bond or ECMP sends each connection by one of
its legs or paths, and one of those is sick."""


@dataclass(frozen=True)
class Common:
    """A pair of which an end is in `ends` is explained by it."""

    ends: dict[int, tuple[int, ...]]
    """The nodes that do badly with all others, or, where they explain all, with some: as what (SENDS, RECEIVES)."""
    sides: tuple[tuple[int, ...], ...]
    """Groups of nodes, each well connected in itself, and none with another; the smallest first."""
    rest: tuple[Pair, ...]
    """Bad pairs that nothing explains; with `sides` those are between the sides."""


def common(tried: Collection[Pair], bad: Collection[Pair]) -> Common:
    """`bad` are some of `tried`."""
    good = set(tried) - set(bad)
    ends = _always_bad(good, bad)
    rest = tuple(sorted(pair for pair in bad if not explained(pair, ends)))
    if rest and (one := _often_bad(tried, rest)) is not None:
        sides = _sides(tried, good, ends, rest)
        if len(sides) < 2:
            roles = tuple(role for role in (SENDS, RECEIVES) if any(pair[role] == one for pair in rest))
            return Common({**ends, one: tuple(sorted({*roles, *ends.get(one, ())}))}, (), ())
    return Common(ends, _sides(tried, good, ends, rest), rest)


def switch_of(addr: str, pattern: str) -> str:
    """ "spine.leaf-1" of "spine.leaf-1.node-7" and "switch.switch.node": SLURM_TOPOLOGY_ADDR and its PATTERN as Slurm's
    topology/tree sets them (sbatch(1)). "" where they do not name switches; a node's name may hold dots."""
    kinds = pattern.split(".")
    levels = kinds.count("switch")
    well_known = levels and kinds == [*["switch"] * levels, "node"] and addr.count(".") >= levels
    return ".".join(addr.split(".")[:levels]) if well_known else ""


def explained(pair: Pair, ends: Mapping[int, Collection[int]]) -> bool:
    """Whether one of its ends is a culprit in the place that it has there."""
    return any(role in ends.get(node, ()) for role, node in enumerate(pair))


def _always_bad(good: Collection[Pair], bad: Iterable[Pair]) -> dict[int, tuple[int, ...]]:
    do_well = tuple({pair[role] for pair in good} for role in (SENDS, RECEIVES))
    witnesses: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    for pair in bad:
        for role in (SENDS, RECEIVES):
            if pair[role] not in do_well[role] and pair[1 - role] in do_well[1 - role]:
                witnesses[role][pair[role]] += 1
    roles: dict[int, list[int]] = defaultdict(list)
    for role in (SENDS, RECEIVES):
        for node, count in witnesses[role].items():
            if count >= WITNESSES:
                roles[node].append(role)
    return {node: tuple(roles[node]) for node in sorted(roles)}


def _often_bad(tried: Collection[Pair], rest: Collection[Pair]) -> int | None:
    """The one node that all bad pairs share, if they are many, or more than half of what it tried in that place."""
    shared = set.intersection(*(set(pair) for pair in rest))
    if len(rest) < FEW or len(shared) != 1:
        return None
    (one,) = shared
    if len(rest) >= MANY:
        return one
    roles = {role for pair in rest for role in (SENDS, RECEIVES) if pair[role] == one}
    of = sum(pair[role] == one for pair in tried for role in roles)
    return one if 2 * len(rest) > of else None


def _sides(
    tried: Collection[Pair], good: Collection[Pair], ends: Mapping[int, Collection[int]], rest: Collection[Pair]
) -> tuple[tuple[int, ...], ...]:
    """Empty where the bad pairs do not part the nodes. A node by itself is no side."""
    if not rest:
        return ()
    parent = {node: node for pair in tried for node in pair}

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for a, b in good:
        parent[root(a)] = root(b)
    groups: dict[int, list[int]] = defaultdict(list)
    for node in parent:
        if node not in ends:
            groups[root(node)].append(node)
    crossing = all(root(a) != root(b) for a, b in rest)
    sides = sorted((tuple(sorted(group)) for group in groups.values()), key=lambda side: (len(side), side))
    return tuple(sides) if crossing and len(sides) > 1 and all(len(side) > 1 for side in sides) else ()


def switches(places: Mapping[int, str]) -> dict[frozenset[int], str]:
    """The nodes behind each switch, and its name. `places`: by node, "spine.leaf-1", from the top down, or "". Of
    switches with the same nodes the lowest one."""
    behind: dict[tuple[int, str], set[int]] = defaultdict(set)
    for node, place in places.items():
        for level, name in enumerate(place.split(".") if place else ()):
            behind[level, name].add(node)
    return {frozenset(nodes): name for (_, name), nodes in sorted(behind.items(), key=lambda item: item[0])}
