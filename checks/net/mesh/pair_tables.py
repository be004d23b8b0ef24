"""What the nodes of net.mesh saw of each other, by ordered pair: pure, from facts to tables.

A pair (a, b) is a connection that a opened to b, or data that a sent to b; nodes are known by the rank that measured.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypedDict

from preflight.checks.net.mesh.timeouts import LARGE_S
from preflight.sdk.pairs import Pair

NOT_TRIED = ("late", "left")
OWN = "other"
"""An error of the node's own system, for want of ports or memory: it says nothing of the partner."""
BY_THE_END = ("reset", "silent")
"""May also come of a partner that had no time left, and went."""


class Seen(TypedDict, total=False):
    """Of one partner; see probe.Tried."""

    error: str
    why: str
    round_trip_s: float
    rate: float
    rate_back: float
    stalled: int
    stalled_back: int


class Facts(TypedDict):
    """Of a node; `takes_part` is False on the ranks that leave it to another one of their node."""

    takes_part: bool
    interface: str
    address: str
    why: str
    """Why it does not listen, and has no pairs."""
    mtu: int | None
    """Bytes, of the interface."""
    switches: str
    """From the top down: "spine.leaf-1"; "" where Slurm does not say."""
    cut: bool
    """No time was left for all pairs."""
    pairs: dict[str, Seen]
    """By the rank that measured on the partner's node."""


Nodes = Mapping[int, Facts]


def of_nodes(facts: Nodes) -> dict[int, Facts]:
    return {rank: reading for rank, reading in facts.items() if reading["takes_part"]}


def seen(nodes: Nodes) -> dict[Pair, Seen]:
    """Of pairs of which both nodes have ended well, and listen: what a dead one leaves is not the network's fault."""
    found: dict[Pair, Seen] = {}
    for rank, reading in nodes.items():
        for partner, what in reading["pairs"].items():
            other = nodes.get(int(partner))
            if other and not other["why"]:
                found[rank, int(partner)] = what
    return found


def connections(nodes: Nodes, pairs: Mapping[Pair, Seen]) -> dict[Pair, str]:
    """What was wrong with each connection that was tried; "" where nothing was."""
    return {pair: what.get("error", "") for pair, what in pairs.items() if _is_tried(nodes, pair, what)}


def _is_tried(nodes: Nodes, pair: Pair, what: Seen) -> bool:
    error = what.get("error", "")
    return error not in (*NOT_TRIED, OWN) and not (error in BY_THE_END and nodes[pair[1]]["cut"])


def untried(nodes: Nodes, pairs: Mapping[Pair, Seen]) -> list[Pair]:
    """Without an answer, and without an error that would explain it."""
    tried = connections(nodes, pairs)
    known = {pair for pair, what in pairs.items() if what.get("error") == OWN or "round_trip_s" in what}
    return [pair for pair in pairs if not (tried.get(pair) or pair in known)]


def own_errors(pairs: Mapping[Pair, Seen]) -> dict[int, dict[int, str]]:
    """Whom a node could not connect to by its own fault, and what its system said of it."""
    found: dict[int, dict[int, str]] = {}
    for (a, b), what in pairs.items():
        if what.get("error") == OWN:
            found.setdefault(a, {})[b] = what.get("why", "")
    return found


def arrived(pairs: Mapping[Pair, Seen]) -> dict[Pair, int | None]:
    """Of 1 MiB that a sent to b, how many bytes arrived before it stalled, at most; None: all. Only where it was
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
    """Bytes a second from a to b, the best that either of them has seen. What only b has asked for is left out: it is
    one try, and may have met a busy moment. What stalled on a link that is `full` was slow."""
    found = {pair: what["rate"] for pair, what in pairs.items() if "rate" in what}
    best = {(a, b): max(rate, pairs.get((b, a), {}).get("rate_back", 0.0)) for (a, b), rate in found.items()}
    stalled = {pair: count / LARGE_S for pair, count in arrived(pairs).items() if count is not None and pair in full}
    return {**best, **stalled}


def round_trips(pairs: Mapping[Pair, Seen]) -> dict[Pair, float]:
    return {pair: what["round_trip_s"] for pair, what in pairs.items() if "round_trip_s" in what}


LEAST_NODES = 3
"""With two there is one pair, and nothing to compare it with."""


def usual(values: Mapping[Pair, float], best: Callable[[Sequence[float]], float]) -> float | None:
    """What most nodes have with most others: the median over the nodes of each one's own. With `best`
    (statistics.median_high of rates) one node of three that is bad with both others is not the usual one."""
    of: dict[int, list[float]] = {}
    for pair, value in values.items():
        for node in pair:
            of.setdefault(node, []).append(value)
    return best([best(own) for own in of.values()]) if len(of) >= LEAST_NODES else None


def shared_addresses(nodes: Nodes, tried: Mapping[Pair, str]) -> dict[str, list[int]]:
    """Addresses that several nodes have, and do not reach each other by: several nodes of one host do."""
    having: dict[str, list[int]] = {}
    for rank, reading in nodes.items():
        if reading["address"]:
            having.setdefault(reading["address"], []).append(rank)
    broken = {a for (a, b), error in tried.items() if error and nodes[a]["address"] == nodes[b]["address"]}
    return {address: ranks for address, ranks in having.items() if len(ranks) > 1 and broken & set(ranks)}
