"""One node's part in `preflight rendezvous`: what every node does.

The process decides and waits. What may hang (look-ups, connections, torch's store) is in children: see control.py.
"""

import contextlib
import json
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from preflight import launch
from preflight.check import Finding
from preflight.control import Control
from preflight.courier import Courier
from preflight.process_group import TorchBroken, import_torch
from preflight.rendezvous import codes, tcp
from preflight.rendezvous.arguments import Request
from preflight.rendezvous.judge import Arrival
from preflight.rendezvous.tcp import Reach

ROOT = "preflight/rendezvous"
HOST, TARGETS, VERDICT = f"{ROOT}/host", f"{ROOT}/targets", f"{ROOT}/verdict"
ARRIVALS, REACHED, BYE = f"{ROOT}/arrivals", f"{ROOT}/reached", f"{ROOT}/bye"
LOOK_S = 3.0
"""For an answer to a look-up or a connection: a SYN that is lost is sent again after 1 s."""
AGAIN_S = 0.5
"""Between two tries."""
STORE_S = 10.0
"""For torch's store to answer a client whose connection it has taken."""
POLL_S = 0.1
NOTHING: Reach = {"resolved_s": None, "unresolved": "", "connections": []}
"""Where a look did not end in time."""
AGAIN_SAID_S = 10.0
BACKLOG = 4096


class Stopped(Exception):  # noqa: N818 -- an event
    """This node cannot go on; `finding` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class Node:
    """What every node does."""

    def __init__(self, request: Request, say: Callable[[str], None]) -> None:
        self.request, self._say = request, say
        self.control = Control(request.timeout_s)
        self.control.on_turn = self._take_connections
        self.name = socket.gethostname()
        self.nonce = uuid.uuid4().hex
        self._ephemeral = _listen()
        self._said, self._said_at = "", 0.0
        self._courier: Courier | None = None

    @property
    def evidence(self) -> dict[str, Any]:
        return {"name": self.request.host, "port": self.request.port}

    def say(self, text: str) -> None:
        """A line on the screen."""
        self._say(f"{text}\n")

    def say_waiting(self, text: str, end: float) -> None:
        """The same text only now and then: many nodes may share one screen."""
        now = time.monotonic()
        if text != self._said or now - self._said_at >= AGAIN_SAID_S:
            self.say(f"{text} (at most {max(0.0, end - now):.0f} s more)")
            self._said, self._said_at = text, now

    def pause(self, seconds: float) -> None:
        end = self.control.until(seconds)
        while (left := end - time.monotonic()) > 0:
            self.control.pump(left)

    def import_torch(self) -> None:
        """Only now: a node that does not get so far needs none. Raises Stopped."""
        try:
            import_torch()
        except TorchBroken as why:
            raise Stopped(codes.BROKEN_TORCH.fail(f"{why}, expected it to work", node=self.name)) from None

    def reach(self, name: str, port: int) -> Reach:
        return self.reach_all([(name, port)])[0]

    def reach_all(self, targets: Sequence[tuple[str, int]]) -> list[Reach]:
        """All at once. What does not come in time is `NOTHING`."""
        patience_s = min(LOOK_S, max(0.5, self.control.left / 3))
        calls = {str(i): partial(tcp.reach, name, port, patience_s) for i, (name, port) in enumerate(targets)}
        found, _ = self.control.ask("look", lambda: {**tcp.in_time(calls, 2.5 * patience_s)}, 3 * patience_s)
        return [(found or {}).get(str(i), NOTHING) for i in range(len(targets))]

    def join(self) -> str | None:
        """Becomes a client of the store at the endpoint; who serves it says so there. None: it does not say so, and
        may be another job's. Raises StoreLost."""
        self.drop_courier()
        request, patience_s = self.request, min(STORE_S, max(0.5, self.control.left))
        self._courier = Courier(request.host, request.port, self.control.pump, patience_s, patience_s)
        self.control.store = self._courier
        self._courier.connected()
        end = self.control.until(AGAIN_S * 4)
        said: str | None = None
        while (said := self.control.request("fetch", keys=[HOST])[0]) is None and time.monotonic() < end:
            self.pause(POLL_S)
        return said

    def drop_courier(self) -> None:
        if self._courier:
            self._courier.end()
        self._courier = self.control.store = None

    def arrival(self, reach: Reach) -> Arrival:
        """What this node says of itself."""
        request, used = self.request, tcp.used(reach["connections"])
        about: dict[str, Any] = {"full_name": self.name, "serves": None}
        asked = [tcp.mapped(used["address"])] if used else []
        about |= self.control.ask("about", lambda: _about_this_host(request.host), LOOK_S * 2)[0] or {}
        return {
            "node_rank": request.node_rank, "nnodes": request.nnodes, "name": self.name,
            "full_name": about["full_name"], "serves": about["serves"], "addresses": list(launch.addresses()),
            "port": self._ephemeral.getsockname()[1], "reach": reach, "looked_up_s": self.look_up(asked),
        }  # fmt: skip

    def look_up(self, addresses: Sequence[str]) -> dict[str, float | None]:
        calls = {address: (lambda address=address: tcp.look_up(address)) for address in addresses}
        seconds, _ = self.control.ask("look-ups", lambda: dict(tcp.in_time(calls, LOOK_S)), LOOK_S * 2)
        return {address: (seconds or {}).get(address) for address in addresses}

    def try_targets(self, place: int, targets: Sequence[dict[str, Any]]) -> None:
        """Connects to other nodes' ephemeral ports, and tells node 0."""
        reached = self.reach_all([(target["name"], target["port"]) for target in targets])
        self.control.request("append", key=REACHED, value=json.dumps({"place": place, "reached": reached}))

    def _take_connections(self) -> None:
        """Those that try this node's ephemeral port: they say nothing, and only want to get through."""
        with contextlib.suppress(OSError):
            while True:
                self._ephemeral.accept()[0].close()

    def end(self) -> None:
        self._ephemeral.close()
        self.drop_courier()
        self.control.end_children()


def _listen() -> socket.socket:
    """At a port of the system's choice, as workers do; over both families where the host has both."""
    try:
        made = socket.create_server(("::", 0), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    except (OSError, ValueError):  # a host without IPv6
        made = socket.create_server(("", 0), backlog=BACKLOG)
    made.setblocking(False)
    return made


def _about_this_host(host: str) -> dict[str, Any]:
    """By torch's own rule, which is no public one: where it is gone, nobody knows."""
    serves: bool | None = None
    with contextlib.suppress(Exception):
        from torch.distributed.elastic.rendezvous import utils

        serves = utils._matches_machine_hostname(host)
    return {"full_name": socket.getfqdn(), "serves": serves}
