"""Judges what the nodes saw of each other. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

from preflight.check import Finding, vote
from preflight.core import rank_ranges, words
from preflight.rendezvous import codes
from preflight.sdk import reachability, tcp
from preflight.sdk.tcp import Reach

SLOW_S = 0.5
"""An answer takes milliseconds; a lost one costs 5 s (resolv.conf(5), `timeout`)."""
LISTED = 8
"""Nodes that a sentence names."""


class NodeArrival(TypedDict):
    """What a node reports about itself when it has reached the endpoint."""

    node_rank: int
    nnodes: int
    name: str
    """Its host name."""
    full_name: str
    """socket.getfqdn(), which torchrun gives to the workers."""
    addresses: list[str]
    port: int
    """An ephemeral port at which it listens."""
    serves: bool | None
    """Whether torchrun would serve the endpoint's store there; None if unknown, or not asked."""
    nameless: str
    """Why torchrun could not even find that out: the system's message for the host's own name."""
    reach: Reach
    """Of the endpoint."""
    looked_up_s: dict[str, float | None]
    """By address, as torch's store looks them up; None if the lookup did not end in time."""


class Observations(TypedDict):
    """Everything that node 0 knows at the end."""

    host: str
    port: int
    backend: str
    """torchrun's --rdzv-backend: c10d or static."""
    waited_s: float
    arrivals: Mapping[int, NodeArrival]
    """By number, in the order in which they joined."""
    targets: Sequence[tuple[int, str]]
    """Nodes whose ephemeral ports were tried: number, and name."""
    left: Collection[int]
    """Numbers of nodes that ran out of time."""
    reached: Mapping[int, Sequence[Reach]]
    """By the number of the node that tried, one per target. Nodes that stopped responding are missing."""


def judge(seen: Observations) -> Iterator[Finding]:
    """Why torchrun would not start."""
    yield from _numbers(seen)
    yield from _addresses(seen)
    if seen["backend"] == "c10d":
        yield from _servers(seen)
    for arrival in _present(seen).values():
        yield from alone(arrival, seen["host"])
    for place, (target, name) in enumerate(seen["targets"]):
        reached = {number: reaches[place] for number, reaches in seen["reached"].items() if number != target}
        yield from _ports(seen["arrivals"], target, name, reached)


def _present(seen: Observations) -> dict[int, NodeArrival]:
    return {number: arrival for number, arrival in seen["arrivals"].items() if number in seen["reached"]}


def _numbers(seen: Observations) -> Iterator[Finding]:
    """Ranks and world sizes. A node that was started again joined twice, and only one of these stayed."""
    counted = _present(seen)
    holders: dict[int, list[NodeArrival]] = {}
    for arrival in counted.values():
        holders.setdefault(arrival["node_rank"], []).append(arrival)
    for rank, twins in holders.items():
        if len(twins) > 1:
            who = _each_once(sorted(f"{arrival['name']} ({source(arrival)})" for arrival in twins))
            text = f"{who} were started with one --node-rank, {rank}, expected a different one for each"
            yield codes.DUPLICATE_NODE_RANK.fail(text, variable="--node-rank")
    for number, arrival in seen["arrivals"].items():
        if arrival["node_rank"] not in holders:
            counted[number], holders[arrival["node_rank"]] = arrival, [arrival]
            if number not in seen["left"]:
                text = f"node {arrival['node_rank']} joined, then stopped responding before all had joined"
                yield codes.NODE_LOST.fail(f"{text}; expected it to wait", node=arrival["name"])
    votes = vote({number: arrival["nnodes"] for number, arrival in counted.items()})
    for number, nnodes in votes.odd():
        text = f"started with --nnodes {nnodes}, expected {votes.usual} as on {votes.share('node')}"
        yield codes.NNODES.fail(text, node=counted[number]["name"])
    if not votes.decided:
        names = {n: _each_once([counted[number]["name"] for number in who]) for n, who in votes.ranks_of.items()}
        sides = "; ".join(f"{nnodes} on {who}" for nnodes, who in names.items())
        yield codes.NNODES.fail(f"--nnodes is {sides}; expected the same on all nodes", variable="--nnodes")
    elif missing := set(range(votes.usual)) - set(holders):
        yield _never_came(missing, votes.usual, seen, holders)


def _never_came(
    missing: set[int], of: int, seen: Observations, holders: Mapping[int, Sequence[NodeArrival]]
) -> Finding:
    nodes = f"node{'s' if len(missing) > 1 else ''} {rank_ranges.to_text(missing).replace(',', ', ')}"
    joined = _each_once(f"{rank} ({arrivals[0]['name']})" for rank, arrivals in sorted(holders.items()))
    text = f"{nodes} did not join within {seen['waited_s']:.0f} s, expected all of {of:,} nodes; joined: {joined}"
    return codes.NEVER_JOINED.fail(text)


