"""Rendezvous: MASTER_ADDR is the same host for all nodes, all connect to it quickly, and name look-ups are fast.

One rank per node resolves MASTER_ADDR, opens a connection to MASTER_PORT on each address, and times the reverse
look-ups of torch's store: a client looks up the name of the server's address, and the server, in its only thread, that
of every client's. Also checks where gloo would listen: on the address of the host's own name.
"""

import ipaddress
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from preflight.check import Action, Code, Context, Finding, Level, Plan, Run, Scope, Skip, option, ranges, words
from preflight.sdk import reachability, tcp

PLAN = Plan(Scope.NODE, Level.QUICK, deadline_s=20, estimate_s=0.1)

SLOW_LOOK_UP_S = option(float, 0.5, "warn if looking up a name takes this many seconds")
"""An answer takes milliseconds; a lost one costs 5 s (resolv.conf(5), `timeout`). A process of torch 2.13 stops looking
up names after the first failure, but not after a slow answer."""
FAR_S = option(float, 0.01, "warn if connecting takes this many seconds, and ten times as long as on most nodes")
"""Within a site a round trip takes a few milliseconds at most."""

UNRESOLVED = Code(
    "MASTER_ADDR does not resolve.", fix="On that node: getent ahosts {name}; add it to DNS or /etc/hosts."
)
UNREACHABLE = Code(
    "A node cannot connect to MASTER_PORT on MASTER_ADDR.",
    fix="Depends on the cause: refused, filtered, no route or reset; on that node: nc -vz {address} {port}.",
)
SILENT_ADDRESS = Code(
    "MASTER_ADDR has an address that does not answer, besides one that does.",
    fix="Set MASTER_ADDR to {usable}, or remove {address} from {name} (DNS, /etc/hosts).",
)
DIFFERENT_ADDRESSES = Code(
    "MASTER_ADDR resolves to different addresses on some nodes.",
    fix="On each node: getent ahosts {name}; fix DNS or /etc/hosts where it differs.",
)
LOOPBACK = Code(
    "A host's own name resolves to a loopback address, where gloo cannot be reached.",
    fix="Give that name the host's real address in its /etc/hosts (cloud-init: manage_etc_hosts: false), or set "
    "GLOO_SOCKET_IFNAME to the interface that joins the nodes.",
)
SLOW_CONNECT = Code(
    "Connecting to MASTER_ADDR takes much longer than on the other nodes.",
    fix="On that node: tracepath {address}; check its route, and what saturates its link (ip -s link).",
    action=Action.NONE,
)
SLOW_NAME = Code(
    "Resolving MASTER_ADDR takes long.",
    fix="On that node: time getent ahosts {name}; fix /etc/resolv.conf, or set MASTER_ADDR to an address.",
)
SLOW_REVERSE = Code(
    "Looking up the name of an address takes long; torch's store waits for it.",
    fix="On that node: time getent hosts {address}; fix /etc/resolv.conf, or add '{address} NAME' to /etc/hosts.",
)

MOST_CLIENTS = 16
"""The most clients to look up: enough to show a fault of a DNS server."""


class Facts(tcp.Reach):
    name: str
    port: int
    interface: str
    looked_up_s: dict[str, float | None]
    """Seconds by address, as torch's store looks them up."""
    patience_s: float
    gloo_address: str | None
    """None if unknown, or GLOO_SOCKET_IFNAME names an interface."""


