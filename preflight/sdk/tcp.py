"""Looks up names and addresses and makes connections, each within a time limit."""

import contextlib
import errno
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, TypeVar

T = TypeVar("T")
Target = tuple[int, tuple[Any, ...]]
"""An address family, and the argument of `connect`: address, port, and for IPv6 the scope."""

MOST_ADDRESSES = 8
"""Per name; a name with more belongs to a load balancer."""
TRIES = 3
QUICK_S = 0.001
"""A round trip on a sound local network takes less. A slower one is timed again, since the host may have been busy."""


SILENT_S = 0.4
"""A refusal takes one round trip, which is less than this even around the earth."""


class Connection(TypedDict):
    address: str
    seconds: float
    """Until the connection was made (the shortest of several tries), or had failed."""
    source: str
    """The address of this host's end."""
    error: str
    """Why there is no connection; "" if there is one."""
    kind: str
    """What the error means: refused, filtered, no_route, reset or other; "" if there is a connection."""


class Reach(TypedDict):
    """How a host reaches a name."""

    resolved_s: float | None
    """None: not in time."""
    unresolved: str
    """Why the name has no address; "" if it has one."""
    connections: list[Connection]
    """One for each address, in the system's order."""


_KINDS = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "filtered",
    errno.EHOSTUNREACH: "no_route",
    errno.ENETUNREACH: "no_route",
    errno.ECONNRESET: "reset",
}


def kind(error: OSError) -> str:
    """refused: the host refuses because nothing listens there, or a firewall rejects. filtered: nothing comes back, as
    when a firewall drops packets. no_route: this host or a router has no route (a firewall may say so, too). reset: the
    connection was broken. other: see the error's own text."""
    return "filtered" if isinstance(error, TimeoutError) else _KINDS.get(error.errno or 0, "other")


def reach(name: str, port: int, patience_s: float, doing: Callable[[str], None] = lambda _: None) -> Reach:
    """Looks up the name's addresses and connects to all of them at once. Takes at most 2.2 times `patience_s`."""
    doing(f"resolving {name}")
    resolved = in_time({name: partial(resolve, name, port)}, patience_s)
    seconds, targets, why = resolved.get(name, (None, {}, ""))
    doing(f"connecting to {name}:{port}")
    tried = in_time({text: partial(connect, to, patience_s) for text, to in targets.items()}, 1.2 * patience_s)
    connections = [tried.get(text) or _late(text, 1.2 * patience_s) for text in targets]
    return {"resolved_s": seconds, "unresolved": why, "connections": connections}


def _late(address: str, seconds: float) -> Connection:
    """A connection whose result was not even reported in time: on a loaded host a thread wakes late. The name still has
    this address, and a host that seems to know fewer addresses than others would be blamed for it."""
    return {"address": address, "seconds": seconds, "source": "", "error": "timed out", "kind": "filtered"}


def used(connections: Sequence[Connection]) -> Connection | None:
    """The connection that a client would use: the first that was made."""
    return next((connection for connection in connections if not connection["error"]), None)


def in_time(calls: Mapping[str, Callable[[], T]], patience_s: float) -> dict[str, T]:
    """Runs all calls at once and returns the results of those that finish in time. One that hangs is left behind: a
    lookup cannot be cancelled."""
    answers: dict[str, T] = {}

    def answer(name: str, call: Callable[[], T]) -> None:
        answers[name] = call()

    threads = [threading.Thread(target=answer, args=item, daemon=True) for item in calls.items()]
    end = time.monotonic() + patience_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(answers)


def resolve(name: str, port: int) -> tuple[float, dict[str, Target], str]:
    """(seconds, the name's addresses in the system's order, why there are none)."""
    start = time.perf_counter()
    found: dict[str, Target] = {}
    why = ""
    try:
        for family, _, _, _, target in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[:MOST_ADDRESSES]:
            found.setdefault(plain(str(target[0])), (family, target))
    except (OSError, UnicodeError) as error:  # the latter for what cannot be a name
        why = getattr(error, "strerror", None) or str(error)
    return time.perf_counter() - start, found, why