def _addresses(seen: Observations) -> Iterator[Finding]:
    """Leaves out node 0, which may know itself by other addresses."""
    present = {number: arrival for number, arrival in _present(seen).items() if arrival["node_rank"]}
    known = {number: arrival["reach"]["connections"] for number, arrival in present.items()}
    for number, text in reachability.differing(
        known, seen["host"], lambda who: _each_once([present[i]["name"] for i in who])
    ):
        where = {} if number is None else {"node": present[number]["name"]}
        yield codes.DIFFERENT_ADDRESSES.warn(text, evidence={"name": seen["host"]}, **where)


def _servers(seen: Observations) -> Iterator[Finding]:
    """torch decides by host names and addresses which node serves the store. (A second agent on node 0's machine finds
    the port taken, and becomes a client.)"""
    evidence = {"name": seen["host"]}
    for arrival in _present(seen).values():
        if arrival["nameless"]:
            text = f"torchrun looks up the node's own name, {arrival['name']}, and fails: {arrival['nameless']}"
            details = {"node": arrival["name"], "evidence": {"name": arrival["name"]}}
            yield codes.HOSTNAME_UNRESOLVED.fail(f"{text}; expected it to resolve there", **details)
        here, used = arrival["node_rank"] == 0, tcp.used(arrival["reach"]["connections"])
        elsewhere = used is not None and used["address"] != used["source"]
        if here and arrival["serves"] is False:
            text = f"torchrun would not take this node for {seen['host']}, expected node 0 to serve the store"
            yield codes.NOT_HOST.fail(text, node=arrival["name"], evidence=evidence)
        elif not here and elsewhere and arrival["serves"]:
            text = f"torchrun would take this node for {seen['host']}, expected only node 0 to serve the store"
            yield codes.SPLIT.fail(text, node=arrival["name"], evidence=evidence)


def alone(arrival: NodeArrival, host: str) -> Iterator[Finding]:
    """What a node notices by itself, and what does not stop it."""
    node, reach = arrival["name"], arrival["reach"]
    used = tcp.used(reach["connections"])
    for connection in reach["connections"]:
        if used and tcp.is_silent(connection):
            silent = reachability.describe([connection])
            text = f"no connection to {host} at {silent}, expected one as to {used['address']}"
            evidence = {"name": host, "usable": used["address"], "address": connection["address"]}
            yield codes.SILENT_ADDRESS.warn(text, node=node, evidence=evidence)
    if (seconds := reach["resolved_s"]) is not None and seconds >= SLOW_S:
        text = f"resolving {host} took {seconds:.1f} s, expected less than {SLOW_S:g} s"
        yield codes.SLOW_NAME.warn(text, node=node, evidence={"name": host})
    slow = tcp.slow(arrival["looked_up_s"], SLOW_S)
    for address, took in list(slow.items())[:1]:
        text = "did not end in time" if took is None else f"took {took:.1f} s"
        more = f"; the same for {len(slow)} of {len(arrival['looked_up_s'])} addresses" if len(slow) > 1 else ""
        text = f"looking up the name of {tcp.plain(address)} {text}, expected less than {SLOW_S:g} s{more}"
        yield codes.SLOW_REVERSE.warn(text, node=node, evidence={"address": address})


def unreached(reach: Reach, host: str, port: int, node: str) -> Finding:
    evidence = {"name": host, "port": port}
    connections = reach["connections"]
    text = f"{reachability.why(reach, host, port)}, expected node 0's store at {host}:{port}"
    if not connections:
        return codes.UNRESOLVED.fail(text, node=node, evidence=evidence)
    evidence["address"] = connections[0]["address"]
    if all(tcp.is_loopback(connection["address"]) for connection in connections):
        return codes.LOOPBACK.fail(text, node=node, evidence=evidence)
    return codes.BY_KIND[connections[0]["kind"]].fail(text, node=node, evidence=evidence)


def _ports(
    arrivals: Mapping[int, NodeArrival], target: int, name: str, reached: Mapping[int, Reach]
) -> Iterator[Finding]:
    """If more than half do not reach the target, the target is to blame; otherwise each node that does not."""
    there = arrivals[target]
    by_rank = sorted(reached, key=lambda number: arrivals[number]["node_rank"])
    failed = [number for number in by_rank if not tcp.used(reached[number]["connections"])]
    if len(reached) > 1 and 2 * len(failed) > len(reached):
        groups, where = [failed], {"node": there["name"]}
    else:
        groups = [[number] for number in failed] if len(failed) <= LISTED else [failed]
        where = {"peer_node": there["name"]}
    for group in groups:
        askers, reach = _each_once([arrivals[number]["name"] for number in group]), reached[group[0]]
        led = {connection["address"] for connection in reach["connections"]} & set(there["addresses"])
        code, evidence = codes.WORKERS_PORT if led else codes.WORKERS_NAME, {"name": name}
        text = f"{askers}: {reachability.why(reach, name, there['port'])}, expected to reach {there['name']} there"
        here = {"node": askers} if len(group) == 1 and "node" not in where else {}
        yield code.fail(text, evidence=evidence, **here, **where)


def source(arrival: NodeArrival) -> str:
    """The address that it connects from."""
    used = tcp.used(arrival["reach"]["connections"])
    return used["source"] if used else "?"


def _each_once(names: Iterable[str]) -> str:
    return words.some(dict.fromkeys(names), LISTED)
