"""Mesh: every node reaches every other on the ports that NCCL and gloo use, also with large messages, equally fast.

One rank per node listens on the address that the backend will choose, on a port that the kernel assigns. All nodes
connect to all others; then, in rounds with one partner each, they time round trips, 1 MiB each way and two streams.
Pairs that seem slow are timed again after all rounds: busy cores look like a slow link for a moment. Where the kernel
has resent what did not arrive (TCP_INFO), losses are counted again, a few packets at a time, which fill no queue. Above
64 nodes each node has a subset of partners, spread over all. A token from the job's store lets nodes in.
"""

import math
import socket
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from preflight.check import (
    Action,
    After,
    Code,
    Context,
    Finding,
    Job,
    Level,
    NotApplicable,
    Plan,
    Run,
    Scope,
    Severity,
    Skip,
    option,
    ranges,
    words,
)
from preflight.checks.net.mesh import losses, pair_tables, timeouts
from preflight.checks.net.mesh.messages import PairTrouble, evidence_of
from preflight.checks.net.mesh.pair_tables import Facts, Nodes, Seen
from preflight.checks.net.shared import links, packet_counters, port_selection
from preflight.nccl import interface_rules
from preflight.sdk import slurm
from preflight.sdk.pairs import Pair, Wording
from preflight.sdk.pairs import rounds as pair_rounds


def _deadline(job: Job) -> float:
    """A round takes a tenth of a second on sound hosts, and a second if one drops large messages."""
    return 40.0 + 0.6 * len(pair_rounds(len(job.nodes), timeouts.ALL_PAIRS))


RDMA = "net.rdma"
PLAN = Plan(Scope.WORLD, Level.STANDARD, deadline_s=_deadline, estimate_s=2.0, after={"net.rdma": After.READS})
PARTS = (losses,)

MUCH_SLOWER = option(float, 4.0, "warn if data between two nodes is this many times slower than usual")
"""A bad link is far slower: it fell back to 1/10 of its rate, has the wrong duplex, or loses packets. Sharing a link or
a busy core only halves a rate; the best of two streams counts, or of eight if they are slow."""
FAR_S = option(float, 0.01, "warn if a round trip takes this many seconds, and ten times as long as usual")
"""Within a site a round trip takes a few milliseconds at most; see net.rendezvous."""
MUCH_FARTHER = 10

