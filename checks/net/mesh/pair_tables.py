"""What the nodes of net.mesh saw of each other, by ordered pair. Pure functions from facts to tables.

A pair (a, b) is a connection that a opened to b, or data that a sent to b; nodes are identified by the rank that
measured."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NotRequired, TypedDict

from preflight.checks.net.mesh.timeouts import LARGE_S
from preflight.sdk.pairs import Pair

NOT_TRIED = ("late", "left")
OWN = "other"
"""An error of the node's own system, for lack of ports or memory: it says nothing about the partner."""
BY_THE_END = ("reset", "silent")
"""Errors that may also come from a partner that ran out of time and left."""


class Seen(TypedDict, total=False):
    """What a node saw of one partner; see probe.Tried."""

    error: str
    why: str
    round_trip_s: float
    rate: float
    rate_back: float
    stalled: int
    stalled_back: int
    sent: list[int]
    """Fields of sent.Sent."""
    in_bursts: list[int]
    rtt_variation_s: float


class Facts(TypedDict):
    """A node's facts; `takes_part` is False on ranks that leave it to another rank of their node."""

    takes_part: bool
    interface: str
    address: str
    why: str
    """Why the node does not listen and has no pairs, or ""."""
    mtu: int | None
    """The interface's MTU in bytes."""
    switches: str
    """The switches above the node, from the top down: "spine.leaf-1"; "" if Slurm does not say."""
    cut: bool
    """Whether time ran out before all pairs were done."""
    pairs: dict[str, Seen]
    """By the partner node's rank."""
    rose: NotRequired[dict[str, int]]
    """By how much the kernel's counters of packets have risen meanwhile (packet_counters.py)."""


Nodes = Mapping[int, Facts]


def of_nodes(facts: Nodes) -> dict[int, Facts]:
    return {rank: reading for rank, reading in facts.items() if reading["takes_part"]}


def seen(nodes: Nodes) -> dict[Pair, Seen]:
    """Pairs whose nodes both listen and ended well: what a dead node leaves behind is not the network's fault."""
    found: dict[Pair, Seen] = {}
    for rank, reading in nodes.items():
        for partner, what in reading["pairs"].items():
            other = nodes.get(int(partner))
            if other and not other["why"]:
                found[rank, int(partner)] = what
    return found


def connections(nodes: Nodes, pairs: Mapping[Pair, Seen]) -> dict[Pair, str]:
    """What was wrong with each connection that was tried, or ""."""
    return {pair: what.get("error", "") for pair, what in pairs.items() if _is_tried(nodes, pair, what)}


def _is_tried(nodes: Nodes, pair: Pair, what: Seen) -> bool:
    error = what.get("error", "")
    return error not in (*NOT_TRIED, OWN) and not (error in BY_THE_END and nodes[pair[1]]["cut"])


def untried(nodes: Nodes, pairs: Mapping[Pair, Seen]) -> list[Pair]:
    """Pairs with neither an answer nor an error that would explain why."""
    tried = connections(nodes, pairs)
    known = {pair for pair, what in pairs.items() if what.get("error") == OWN or "round_trip_s" in what}
    return [pair for pair in pairs if not (tried.get(pair) or pair in known)]


def own_errors(pairs: Mapping[Pair, Seen]) -> dict[int, dict[int, str]]:
    """{node: {partner: error}} for connections that failed because of the node's own system."""
    found: dict[int, dict[int, str]] = {}
    for (a, b), what in pairs.items():
        if what.get("error") == OWN:
            found.setdefault(a, {})[b] = what.get("why", "")
    return found


def arrived(pairs: Mapping[Pair, Seen]) -> dict[Pair, int | None]:
    """How many bytes of 1 MiB from a to b arrived before it stalled, at most; None if all. Only for pairs where it was
    tried."""
    found: dict[Pair, int | None] = {}
    for (a, b), what in pairs.items():
        for pair, stalled, rate in (((a, b), "stalled", "rate"), ((b, a), "stalled_back", "rate_back")):
            if stalled in what:
                found[pair] = max(what[stalled], found.get(pair) or 0)  # type: ignore[literal-required]  # a key of it
            elif rate in what:
                found.setdefault(pair, None)
    return found


def rates(pairs: Mapping[Pair, Seen], full: Collection[Pair] = ()) -> dict[Pair, float]:
    """Bytes per second from a to b, the best that either saw. Leaves out what only b asked for: a single try may have
    hit a busy moment. Data that stalled on a link in `full` counts as slow."""
    found = {pair: what["rate"] for pair, what in pairs.items() if "rate" in what}
    best = {(a, b): max(rate, pairs.get((b, a), {}).get("rate_back", 0.0)) for (a, b), rate in found.items()}
    stalled = {pair: count / LARGE_S for pair, count in arrived(pairs).items() if count is not None and pair in full}
    return {**best, **stalled}


def round_trips(pairs: Mapping[Pair, Seen]) -> dict[Pair, float]:
    return {pair: what["round_trip_s"] for pair, what in pairs.items() if "round_trip_s" in what}


LEAST_NODES = 3
"""With two nodes there is one pair, and nothing to compare it with."""


def usual(values: Mapping[Pair, float], best: Callable[[Sequence[float]], float]) -> float | None:
    """What most nodes have with most others: the median over the nodes of each node's median. `best` is the median to
    use; median_high of rates prevents that one bad node of three sets the usual value."""
    of: dict[int, list[float]] = {}
    for pair, value in values.items():
        for node in pair:
            of.setdefault(node, []).append(value)
    return best([best(own) for own in of.values()]) if len(of) >= LEAST_NODES else None


def shared_addresses(nodes: Nodes, tried: Mapping[Pair, str]) -> dict[str, list[int]]:
    """Addresses that several nodes share but cannot reach each other by; nodes on one host can."""
    having: dict[str, list[int]] = {}
    for rank, reading in nodes.items():
        if reading["address"]:
            having.setdefault(reading["address"], []).append(rank)
    broken = {a for (a, b), error in tried.items() if error and nodes[a]["address"] == nodes[b]["address"]}
    return {address: ranks for address, ranks in having.items() if len(ranks) > 1 and broken & set(ranks)}
