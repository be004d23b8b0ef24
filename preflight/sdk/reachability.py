"""Why a host cannot reach another: the cause and its fix, in words."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from preflight.core.vote import vote
from preflight.sdk import tcp
from preflight.sdk.tcp import Connection, Reach

CURES = {
    "refused": "Is it started there? On that host: ss -ltnp 'sport = :{port}'; a firewall may refuse, too: iptables "
    "-S, nft list ruleset.",
    "filtered": "A firewall on the way drops packets, or the host is down: ping {address}; on both hosts iptables -S, "
    "nft list ruleset; in a cloud, see the security groups. Open all TCP ports between the nodes, not only {port}. If "
    "other hosts get through: does another one have this host's address (arping -D)?",
    "no_route": "Here: ip route get {address}; ip neigh show {address}. A firewall that rejects says so, too: on both "
    "hosts iptables -S, nft list ruleset.",
    "reset": "Something on the way breaks connections: check the firewalls and proxies between the hosts.",
    "other": "Here: nc -vz {address} {port}; ip addr; check the firewalls on the way (iptables -S, nft list ruleset).",
}
"""Fixes by `Connection["kind"]`."""


def describe(failed: Sequence[Connection]) -> str:
    """ "10.0.0.1 (connection refused after 0.0 s)", or several of these."""
    return ", ".join(
        f"{connection['address']} ({connection['error']} after {connection['seconds']:.1f} s)" for connection in failed
    )


def why(reach: Reach, name: str, port: int) -> str:
    """Why there is no connection, in a few words; "" if there is one."""
    if reach["unresolved"]:
        return f"{name} does not resolve here: {reach['unresolved']}"
    if not reach["connections"]:
        return f"no address of {name} came in time" if reach["resolved_s"] is None else f"{name} has no address here"
    if tcp.used(reach["connections"]):
        return ""
    loopback = all(tcp.is_loopback(connection["address"]) for connection in reach["connections"])
    return f"no connection to port {port} of {describe(reach['connections'])}" + (
        f": {name} is this host itself here" if loopback else ""
    )


def differing(
    known: Mapping[int, Sequence[Connection]], name: str, called: Callable[[Sequence[int]], str]
) -> Iterator[tuple[int | None, str]]:
    """Yields (culprit, sentence) if a name has different addresses on some nodes; the culprit is None if either side
    may be wrong. `called` names nodes by number. Judged by family: to know an IPv6 address too does no harm."""
    for is_ipv6 in (False, True):
        of = {number: tcp.addresses(connections, is_ipv6) for number, connections in known.items()}
        votes = vote({number: addresses for number, addresses in of.items() if addresses})
        if votes.unanimous or set.intersection(*map(set, votes.ranks_of)):
            continue
        for number, addresses in votes.odd():
            usual = f"{' '.join(votes.usual)} as on {votes.share('node')}"
            yield number, f"{name} is {' '.join(addresses)}, expected {usual}"
        if not votes.decided:
            sides = "; ".join(f"{' '.join(value)} on {called(who)}" for value, who in votes.ranks_of.items())
            yield None, f"{name} is {sides}; expected the same on all nodes"
