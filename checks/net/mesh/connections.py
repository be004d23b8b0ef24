"""How the nodes of net.mesh connect: a listener on an ephemeral port, connections to all partners, then rounds.

One select loop per node, no threads. The store holds three keys per node: its `place` (address, port, token), the
nodes it has `reached`, and what it has `found`: the rate at which it sends to most, and to whom packets were lost.
Every wait is bounded, and none is for a node that has gone.
"""

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from preflight.checks.net.mesh import probe, protocol
from preflight.checks.net.mesh.pair_tables import OWN
from preflight.checks.net.mesh.probe import Exchange, Own, Tried
from preflight.checks.net.mesh.protocol import PeerConnection, Refused
from preflight.checks.net.mesh.sent import Sent, is_suspect
from preflight.checks.net.mesh.timeouts import ALL_PAIRS, AUTH_S, CONNECT_S, HEART_S, MEET_S, REACHED_S, SILENT_S
from preflight.sdk import pairs, tcp

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

QUEUE = 1024
STRANGERS = 256
"""The most connections that may not have identified themselves; one more closes the oldest."""


class Endpoint(TypedDict):
    """Where a node listens. Contains the token, so it is not a fact."""

    address: str
    port: int
    token: str
    """Hexadecimal."""


def listen(address: str, interface: str) -> socket.socket:
    """A socket that listens on a port that the kernel chooses, like NCCL's. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.bind(_target(address, 0, interface))
        server.listen(QUEUE)
        server.setblocking(False)
    except OSError:
        server.close()
        raise
    return server


def _target(address: str, port: int, interface: str) -> tuple[str, int] | tuple[str, int, int, int]:
    """The address for connect(); a link-local one needs the interface."""
    if ":" not in address:
        return address, port
    return address, port, 0, socket.if_nametoindex(interface) if address.startswith("fe80:") else 0


class FirstLook(NamedTuple):
    """What the first rounds have shown."""

    usual: float
    """Bytes per second that the median node sends to its median partner; with two nodes, what the other sends."""
    suspects: frozenset[int]
    """The partners to look at again, since packets may be lost: those to which any node has lost some, or all where
    this node has lost some itself. So who does badly has witnesses that did well."""


@dataclass
class Meeting:
    """One node's part."""

    store: "Store"
    number: int
    """This node's index among the nodes."""
    rounds: Sequence[int | None]
    """The partner in each round."""
    interface: str
    ends_s: float
    """The value of time.monotonic() at which the meeting ends, finished or not."""
    doing: Callable[[str], None] = lambda _: None
    names: Sequence[str] = ()
    """The names of all nodes, for `doing`."""
    tick_s: float = 0.01
    """Seconds between polls of the store."""
    tried: dict[int, Tried] = field(default_factory=dict)
    """Results, by partner that listens."""
    cut: bool = True
    """Whether time ran out before all partners were done."""
    _own: Own = field(default_factory=Own)
    _token: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    _out: dict[int, PeerConnection] = field(default_factory=dict)
    _back: dict[int, PeerConnection] = field(default_factory=dict)
    """Connections by partner: opened by this node (`_out`), and by the partner (`_back`)."""
    _strangers: dict[socket.socket, asyncio.Task[None]] = field(default_factory=dict)

    async def hold(self, server: socket.socket) -> None:
        """Meets all partners. When it returns or raises, all connections are closed."""
        host, port = server.getsockname()[:2]
        loop = asyncio.get_running_loop()
        loop.add_reader(server, self._admit, server)
        beating = asyncio.create_task(self._beat())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.ends_s - time.monotonic()):
                    await self._meet_all({"address": host.partition("%")[0], "port": port, "token": self._token.hex()})
        finally:
            loop.remove_reader(server)
            server.close()
            background = [beating, *self._strangers.values()]
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            if self.cut:
                self._count()
            for line in [*self._out.values(), *self._back.values()]:
                line.release()

    async def _meet_all(self, own: Endpoint) -> None:
        self.doing("waiting for the other nodes' addresses")
        self.store.set(f"place/{self.number}", json.dumps(own))
        met = {partner for partner in self.rounds if partner is not None}
        answers = {partner: json.loads(text) for partner, text in (await self._answers("place", met, MEET_S)).items()}
        self.tried = {
            partner: Tried("late") for partner in met if answers.get(partner) is not None or partner not in answers
        }
        places = {partner: place for partner, place in answers.items() if place}
        self.doing(f"connecting to {len(places)} nodes")
        await asyncio.gather(*(self._connect(partner, place) for partner, place in places.items()))
        self.store.set(f"reached/{self.number}", json.dumps(sorted(self._out)))
        reached = await self._answers("reached", places.keys(), REACHED_S)
        partners = {
            partner: self.number in json.loads(reached[partner]) for partner in self.rounds if partner in reached
        }
        await self._hold_rounds(partners)
        self.cut = False
        await self._hold_rounds(partners, await self._first_look(partners))

    async def _hold_rounds(self, partners: Mapping[int, bool], first: FirstLook | None = None) -> None:
        """`partners`: whether each has a connection to this node. `first`: what the first rounds have shown."""
        for partner, is_reached in partners.items():
            name = self.names[partner] if self.names else partner
            self.doing(f"meeting {name}{'' if first is None else ' again'}")
            await self._with(partner, is_reached, first)

    async def _first_look(self, partners: Collection[int]) -> FirstLook:
        """What all nodes have seen in the first rounds."""
        self._count()
        rates = [tried.rate for tried in self.tried.values() if tried.rate]
        losing = sorted(partner for partner, tried in self.tried.items() if is_suspect(tried.sent))
        found = {"rate": statistics.median_high(rates) if rates else 0.0, "losing": losing}
        self.store.set(f"found/{self.number}", json.dumps(found))
        looks = [json.loads(text) for text in (await self._answers("found", partners, MEET_S)).values()]
        own = [found["rate"]] if rates and len(looks) > 1 else []
        usual = statistics.median_high([*(each["rate"] for each in looks), *own]) if looks else 0.0
        return FirstLook(usual, frozenset(partners if losing else (to for each in looks for to in each["losing"])))

    def _count(self) -> None:
        """Adds up what was sent to each partner, on both connections. The partner does so for what it has sent."""
        for partner, tried in self.tried.items():
            lines = [lines[partner] for lines in (self._out, self._back) if partner in lines]
            counts = [count for line in lines if (count := line.sent) is not None]
            tried.sent = sum(counts, Sent()) if counts else None

    async def _answers(self, word: str, of: Collection[int], patience_s: float) -> dict[int, str]:
        """The value of this key for each node, without nodes that are gone or silent for too long."""
        end = time.monotonic() + patience_s
        waited_for = list(of)
        while waited_for and not self.store.check([f"{word}/{number}" for number in waited_for]):
            if time.monotonic() > end:
                waited_for = [number for number in waited_for if self.store.check([f"{word}/{number}"])]
                break
            await asyncio.sleep(self.tick_s)
            waited_for = [number for number in waited_for if not self._gone(number)]
        texts = self.store.multi_get([f"{word}/{number}" for number in waited_for]) if waited_for else []
        return {number: text.decode() for number, text in zip(waited_for, texts, strict=True)}

    def _gone(self, number: int) -> bool:
        """Whether all connections of a node that had some are closed."""
        lines = [lines[number] for lines in (self._out, self._back) if number in lines]
        return bool(lines) and all(line.error for line in lines)

    async def _connect(self, partner: int, place: Endpoint) -> None:
        tried, family = self.tried[partner], socket.AF_INET6 if ":" in place["address"] else socket.AF_INET
        try:
            with contextlib.ExitStack() as closing:
                sock = closing.enter_context(socket.socket(family, socket.SOCK_STREAM))
                sock.setblocking(False)
                async with asyncio.timeout(CONNECT_S):
                    target = _target(place["address"], place["port"], self.interface)
                    await asyncio.get_running_loop().sock_connect(sock, target)
                tried.error = await _introduced(sock, bytes.fromhex(place["token"]), self.number, partner)
                if not tried.error:
                    self._out[partner] = PeerConnection(sock)
                    closing.pop_all()
        except OSError as error:  # includes TimeoutError
            tried.error = "reset" if isinstance(error, BrokenPipeError) else tcp.kind(error)
            if tried.error == OWN:
                tried.why = (error.strerror or str(error)).lower()

    async def _with(self, partner: int, is_reached: bool, first: FirstLook | None = None) -> None:
        """One round: the lower number asks first. Each direction uses its own connection, if there is one."""
        exchange = Exchange()
        if self.number < partner:
            await self._ask(partner, exchange, first)
        await self._serve(partner, exchange, is_reached)
        if self.number > partner:
            await self._ask(partner, exchange, first)
        self._own.stalls += bool(exchange.stalled) and first is None

    async def _ask(self, partner: int, exchange: Exchange, first: FirstLook | None) -> None:
        line, tried = self._out.get(partner), self.tried[partner]
        if not line:
            return
        try:
            if first is None:
                await probe.ask(line, tried, exchange, self._own)
            else:
                await probe.ask_again(line, tried, first.usual, self._own, partner in first.suspects)
        except Refused as error:
            tried.error = str(error) if first is None else tried.error  # gone since, but measured before

    async def _serve(self, partner: int, exchange: Exchange, is_reached: bool) -> None:
        """Answers the partner's requests; the partner reports errors."""
        line = self._back.get(partner) if is_reached else None
        if line:
            with contextlib.suppress(Refused):
                await probe.serve(line, exchange, self._own)

    def _admit(self, server: socket.socket) -> None:
        """Admits peers that know the token. A stranger gets no answer, and is disconnected after a moment."""
        loop = asyncio.get_running_loop()
        try:
            sock, _ = server.accept()
        except OSError:  # the peer is gone already, or this process has too many open files
            loop.remove_reader(server)
            loop.call_later(0.05, lambda: server.fileno() >= 0 and loop.add_reader(server, self._admit, server))
            return
        sock.setblocking(False)
        self._strangers[sock] = loop.create_task(self._introduce(sock))
        if len(self._strangers) > STRANGERS:
            next(iter(self._strangers.values())).cancel()

    async def _introduce(self, sock: socket.socket) -> None:
        is_partner = False
        try:
            with contextlib.suppress(Refused, OSError):
                known = protocol.admitted(
                    self._token, await protocol.read(sock, protocol.HELLO_BYTES, AUTH_S), self.number
                )
                if known and known[0] in self.rounds and known[0] not in self._back:
                    sock.send(known[1])
                    self._back[known[0]], is_partner = PeerConnection(sock), True
        finally:
            del self._strangers[sock]
            if not is_partner:
                sock.close()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEART_S)
            for line in [*self._out.values(), *self._back.values()]:
                line.beat()