def measure(ctx: Context) -> Facts:
    if ctx.endpoint is None:
        raise Skip("there is no launcher, so there is no MASTER_ADDR to connect to")
    name, port = ctx.endpoint
    patience_s = ctx.deadline_s / 5
    reach = tcp.reach(name, port, patience_s, ctx.doing)
    used = tcp.used(reach["connections"])
    ctx.doing("looking up names")
    asked = [tcp.mapped(used["address"]), *tcp.clients_of(port, MOST_CLIENTS)] if used else []
    seconds = tcp.in_time({address: partial(tcp.look_up, address) for address in asked}, patience_s)
    named = len(ctx.environ.get("GLOO_SOCKET_IFNAME", "")) > 1  # torch treats a shorter value as not set
    gloo = {} if named else {"gloo": partial(tcp.gloo_address, socket.gethostname())}
    return {
        "name": name,
        "port": port,
        **reach,
        "interface": tcp.interface_of(used["source"]) if used else "",
        "looked_up_s": {address: seconds.get(address) for address in asked},
        "patience_s": patience_s,
        "gloo_address": tcp.in_time(gloo, patience_s).get("gloo"),
    }


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    remote = {rank: reading for rank, reading in facts.items() if not _is_masters(reading)}
    several_hosts = len(facts) > 1 and any(tcp.used(reading["connections"]) for reading in remote.values())
    for rank, reading in facts.items():
        node = run.job.node_of(rank).node
        yield from _look_ups(reading, node, run)
    if several_hosts:
        yield from _loopback(facts, run)
    yield from _failures(facts, run)
    yield from _differing(remote, run)
    yield from _far(remote, run)


def summarize(facts: Mapping[int, Facts], _run: Run) -> str:
    first = next(iter(facts.values()))
    used = [connection for reading in facts.values() if (connection := tcp.used(reading["connections"]))]
    if not used:
        return f"{first['name']}:{first['port']} was not reached"
    interfaces = ", ".join(sorted({reading["interface"] for reading in facts.values()} - {""}))
    slowest = words.duration(max(connection["seconds"] for connection in used))
    of = ranges.count(len(used), "node")
    return f"{of} reached {first['name']}:{first['port']} in at most {slowest} over {interfaces or '?'}"


def _is_masters(reading: Facts) -> bool:
    """Whether this is the store's host: it reaches itself, from the same address or over loopback."""
    used = tcp.used(reading["connections"])
    return used is not None and (tcp.is_loopback(used["address"]) or used["address"] == used["source"])


def _look_ups(reading: Facts, node: str, run: Run) -> Iterator[Finding]:
    name, limit = reading["name"], run[SLOW_LOOK_UP_S]
    if reading["unresolved"]:
        text = f"{name} does not resolve: {reading['unresolved']}; expected an address"
        yield UNRESOLVED.fail(text, node=node, evidence={"name": name})
    elif reading["resolved_s"] is None or reading["resolved_s"] >= limit:
        text = f"resolving {name} {_took(reading['resolved_s'], reading)}, expected less than {limit:g} s"
        yield SLOW_NAME.warn(text, node=node, evidence={"name": name})
    if slow := tcp.slow(reading["looked_up_s"], limit):
        address, took = next(iter(slow.items()))
        text = f"looking up the name of {tcp.plain(address)} {_took(took, reading)}, expected less than {limit:g} s"
        others = f"; so for {len(slow)} of {len(reading['looked_up_s'])} addresses" if len(slow) > 1 else ""
        yield SLOW_REVERSE.warn(text + others, node=node, evidence={"address": address, "slow": sorted(slow)})


def _took(seconds: float | None, reading: Facts) -> str:
    within = words.duration(reading["patience_s"] if seconds is None else seconds)
    return f"did not end within {within}" if seconds is None else f"took {within}"


