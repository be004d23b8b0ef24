"""Why a host does not reach another: the cause and its cure, in words."""

from collections.abc import Sequence

from preflight.rendezvous import tcp
from preflight.rendezvous.tcp import Connection, Reach

CURES = {
    "refused": "Is it started there? On that host: ss -ltnp 'sport = :{port}'; a firewall may say no, too: iptables "
    "-S, nft list ruleset.",
    "filtered": "A firewall on the way drops, or the host is down: ping {address}; on both hosts iptables -S, nft list "
    "ruleset; in a cloud, see the security groups. Open all TCP ports between the nodes, not only {port}. If other "
    "hosts get through: does another one have this host's address (arping -D)?",
    "no_route": "Here: ip route get {address}; ip neigh show {address}. A firewall that rejects says so, too: on both "
    "hosts iptables -S, nft list ruleset.",
    "reset": "Something on the way breaks connections: see the firewalls and proxies between the hosts.",
    "other": "Here: nc -vz {address} {port}; ip addr; see the firewalls on the way (iptables -S, nft list ruleset).",
}
"""By `Connection["kind"]`."""


def told(failed: Sequence[Connection]) -> str:
    """ "10.0.0.1 (connection refused after 0.0 s)", or several."""
    return ", ".join(f"{one['address']} ({one['error']} after {one['seconds']:.1f} s)" for one in failed)


def why(reach: Reach, name: str, port: int) -> str:
    """In a few words why there is no connection; "" where there is one."""
    if reach["unresolved"]:
        return f"{name} does not resolve here: {reach['unresolved']}"
    if not reach["connections"]:
        return f"no address of {name} came in time" if reach["resolved_s"] is None else f"{name} has no address here"
    if tcp.used(reach["connections"]):
        return ""
    loopback = all(tcp.is_loopback(one["address"]) for one in reach["connections"])
    return f"no connection to port {port} of {told(reach['connections'])}" + (
        f": {name} is this host itself here" if loopback else ""
    )