async def _introduced(sock: socket.socket, token: bytes, own: int, partner: int) -> str:
    """What is wrong with the peer that answers; "" if it is the partner. One that closes silently is a stranger."""
    greeting = protocol.hello(token, own, partner)
    try:
        sock.send(greeting)
        answer = await protocol.read(sock, protocol.ANSWER_BYTES, SILENT_S)
    except Refused as error:
        return "stranger" if str(error) == "left" else str(error)
    return "" if hmac.compare_digest(answer, protocol.answer(token, greeting)) else "stranger"


def stand_aside(store: "Store", number: int) -> None:
    """Tells the others, for a node that cannot listen, not to wait for it."""
    store.set(f"place/{number}", "null")


def hold(
    store: "Store",
    ranks: Sequence[int],
    rank: int,
    server: socket.socket,
    interface: str,
    ends_s: float,
    doing: Callable[[str], None],
    names: Sequence[str],
) -> Meeting:
    """Runs this node's part of the meeting of `ranks`, one per node, with their nodes' `names`. Closes `server`. The
    store has one thread: the more nodes, the less often each polls it."""
    number, nodes = ranks.index(rank), len(ranks)
    met = Meeting(store, number, pairs.partners(number, nodes, ALL_PAIRS), interface, ends_s, doing, names)
    met.tick_s = max(met.tick_s, nodes / 5000)
    asyncio.run(met.hold(server))
    return met


def as_facts(tried: Mapping[int, Tried], ranks: Sequence[int]) -> dict[str, dict[str, object]]:
    """Results by the partner's rank, without fields that were not measured."""
    rounded = {ranks[partner]: vars(result) for partner, result in sorted(tried.items())}
    return {
        str(rank): {key: _rounded(value) for key, value in result.items() if value not in (None, "")}
        for rank, result in rounded.items()
    }


def _rounded(value: object) -> object:
    """Rounds rates to bytes, and seconds to microseconds."""
    return (round(value) if value > 1000 else round(value, 6)) if isinstance(value, float) else value