_OPEN = (
    "On {to}: let all TCP in from {from} at its ports above 1023 (iptables -S, nft list ruleset, security groups); on "
    "{from}: check the rules for outgoing traffic. To test: on {to} `nc -l 40000`, on {from} `nc -vz {address} 40000`."
)
NO_ADDRESS = Code(
    "A node has no address for other nodes to connect to.",
    fix="On that node: ip -br address; set NCCL_SOCKET_IFNAME (gloo: GLOO_SOCKET_IFNAME) to an interface that is up.",
)
LOCAL_ERROR = Code(
    "A node's own system prevents it from connecting to other nodes.",
    fix="On {from}: ss -s and sysctl net.ipv4.ip_local_port_range (no port left), ulimit -n (no file left), "
    "free -m (no memory left), ip route get {address} (a blackhole, a prohibition).",
)
SAME_ADDRESS = Code(
    "Nodes share an address; each should have its own.",
    fix="Set NCCL_SOCKET_IFNAME (gloo: GLOO_SOCKET_IFNAME) to an interface that has a different address on each "
    "node: on these {interface} has {address} (ip -br address).",
)
FILTERED = Code("Connections to an ephemeral port get no answer: something on the way filters them.", fix=_OPEN)
REFUSED = Code(
    "Connections to an ephemeral port are refused, though a node listens there: a firewall rejects them.", fix=_OPEN
)
RESET = Code(
    "A connection is established, then reset, though the node has not closed it.",
    fix="Find what resets connections between {from} and {to}: firewalls that inspect traffic, connection tracking "
    "(conntrack -S; nf_conntrack: table full in dmesg), load balancers, service meshes (sidecars).",
)
NO_ROUTE = Code(
    "There is no route to a node, or no host has its address.",
    fix="On {from}: ip route get {address}; ip neigh show {address}. On {to}: ip -br address. A firewall that rejects "
    "with icmp-host-prohibited looks the same (iptables -S).",
)
STRANGER = Code(
    "Something other than the node answers at its address.",
    fix="On {from}: ip neigh show {address}; arping -D {address} on {to} shows a second owner; see load balancers and "
    "service meshes on the way.",
)
SILENT = Code(
    "A connection is established, but then no data arrives.",
    fix="On {from}: ss -ti dst {address}; check for firewalls with connection tracking on the way, and whether {to} "
    "is stalled (uptime, dmesg).",
    action=Action.NONE,
)
MTU = Code(
    "Small messages pass between nodes, but large ones stall: a wrong MTU on the way, or a saturated link.",
    fix="On {from}: ping -M do -s 1472 {address} (8972 for an MTU of 9000), smaller until it passes; give the "
    "interfaces of all nodes, and the switch ports, the same MTU (ip link set {interface} mtu ...), and let ICMP "
    "fragmentation-needed pass.",
    see=("net.interfaces",),
)
_ENDS = (
    "On {from} and {to}: ethtool {interface} (speed, duplex), ethtool -S {interface} (errors, drops), tc -s qdisc; "
    "to time it: iperf3 -s on {to}, iperf3 -c {address} on {from}."
)
_SEE = ("net.interfaces",)
SLOW = Code("Data between nodes is much slower than usual in this job.", _ENDS, Action.NONE, see=_SEE)
ASYMMETRIC = Code("Data between two nodes is much slower one way than the other.", _ENDS, Action.NONE, see=_SEE)
HIGH_LATENCY = Code(
    "Round trips between nodes take much longer than usual in this job.",
    fix="On {from}: tracepath {address}; see what saturates the link (ip -s link, tc -s qdisc).",
    action=Action.NONE,
)
_UPLINKS = (
    "Check the uplinks between the sides: speed, errors, and how far they are oversubscribed by design; to "
    "time it: iperf3 -s on {to}, iperf3 -c {address} on {from}."
)
UNTRIED = Code(
    "There was no time for all pairs of nodes.",
    fix="Fix the other findings, or give the run more time (--deadline); then run again: --only net.mesh.",
    action=Action.NONE,
)

BUDGET = 0.6
"""The share of the deadline to use. The store's client gives up at 0.7 of it."""


def measure(ctx: Context) -> Facts:
    from preflight.checks.net.mesh import connections

    ranks = ctx.job.one_per_node(ctx.members)
    if len(ctx.job.nodes) < 2:
        raise NotApplicable("one node: there is no pair")
    if len(ranks) < 2:
        raise Skip("one node is left: there is no pair")
    if ctx.rank not in ranks:
        return _facts(False)
    ctx.doing("choosing an address")
    interface, address, server, why = _listener(ctx)
    store, before = ctx.store(), packet_counters.of_one(interface)
    with ctx.collective("pairs of nodes", ranges.count(len(ranks), "node")):
        ends_s = time.monotonic() + BUDGET * ctx.deadline_s
        if server is None:
            connections.stand_aside(store, ranks.index(ctx.rank))
            return _facts(True, interface=interface, address=address, why=why)
        names = [ctx.job.node_of(rank).node for rank in ranks]
        met = connections.hold(store, ranks, ctx.rank, server, interface, ends_s, ctx.doing, names)
    rose = packet_counters.risen(before, packet_counters.of_one(interface))
    seen = {"pairs": connections.as_facts(met.tried, ranks), "cut": met.cut, "rose": rose}
    return _facts(
        True,
        interface=interface,
        address=address,
        mtu=links.mtu(interface),
        switches=slurm.switches(ctx.environ),
        **seen,
    )


def _facts(takes_part: bool, **more: Any) -> Facts:
    empty: Facts = {
        "takes_part": takes_part, "interface": "", "address": "", "why": "", "mtu": None, "switches": "",
        "cut": False, "pairs": {},
    }  # fmt: skip
    return {**empty, **more}  # type: ignore[typeddict-item]  # keys of its own


