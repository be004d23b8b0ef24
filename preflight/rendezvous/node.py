"""What every node does in `preflight rendezvous`.

This process decides and waits (engine/event_loop.py). Calls that may hang are made in children: lookups, connections,
torch's store.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from preflight.check import Code, Finding
from preflight.core import node_names
from preflight.engine import identity
from preflight.engine.channel import Channel
from preflight.engine.child import Child
from preflight.engine.event_loop import EventLoop, StoreLog
from preflight.engine.process_group import TorchBroken, import_torch
from preflight.engine.store_client import StoreClient
from preflight.rendezvous import codes, wire_format
from preflight.rendezvous.arguments import RendezvousRequest
from preflight.rendezvous.judge import NodeArrival
from preflight.sdk import tcp
from preflight.sdk.tcp import Reach

LOOK_S = 3.0
"""Time for a lookup or a connection: a lost SYN is sent again after 1 s."""
AGAIN_S = 0.5
"""Pause between two attempts."""
STORE_S = 25.0
"""Time for torch's store to answer a client after accepting the connection: it first looks up the client's name, which
takes 10 s if no DNS server answers (resolv.conf(5): 5 s, twice)."""
IMPORT_S = 20.0
"""Time to import torch on a sound machine that is busy starting, or by many nodes from one file system."""
POLL_S = 0.1
NOTHING: Reach = {"resolved_s": None, "unresolved": "", "connections": []}
"""Stands for a look that did not end in time."""
AGAIN_SAID_S = 10.0
MOST_ENTRIES = 100
"""Per node, which may be started again and again."""
BACKLOG = 4096


class Stopped(Exception):  # noqa: N818 -- an event
    """This node cannot continue; `finding` says why."""

    def __init__(self, finding: Finding, *, is_final: bool = False) -> None:
        """`is_final`: another attempt would not help."""
        super().__init__(finding.message)
        self.finding, self.is_final = finding, is_final


class RendezvousNode:
    def __init__(self, request: RendezvousRequest, say: Callable[[str], None]) -> None:
        self.request, self._say = request, say
        self.loop = EventLoop(request.timeout_s)
        self.loop.watches_launcher = False  # in the background it outlives its shell
        self.loop.on_turn = self._take_connections
        self.name = node_names.safe(socket.gethostname())
        self.nonce = uuid.uuid4().hex
        self._ephemeral = _listen()
        self._waiting_text, self._waiting_at = "", 0.0
        self._store_client: StoreClient | None = None

    @property
    def evidence(self) -> dict[str, object]:
        return {"name": self.request.host, "port": self.request.port}

    def say(self, text: str) -> None:
        self._say(f"{text}\n")

    def say_waiting(self, text: str, end: float) -> None:
        """Repeats a text only now and then: many nodes may share one screen."""
        now = time.monotonic()
        if text != self._waiting_text or now - self._waiting_at >= AGAIN_SAID_S:
            self.say(f"{text} (at most {max(0.0, end - now):.0f} s more)")
            self._waiting_text, self._waiting_at = text, now

    def pause(self, seconds: float) -> None:
        end = self.loop.until(seconds)
        while (left := end - time.monotonic()) > 0:
            self.loop.pump(left)

    def import_torch(self) -> None:
        """In this process, so that its children have it, and only if the store is needed. Raises Stopped. The import
        may hang on a dead file system: then another process reports that and ends this one."""
        if "torch" in sys.modules:
            return
        screen, within_s = os.dup(1), max(1.0, self.loop.left)
        text = (
            f"import torch did not end within {within_s:.0f} s, expected seconds: check the file system that it is on"
        )
        slug = "broken_torch" if within_s >= IMPORT_S else "no_time"
        message = f"FAIL  {self.name}  [{codes.FAMILY}.{slug}]\n      {text}\n"
        watcher = Child(lambda channel, _: _end_parent(channel, within_s, screen, message), keep=(screen,))
        try:
            import_torch()
        except TorchBroken as why:
            raise self.stopped(codes.BROKEN_TORCH, f"{why}, expected it to work", is_final=True) from None
        finally:
            watcher.end()
            os.close(screen)

    def reach(self, name: str, port: int) -> Reach:
        return self.reach_all([(name, port)])[0]

    def reach_all(self, targets: Sequence[tuple[str, int]]) -> list[Reach]:
        """All at once. NOTHING for those that do not answer in time."""
        patience_s = min(LOOK_S, max(0.5, self.loop.left / 3))
        calls = {str(i): partial(tcp.reach, name, port, patience_s) for i, (name, port) in enumerate(targets)}
        look = self.loop.ask(lambda: {**tcp.in_time(calls, 2.5 * patience_s)}, 3 * patience_s)
        reaches = look.value_or({})
        return [reaches.get(str(i), NOTHING) for i in range(len(targets))]

    def join(self) -> str | None:
        """Becomes a client of the store at the endpoint. Returns what node 0 has written there to identify itself; None
        if nothing is there: it may be another job's store. Raises StoreLost."""
        self.drop_store_client()
        request, patience_s = self.request, min(STORE_S, max(0.5, self.loop.left))
        self._store_client = StoreClient(request.host, request.port, self.loop.pump, patience_s, patience_s)
        self.loop.store = self._store_client
        self._store_client.connected()
        end = self.loop.until(AGAIN_S * 4)
        nonce: str | None = None
        while (nonce := self.loop.request("fetch", keys=[wire_format.HOST])[0]) is None and time.monotonic() < end:
            self.pause(POLL_S)
        return nonce

    def drop_store_client(self) -> None:
        if self._store_client:
            self._store_client.end()
        self._store_client = self.loop.store = None

    def arrival(self, reach: Reach) -> NodeArrival:
        request, used = self.request, tcp.used(reach["connections"])
        about: dict[str, Any] = {"full_name": self.name, "serves": None, "nameless": ""}
        asked = [tcp.mapped(used["address"])] if used else []
        about |= self.loop.ask(lambda: _about_this_host(request), LOOK_S * 2).value_or({})
        return {
            "node_rank": request.node_rank, "nnodes": request.nnodes, "name": self.name,
            "addresses": list(identity.host_addresses()), "full_name": about["full_name"], "serves": about["serves"],
            "nameless": about["nameless"],
            "port": self._ephemeral.getsockname()[1], "reach": reach, "looked_up_s": self.look_up(asked),
        }  # fmt: skip

    def look_up(self, addresses: Sequence[str]) -> dict[str, float | None]:
        calls = {address: (lambda address=address: tcp.look_up(address)) for address in addresses}
        seconds = self.loop.ask(lambda: dict(tcp.in_time(calls, LOOK_S)), LOOK_S * 2).value_or({})
        return {address: seconds.get(address) for address in addresses}

    def entries(self, log: StoreLog) -> list[tuple[int, dict[str, object]]]:
        """New entries. Any process may write to torch's store: raises Stopped if it is not what preflight writes."""
        try:
            if log.count() > MOST_ENTRIES * self.request.nnodes:
                raise ValueError("more entries than nodes could write")
            return [(number, entry) for number, entry in log.new() if isinstance(entry, dict)]
        except ValueError as error:
            raise self.foreign(error) from None

    def foreign(self, error: Exception) -> Stopped:
        """What is in the store is not preflight's."""
        text = f"node 0's store at {self.request.endpoint} has an entry that is not preflight's: {error}"
        return Stopped(codes.FOREIGN.fail(f"{text}; expected only its own", evidence=self.evidence), is_final=True)

    def failure(self, code: Code, text: str, **evidence: Any) -> Finding:
        return code.fail(text, node=self.name, evidence={**self.evidence, **evidence})

    def stopped(self, code: Code, text: str, *, is_final: bool = False) -> Stopped:
        return Stopped(self.failure(code, text), is_final=is_final)

    def _take_connections(self) -> None:
        """To this node's ephemeral port: the other nodes only want to know whether they get through."""
        with contextlib.suppress(OSError):
            while True:
                self._ephemeral.accept()[0].close()

    def end(self) -> None:
        self._ephemeral.close()
        self.drop_store_client()
        self.loop.end_children()


def _end_parent(channel: Channel, after_s: float, screen: int, message: str) -> None:
    """Unless the parent ends this process first."""
    if not select.select([channel.fileno()], [], [], after_s)[0]:
        os.write(screen, message.encode())
        os.kill(os.getppid(), signal.SIGKILL)


def _listen() -> socket.socket:
    """At a port that the system chooses, as workers do; with IPv4 and IPv6, if the host has both."""
    try:
        listener = socket.create_server(("::", 0), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    except (OSError, ValueError):  # a host without IPv6
        listener = socket.create_server(("", 0), backlog=BACKLOG)
    listener.setblocking(False)
    return listener


def _about_this_host(request: RendezvousRequest) -> dict[str, object]:
    """By torch's own rule, which is not public: `serves` is None if another version has no such function."""
    serves: bool | None = None
    nameless = ""
    try:
        from torch.distributed.elastic.rendezvous import utils

        if request.backend == "c10d" and not request.says_who_serves:
            serves = utils._matches_machine_hostname(request.host)
    except socket.gaierror as error:  # torch does not catch it either
        nameless = str(error.strerror).lower()
    except Exception:  # noqa: S110 -- another version of torch
        pass
    return {"full_name": socket.getfqdn(), "serves": serves, "nameless": nameless}