def connect(target: Target, patience_s: float) -> Connection:
    """Opens and closes a connection without sending anything: torch's store accepts that silently."""
    family, place = target
    address = plain(str(place[0]))
    connection: Connection = {"address": address, "seconds": patience_s, "source": "", "error": "", "kind": ""}
    end = time.perf_counter() + patience_s
    for _ in range(TRIES):
        start = time.perf_counter()
        try:
            with socket.socket(family, socket.SOCK_STREAM) as client:
                client.settimeout(max(0.001, end - start))
                client.connect(place)
                took = time.perf_counter() - start
                connection |= {
                    "seconds": min(connection["seconds"], took),
                    "source": plain(str(client.getsockname()[0])),
                }
        except OSError as error:
            if not connection["source"]:
                connection |= {"seconds": time.perf_counter() - start, "error": (error.strerror or str(error)).lower()}
                connection["kind"] = kind(error)
            break
        if took <= QUICK_S:
            break
    return connection


def is_silent(connection: Connection) -> bool:
    """Whether nothing came back, so that a client would wait. A refusal does not count, even if it comes late (from a
    local firewall that rejects IPv6: after a second)."""
    return bool(connection["error"]) and connection["seconds"] >= SILENT_S and connection["kind"] != "refused"


def slow(looked_up_s: Mapping[str, float | None], limit_s: float) -> dict[str, float | None]:
    """The lookups that took at least `limit_s`, by address; None: it did not end."""
    return {address: took for address, took in looked_up_s.items() if took is None or took >= limit_s}


def addresses(connections: Sequence[Connection], is_ipv6: bool) -> tuple[str, ...]:
    """The addresses of one family that mean the same on every host."""
    texts = {connection["address"] for connection in connections}
    return tuple(sorted(a for a in texts if (":" in a) == is_ipv6 and not (is_loopback(a) or a.startswith("fe80:"))))


def look_up(address: str) -> float:
    """How many seconds it takes to look up the name of an address. It need not have one."""
    start = time.perf_counter()
    with contextlib.suppress(OSError):
        socket.getnameinfo((address, 0, 0, 0) if ":" in address else (address, 0), socket.NI_NUMERICSERV)
    return time.perf_counter() - start


def mapped(address: str) -> str:
    """An IPv4 address as torch's store, which uses IPv6, sees it. A line in /etc/hosts for the IPv4 address does not
    cover this form: it is looked up in DNS."""
    return address if ":" in address else f"::ffff:{address}"


def plain(address: str) -> str:
    """The reverse of `mapped`."""
    return address.removeprefix("::ffff:") if "." in address else address


def is_loopback(address: str) -> bool:
    return plain(address).startswith("127.") or address == "::1"


def clients_of(port: int, most: int) -> list[str]:
    """Addresses that are connected to this port of this host, as the kernel lists them: all up to `most`, else a sample
    from all over the list."""
    ends = (end for table in ("/proc/net/tcp", "/proc/net/tcp6") for end in _established(table))
    found = sorted({_decoded(remote) for local, remote in ends if int(local.partition(":")[2], 16) == port})
    return found[:: -(-len(found) // most) or 1]


def _established(table: str) -> Iterator[tuple[str, str]]:
    """(local, remote) in the kernel's hexadecimal."""
    try:
        with open(table) as file:
            for line in file:
                _, local, remote, state = line.split(None, 4)[:4]
                if state == "01":
                    yield local, remote
    except OSError:
        return


def _decoded(end: str) -> str:
    """ "0100007F:7349" is 127.0.0.1: words of 32 bits, each in the machine's byte order."""
    digits = end.partition(":")[0]
    words = (int(digits[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(digits), 8))
    return socket.inet_ntop(socket.AF_INET if len(digits) == 8 else socket.AF_INET6, b"".join(words))


def interface_of(address: str) -> str:
    """The name of this host's interface with this address, or ""."""
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address.partition("%")[0] for entry in entries):
            return name
    return ""


def gloo_address(host_name: str) -> str:
    """Where gloo listens: on the first address of the host's own name that belongs to this host, else on loopback."""
    _, targets, _ = resolve(host_name, 0)
    for address, (family, place) in targets.items():
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as server:
            server.bind(place)
            return address
    return "127.0.0.1"