def _listener(ctx: Context) -> tuple[str, str, socket.socket | None, str]:
    """(interface, address, a socket that listens there, or why there is none)."""
    from preflight.checks.net.mesh import connections

    try:
        addresses = interface_rules.by(ctx.job.backend, ctx.environ)
    except OSError as error:
        return "", "", None, f"the kernel does not list the interfaces ({error.strerror})"
    if not addresses:
        return "", "", None, f"{ctx.job.backend} finds no address on this host"
    interface, address = addresses[0]["interface"], addresses[0]["address"]
    try:
        return interface, address, connections.listen(address, interface), ""
    except OSError as error:
        return interface, address, None, f"listening on {address} fails ({(error.strerror or str(error)).lower()})"


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    nodes = pair_tables.of_nodes(facts)
    pairs = pair_tables.seen(nodes)
    for rank, reading in nodes.items():
        if reading["why"]:
            text = f"{reading['why']}, expected a socket that other nodes can connect to"
            yield NO_ADDRESS.fail(text, node=run.job.node_of(rank).node, interface=reading["interface"] or None)
    for rank, why in pair_tables.own_errors(pairs).items():
        yield _own_error(rank, why, nodes, run)
    tried = pair_tables.connections(nodes, pairs)
    shared = pair_tables.shared_addresses(nodes, tried)
    for address, ranks in shared.items():
        yield _same_address(address, ranks, nodes, run)
    unsure = {rank for ranks in shared.values() for rank in ranks}
    places, interfaces = ({rank: place[key] for rank, place in nodes.items()} for key in ("switches", "interface"))
    sure = {pair: error for pair, error in tried.items() if not unsure & set(pair)}
    troubles = (_connections(sure, nodes), *_measured(pairs, nodes, run))
    found = [finding for trouble in troubles for finding in trouble.findings(run, places, interfaces)]
    yield from found or losses.unsure(pairs, run)
    if left := [pair for pair in pair_tables.untried(nodes, pairs) if not unsure & set(pair)]:
        yield _untried(left, pairs, run)


def _measured(pairs: Mapping[Pair, Seen], nodes: Nodes, run: Run) -> Iterator[PairTrouble]:
    """Large messages, losses, rates and round trips of connected pairs. If round trips are slow, but large packets
    pass, the link is saturated: then what stalls counts as slow, and loses packets. What loses packets is slow by
    that."""
    trips, arrived = pair_tables.round_trips(pairs), pair_tables.arrived(pairs)
    limit = _far_limit(trips, run)
    far = {way: trip for pair, trip in trips.items() if trip >= limit for way in (pair, pair[::-1])}
    full = {pair for pair, count in arrived.items() if pair in far and (count or 0) >= timeouts.PROGRESS}
    large = {pair: count for pair, count in arrived.items() if pair not in full}
    rates = pair_tables.rates(pairs, full)
    yield _large(large, far, nodes, run)
    losing = losses.found(pairs, nodes, {*far, *(pair for pair, count in arrived.items() if count is not None)}, run)
    yield losing
    cut_short = {pair[::-1] for pair, count in large.items() if count is not None}  # has one message only
    yield _rates({pair: rate for pair, rate in rates.items() if pair not in {*losing.bad, *cut_short}}, nodes, run)
    yield _far(trips, limit, nodes)


def _own_error(rank: int, why: Mapping[int, str], nodes: Nodes, run: Run) -> Finding:
    """A finding about a node's own system, which does not blame its partners."""
    node, others = run.job.node_of(rank).node, ranges.count(len(nodes[rank]["pairs"]), "other node")
    reasons = " or ".join(dict.fromkeys(why.values()))
    text = f"{node} cannot open connections to {len(why)} of {others}: its own system says {reasons}"
    evidence = {"from": node, "address": nodes[min(why)]["address"]}
    return LOCAL_ERROR.fail(f"{text}; expected connections on ephemeral ports", node=node, evidence=evidence)


def _is_by_rdma(nodes: Nodes, run: Run) -> bool:
    """Whether NCCL takes HCAs on all nodes, so that little goes over sockets. False if net.rdma did not run."""
    if run.job.backend != "nccl":
        return False
    seen = port_selection.nodes(run.facts("net.rdma"))
    return nodes.keys() <= {node.rank for node in seen if node.uses_verbs and node.taken}