def _loopback(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Loopback addresses of hosts' own names, which only gloo looks up."""
    listens = {
        rank: (_place(rank, reading), reading["gloo_address"])
        for rank, reading in facts.items()
        if reading["gloo_address"]
    }
    bad = {rank: address for rank, (_, address) in listens.items() if tcp.is_loopback(address)}
    found = LOOPBACK.warn if run.job.backend == "gloo" else LOOPBACK.info
    if run.job.backend == "gloo" and any(_goes_wrong(*listens[rank], listens.values()) for rank in bad):
        found = LOOPBACK.fail
    text = "gloo listens on {}, to which the host's own name resolves, expected an address that other nodes reach"
    if bad and len(bad) == len(facts):
        address = next(iter(bad.values()))
        yield found(f"{text.format(address)}; the same on all {len(bad):,} nodes", evidence={"address": address})
        return
    for rank, address in bad.items():
        yield found(text.format(address), node=run.job.node_of(rank).node, evidence={"address": address})


def _place(rank: int, reading: Facts) -> str:
    """An id that is equal for nodes on one host."""
    used = tcp.used(reading["connections"])
    return "the store's" if _is_masters(reading) else used["source"] if used else f"that of rank {rank}"


def _goes_wrong(place: str, own: str, others: Iterable[tuple[str, str]]) -> bool:
    """Whether gloo cannot connect this loopback address with other hosts' and runs into its timeout. In each pair it
    connects from the greater address to the smaller, and refuses two families (Device::isInitiator in
    gloo/transport/tcp/device.cc): 127.0.1.1 reaches 10.0.0.1, but 192.168.0.1 cannot reach 127.0.1.1."""
    mine = ipaddress.ip_address(own)
    for where, text in others:
        theirs = ipaddress.ip_address(text.partition("%")[0])
        is_smaller = theirs.version == mine.version and theirs.packed < mine.packed
        if where != place and (tcp.is_loopback(text) or not is_smaller):
            return True
    return False


def _failures(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Also warns about a second address that is silent: a client that starts before the store goes on to it, and waits
    there for its whole timeout (seen with torch 2.13). One that refuses does no harm."""
    bad: dict[tuple[str, str, bool], dict[int, tcp.Connection]] = {}
    for rank, reading in facts.items():
        reached = tcp.used(reading["connections"]) is not None
        for connection in reading["connections"]:
            if tcp.is_silent(connection) or (connection["error"] and not reached):
                bad.setdefault((connection["address"], connection["kind"], reached), {})[rank] = connection
    for (address, _, _), failed in bad.items():
        for askers, where in _named(list(failed), len(facts), run):
            reading, first = facts[askers[0]], failed[askers[0]]
            evidence = {"name": reading["name"], "address": address, "port": reading["port"]}
            why = f"{first['error']} after {words.duration(first['seconds'])}"
            at = f"{reading['name']} at {address}, port {reading['port']}"
            text = f"{_nodes(askers, run)} cannot connect to {at} ({why})"
            if used := tcp.used(reading["connections"]):
                evidence["usable"] = used["address"]
                text += f", expected a connection as to {used['address']}"
                yield SILENT_ADDRESS.warn(text, evidence=evidence, **where)
            else:
                expected = f"{text}, expected a connection as preflight has"
                yield UNREACHABLE.fail(expected, evidence=evidence, fix=reachability.CURES[first["kind"]], **where)


def _named(bad: Sequence[int], of: int, run: Run) -> Iterator[tuple[Sequence[int], dict[str, Any]]]:
    """(ranks, where) of each finding: one per node if they are the minority. Else the fault may be the others', and no
    node is named."""
    if 2 * len(bad) < of:
        yield from (([rank], {"node": run.job.node_of(rank).node}) for rank in bad)
    elif bad:
        yield bad, {"variable": "MASTER_ADDR", "noticed_by": tuple(bad)}


def _nodes(ranks_: Sequence[int], run: Run, most: int = 3) -> str:
    return words.some((run.job.node_of(rank).node for rank in ranks_), most)


def _differing(remote: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """Nodes that resolve MASTER_ADDR differently; the store's own host may know itself by other addresses."""
    known = {rank: reading["connections"] for rank, reading in remote.items()}
    name = next((reading["name"] for reading in remote.values()), "")
    for rank, text in reachability.differing(known, name, lambda who: _nodes(who, run)):
        where = {} if rank is None else {"node": run.job.node_of(rank).node}
        yield DIFFERENT_ADDRESSES.warn(text, evidence={"name": name}, **where)


def _far(remote: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    used = {rank: connection for rank, reading in remote.items() if (connection := tcp.used(reading["connections"]))}
    if len(used) < 2:
        return
    usual = sorted(connection["seconds"] for connection in used.values())[(len(used) - 1) // 2]
    for rank, connection in used.items():
        if connection["seconds"] >= max(run[FAR_S], 10 * usual):
            took = f"connecting to {connection['address']} takes {words.duration(connection['seconds'])}"
            text = f"{took}, expected about {words.duration(usual)} as on most nodes"
            evidence = {"address": connection["address"]}
            yield SLOW_CONNECT.warn(text, node=run.job.node_of(rank).node, evidence=evidence)
