"""Whether MASTER_ADDR leads to the node of rank 0, which serves the store there: seen from that node, and from the node
that it names instead."""

import contextlib
import ipaddress
import os
import select
import socket
import time

from preflight.engine.event_loop import EventLoop
from preflight.engine.identity import LaunchIdentity, host_addresses
from preflight.sdk import addresses, tcp

LOOK_UP_S = 10.0
"""Time for a lookup: a DNS server that does not answer is asked twice, 5 s each (resolv.conf(5))."""
COMES_BACK_S = 1.0
"""Time for a connection to come back to this host, per address."""
FORWARDED_S = 12.0
"""Time until a balancer or a Kubernetes Service has seen that the port is served, and forwards to it."""
UNSERVED_S, AGAIN_S = 3.0, 0.2
"""How long nothing may listen at the port of a node before a rank of it serves the store in rank 0's place; and the
pause between two looks. Containers on one host may each think that rank 0 is elsewhere."""
LISTED = 4


class Astray(Exception):  # noqa: N818 -- a state of the world
    """MASTER_ADDR leads to another node than rank 0's. Its text says so."""


def astray(loop: EventLoop, launch: LaunchIdentity) -> str:
    """On rank 0: the sentence that says that MASTER_ADDR is no address of this node, and that a connection to it does
    not come back here either (an address of a load balancer, or a translated one, may). "" if it leads here, if it has
    no address at all, or if nobody can tell."""
    host, port = launch.master_addr, launch.master_port or 0
    within_s = LOOK_UP_S + FORWARDED_S + COMES_BACK_S * 2 * tcp.MOST_ADDRESSES
    found = loop.ask(lambda: _look(host, port), within_s).value_or({})
    if not found.get("addresses") or found["is_own"] or found["comes_back"] is not False:
        return ""
    own = ", ".join(host_addresses()[:LISTED])
    shown = ", ".join(found["addresses"])
    named = host if host == shown else f"{host} ({shown})"
    return (
        f"MASTER_ADDR is {named}, which is not an address of {launch.node_name}, where rank 0 is and serves the store; "
        f"expected {launch.node_name}" + (f" ({own})" if own else "")
    )


def is_left_to_us(loop: EventLoop, launch: LaunchIdentity) -> bool:
    """On another rank: whether MASTER_ADDR names this node, rank 0 is on another one, and nothing serves the port. The
    lowest rank of a node has LOCAL_RANK 0, so if that is not rank 0, rank 0 is elsewhere. (Not so on node 0, where each
    rank may have been given a GPU, and LOCAL_RANK 0, of its own.)"""
    host, port = launch.master_addr, launch.master_port or 0
    if not _is_first_of_another_node(launch) or is_everywhere(host):
        return False
    return bool(loop.ask(lambda: _unserved(host, port), LOOK_UP_S + 2 * UNSERVED_S).value_or({}).get("unserved"))


def goes_nowhere(launch: LaunchIdentity) -> str:
    """On a rank that has not reached the store: says that MASTER_ADDR is this node itself, as on every node, while rank
    0 is elsewhere; else ""."""
    if launch.agent_store or not _is_first_of_another_node(launch) or not is_everywhere(launch.master_addr):
        return ""
    return (
        f"MASTER_ADDR is {launch.master_addr}, which is {launch.node_name} itself there, and rank {launch.rank} is its "
        "first rank (LOCAL_RANK 0), so rank 0 is on another node; expected that node"
    )


def _is_first_of_another_node(launch: LaunchIdentity) -> bool:
    return launch.local_rank == 0 and bool(launch.rank and launch.node_rank)


def is_everywhere(host: str) -> bool:
    """Whether every host knows this name or address as itself."""
    if host.lower().partition(".")[0] == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _look(host: str, port: int) -> dict[str, object]:
    _, targets, _ = tcp.resolve(host, port)
    is_own = _is_own(targets)
    return {"addresses": [*targets], "is_own": is_own, "comes_back": None if is_own else _comes_back(targets, port)}


def _is_own(targets: dict[str, tcp.Target]) -> bool:
    own = {address.text for address in addresses.listed()}
    names = (text.partition("%")[0] for text in targets)
    return any(name in own or is_everywhere(name) for name in names)


def _comes_back(targets: dict[str, tcp.Target], port: int) -> bool | None:
    """None if this host may not listen there: then the store's own process says why. A balancer begins to forward some
    seconds after the port is served; who keeps a connection that has not come here is another host."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        server = socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=4096)
    except OSError:
        return None
    end = time.monotonic() + FORWARDED_S
    with server:
        while True:
            ways = [_way(server, target) for target in targets.values()]
            if "here" in ways or "elsewhere" in ways or time.monotonic() > end:
                return "here" in ways
            time.sleep(AGAIN_S)


def _way(server: socket.socket, target: tcp.Target) -> str:
    """Where a connection to this target arrives: "here", "elsewhere", or "" if nobody keeps it."""
    family, place = target
    token = os.urandom(16)
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(COMES_BACK_S)
        client.connect(place)
        client.sendall(token)
        if _arrives(server, token):
            return "here"
        client.setblocking(False)
        try:
            return "elsewhere" if client.recv(1) else ""
        except BlockingIOError:
            return "elsewhere"
    return ""


def _arrives(server: socket.socket, token: bytes) -> bool:
    """Whether one of the connections that come brings the token: other ranks may come as well, and strangers."""
    end, ends = time.monotonic() + COMES_BACK_S, list[socket.socket]()
    with contextlib.ExitStack() as opened:
        while (left_s := end - time.monotonic()) > 0:
            for ready in select.select([server, *ends], [], [], left_s)[0]:
                if ready is server:
                    ends.append(opened.enter_context(server.accept()[0]))
                    continue
                with contextlib.suppress(OSError):
                    if ready.recv(len(token)) == token:
                        return True
                ends.remove(ready)
    return False


def _unserved(host: str, port: int) -> dict[str, bool]:
    """A name with an address of another node, too (a headless Service), may mean that one."""
    _, targets, _ = tcp.resolve(host, port)
    end = time.monotonic() + UNSERVED_S
    while targets and all(_is_own({text: to}) for text, to in targets.items()) and not _is_served(targets):
        if time.monotonic() >= end:
            return {"unserved": True}
        time.sleep(AGAIN_S)
    return {"unserved": False}


def _is_served(targets: dict[str, tcp.Target]) -> bool:
    return any(not tcp.connect(target, COMES_BACK_S)["error"] for target in targets.values())