def _same_address(address: str, ranks: Sequence[int], nodes: Nodes, run: Run) -> Finding:
    names = words.some(run.job.node_of(rank).node for rank in ranks)
    interface = nodes[ranks[0]]["interface"]
    text = f"{names} have the same address {address} ({interface}), so they cannot connect to each other"
    details = {"noticed_by": tuple(ranks), "evidence": {"address": address}, "interface": interface}
    return SAME_ADDRESS.fail(f"{text}; expected a different one on each node", **details)


def _untried(left: Sequence[Pair], pairs: Mapping[Pair, Seen], run: Run) -> Finding:
    a, b = (run.job.node_of(rank).node for rank in left[0])
    text = f"{len(left):,} of {ranges.count(len(pairs), 'ordered pair')} were not fully tested, such as {a} to {b}"
    return UNTRIED.warn(f"{text}; expected all within the {BUDGET * _deadline(run.job):.0f} s available")


KINDS = {
    "no_route": (NO_ROUTE, "no route to host"),
    "refused": (REFUSED, "refused, though the node listens there"),
    "reset": (RESET, "established, then reset"),
    "stranger": (STRANGER, "something other than the node answers"),
    "filtered": (FILTERED, f"no answer within {timeouts.CONNECT_S:g} s"),
    "silent": (SILENT, f"established, then no data for {timeouts.SILENT_S:g} s"),
}
"""The most telling kind comes first: if one node lacks a route to another, that one just hears nothing."""


def _connections(tried: Mapping[Pair, str], nodes: Nodes) -> PairTrouble:
    def kinds(bad: Sequence[Pair]) -> list[str]:
        """The most frequent first; ties in the order of KINDS."""
        listed = [tried[pair] for pair in bad]
        return sorted((kind for kind in KINDS if kind in listed), key=lambda kind: -listed.count(kind))

    def how(bad: Sequence[Pair]) -> str:
        addresses = {nodes[b]["address"] for _, b in bad}
        at = f" at {addresses.pop()}" if len(addresses) == 1 else ""
        return f"{', or '.join(KINDS[kind][1] for kind in kinds(bad))}{at}"

    return PairTrouble(
        list(tried), [pair for pair, error in tried.items() if error], Severity.FAIL,
        code=lambda bad: KINDS[kinds(bad)[0]][0], how=how,
        expected=lambda _: "connections on ephemeral ports, as the backend opens them",
        wording=Wording(
            sends="cannot connect to", receives="cannot be reached from",
            both="cannot connect to, nor be reached from,", either="cannot connect to, or be reached from,",
            pair="{a} cannot connect to {b}", sides="there are no connections between {a} and {b}",
        ),
        many="connections fail", evidence=evidence_of(nodes, {}),
    )  # fmt: skip


def _large(arrived: Mapping[Pair, int | None], far: Mapping[Pair, float], nodes: Nodes, run: Run) -> PairTrouble:
    """Pairs whose large messages stall. `far`: slow round trips, by pair."""

    def how(bad: Sequence[Pair]) -> str:
        most = max(arrived[pair] or 0 for pair in bad)
        count = f"{'at most ' * (len(bad) > 1)}{most:,}" if most else "none"
        text = f"{count} of {timeouts.LARGE:,} bytes arrive, while small messages pass"
        if not (slow := [far[pair] for pair in bad if pair in far]):
            return text
        trip = words.duration(min(slow)) + " or more" * (len(slow) > 1)
        return f"{text} and round trips take {trip}: a wrong MTU on the way, or a saturated link"

    def expected(bad: Sequence[Pair]) -> str:
        return f"all; {_mtus(sorted({node for pair in bad for node in pair}), nodes, run)}"

    return PairTrouble(
        list(arrived), [pair for pair, count in arrived.items() if count is not None], Severity.FAIL,
        code=lambda _: MTU, how=how, expected=expected,
        wording=Wording(
            sends="cannot send large messages to", receives="cannot receive large messages from",
            both="cannot exchange large messages with", pair="large messages from {a} to {b} stall",
            sides="large messages between {a} and {b} stall",
        ),
        many="large messages stall", evidence=evidence_of(nodes, arrived),
    )  # fmt: skip


def _mtus(ranks: Sequence[int], nodes: Nodes, run: Run) -> str:
    """ "MTU 1500 on node-0, node-1; 9000 on node-2", or the one that all have."""
    having: dict[int | None, list[str]] = {}
    for rank in ranks:
        having.setdefault(nodes[rank]["mtu"], []).append(run.job.node_of(rank).node)
    if len(having) == 1:
        return f"the MTU of their interfaces is {next(iter(having)) or 'unknown'}"
    sides = (f"{mtu or 'unknown'} on {words.some(names, 3)}" for mtu, names in having.items())
    return f"MTU {words.clauses(sides, 3)}"


def _rates(rates: Mapping[Pair, float], nodes: Nodes, run: Run) -> PairTrouble:
    """Compares rates with the usual one, and between two nodes one direction with the other."""
    factor, by_rdma = run[MUCH_SLOWER], _is_by_rdma(nodes, run)
    usual = pair_tables.usual(rates, statistics.median_high)
    bad = [pair for pair, rate in rates.items() if factor * rate < (usual or rates.get(pair[::-1], 0.0))]

    def how(some: Sequence[Pair]) -> str:
        return f"{words.rate(max(rates[pair] for pair in some))}{' at best' * (len(some) > 1)}"

    def expected(some: Sequence[Pair]) -> str:
        back = [rates[pair[::-1]] for pair in some if pair[::-1] in rates and pair[::-1] not in some]
        other = f"{words.rate(statistics.median(back))} as in the other direction" if back else ""
        about = f"about {words.rate(usual)} as usual{', or ' * bool(back)}{other}" if usual else f"about {other}"
        return about + " (NCCL's data uses RDMA)" * by_rdma

    return PairTrouble(
        list(rates), bad, Severity.INFO if by_rdma else Severity.WARN,
        code=lambda _: SLOW if usual else ASYMMETRIC, how=how, expected=expected,
        wording=Wording(
            sends="can send only slowly to", receives="can receive only slowly from",
            both="can exchange data only slowly with", pair="data from {a} to {b} is slow",
            sides="data between {a} and {b} is slow",
        ),
        many="data is slow", uplinks=_UPLINKS, evidence=evidence_of(nodes, rates),
    )  # fmt: skip


def _far_limit(trips: Mapping[Pair, float], run: Run) -> float:
    """In seconds; infinite if there is nothing to compare with."""
    usual = pair_tables.usual(trips, statistics.median_low)
    return math.inf if usual is None else max(run[FAR_S], MUCH_FARTHER * usual)


def _far(trips: Mapping[Pair, float], limit: float, nodes: Nodes) -> PairTrouble:
    usual = pair_tables.usual(trips, statistics.median_low) or 0.0

    def how(bad: Sequence[Pair]) -> str:
        return f"{words.duration(min(trips[pair] for pair in bad))}{' at least' * (len(bad) > 1)}"

    slow = "has slow round trips with"
    return PairTrouble(
        list(trips), [pair for pair, trip in trips.items() if trip >= limit], Severity.WARN,
        code=lambda _: HIGH_LATENCY, how=how, expected=lambda _: f"about {words.duration(usual)} as usual",
        wording=Wording(
            sends=slow, receives=slow, both=slow, pair="round trips from {a} to {b} are slow",
            sides="round trips between {a} and {b} are slow",
        ),
        many="round trips are slow", evidence=evidence_of(nodes, trips),
    )  # fmt: skip


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    nodes = pair_tables.of_nodes(facts)
    pairs = pair_tables.seen(nodes)
    rates, trips = sorted(pair_tables.rates(pairs).values()), sorted(pair_tables.round_trips(pairs).values())
    if not rates or not trips:
        return f"no pair of {ranges.count(len(nodes), 'node')} was measured"
    some = f", each with {len(pairs) // len(nodes)} others" if len(pairs) < len(nodes) * (len(nodes) - 1) else ""
    trip, rate = words.duration(statistics.median(trips)), words.rate(statistics.median(rates))
    of = f"{ranges.count(len(pairs), 'ordered pair')} of {ranges.count(len(nodes), 'node')}{some}"
    some = "" if all("sent" in what for what in pairs.values()) else "; not all kernels count what is lost"
    return f"{of}: round trip {trip}, {rate} median, {words.rate(rates[0])} at least{some}"
