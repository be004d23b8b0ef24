"""The sockets of net.mesh: several nodes in one loop on this machine, and strangers among them."""

import asyncio
import errno
import os
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from preflight.checks.net.mesh import connections, probe, protocol, timeouts
from preflight.checks.net.mesh.connections import Meeting
from preflight.checks.net.mesh.probe import Exchange, Own, Tried
from preflight.checks.net.mesh.protocol import PeerConnection, Refused
from preflight.sdk import pairs

TOKEN = b"0123456789abcdef"


class Words(dict[str, str]):
    """A store of one process."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self for key in keys)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self[key].encode() for key in keys]


def node(number: int, nodes: int, store: Any, seconds: float = 20.0) -> Meeting:
    return Meeting(store, number, pairs.partners(number, nodes, timeouts.ALL_PAIRS), "lo", time.monotonic() + seconds)


async def all_of(nodes: int, address: str, strangers: Sequence[bytes] = ()) -> list[Meeting]:
    """All meet, after these have knocked at node 0's port."""
    store = Words()
    servers = [connections.listen(address, "lo") for _ in range(nodes)]
    knocking = [socket.create_connection(servers[0].getsockname()[:2]) for _ in strangers]
    for knocks, said in zip(knocking, strangers, strict=True):
        knocks.sendall(said)
    met = [node(number, nodes, store) for number in range(nodes)]
    await asyncio.gather(*(node.hold(server) for node, server in zip(met, servers, strict=True)))
    assert b"".join(map(_heard, knocking)) == b"", "nobody serves a stranger"
    return met


def _heard(knocks: socket.socket) -> bytes:
    with knocks:
        knocks.settimeout(5)
        try:
            return knocks.recv(100)
        except ConnectionResetError:
            return b""


def is_complete(met: Sequence[Meeting]) -> bool:
    def whole(tried: Tried) -> bool:
        return not tried.error and None not in (tried.round_trip_s, tried.rate, tried.rate_back)

    return all(len(node.tried) == len(met) - 1 and all(map(whole, node.tried.values())) for node in met)


@pytest.mark.parametrize(("nodes", "address"), [(2, "127.0.0.1"), (5, "127.0.0.1"), (3, "::1")])
def test_all_pairs_meet(nodes: int, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "STREAM_S", 0.001)
    met = asyncio.run(all_of(nodes, address))
    assert is_complete(met) and not any(node.cut for node in met)


def test_heartbeats_at_any_moment_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEART_S", 0.0)
    monkeypatch.setattr(probe, "STREAM_S", 0.001)
    assert is_complete(asyncio.run(all_of(5, "127.0.0.1")))


def test_strangers_are_not_served_and_do_no_harm() -> None:
    """A port scanner, a health probe, and some that have heard of the protocol; more than are waited for."""
    words = [
        b"",
        b"GET / HTTP/1.0\r\n\r\n",
        bytes(200),
        protocol.hello(b"wrong", 1, 0),
        protocol.hello(b"wrong", 99, 0) * 3,
    ]
    assert is_complete(asyncio.run(all_of(3, "127.0.0.1", words * 70)))


def test_one_who_says_nothing_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "AUTH_S", 0.05)

    async def alone() -> bytes:
        """The listener is open while its node waits for another one."""
        this, server = node(0, 2, Words()), connections.listen("127.0.0.1", "lo")
        holding = asyncio.create_task(this.hold(server))
        place = server.getsockname()
        reader, _ = await asyncio.open_connection(*place)
        said = await asyncio.wait_for(reader.read(), 5)
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        with pytest.raises(ConnectionRefusedError):  # and closed when the check is over
            await asyncio.open_connection(*place)
        return said

    assert asyncio.run(alone()) == b""


def test_a_hello_that_is_said_again_is_a_strangers() -> None:
    """As one that was overheard."""

    async def twice() -> list[bytes]:
        this, server = node(0, 2, Words()), connections.listen("127.0.0.1", "lo")
        place, holding = server.getsockname(), asyncio.create_task(this.hold(server))
        said, heard = protocol.hello(this._token, 1, 0), []
        for _ in range(2):
            reader, writer = await asyncio.open_connection(*place)
            writer.write(said)
            heard.append(await asyncio.wait_for(reader.read(protocol.ANSWER_BYTES), 5))
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        return [heard[0], protocol.answer(this._token, said), heard[1]]

    first, expected, second = asyncio.run(twice())
    assert (first, second) == (expected, b"")


@pytest.mark.parametrize(
    ("usual", "spent_s", "tries"),
    [(probe.MUCH * 1e9, 0.0, 0), (1e12, 0.0, probe.MORE_STREAMS), (1e12, probe.MORE_S + 1, 0)],
)
def test_only_what_seems_slow_is_tried_again(
    usual: float, spent_s: float, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []

    async def put(*_: Any) -> bool:
        done.append(1)
        return True

    class Answering:
        async def say(self, *_: int) -> None: ...

        async def hear(self, *_: int) -> tuple[int, int]:
            return protocol.READY, 0

    monkeypatch.setattr(probe, "_put", put)
    monkeypatch.setattr(probe, "PAUSE_S", 0.0)
    line: Any = Answering()
    asyncio.run(probe.ask_again(line, Tried(rate=1e9), usual, Own(more_s=spent_s)))
    assert len(done) == tries


@pytest.mark.parametrize("nodes", [2, 3])
def test_what_a_busy_core_made_slow_is_right_after_the_last_rounds(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 1 had no core while it sent to node 0, for the first time."""
    ask = probe.ask

    async def ask_busy(line: PeerConnection, tried: Tried, exchange: Exchange, own: Own) -> None:
        await ask(line, tried, exchange, own)
        if not slow:
            slow.append(tried)
            tried.rate = 1000.0

    slow: list[Tried] = []
    monkeypatch.setattr(probe, "STREAM_S", 0.001)
    monkeypatch.setattr(probe, "ask", ask_busy)
    assert is_complete(asyncio.run(all_of(nodes, "127.0.0.1")))
    assert slow[0].rate and slow[0].rate > 1e6


def test_only_who_knows_the_token_is_admitted() -> None:
    said = protocol.hello(TOKEN, 3, 7)
    assert len(said) == protocol.HELLO_BYTES and TOKEN not in said
    assert protocol.admitted(TOKEN, said, 7) == (3, protocol.answer(TOKEN, said))
    assert protocol.admitted(b"another", said, 7) is protocol.admitted(TOKEN, said, 8) is None
    changed = bytes([said[0] ^ 1]) + said[1:]
    assert protocol.admitted(TOKEN, changed, 7) is None
    as_another = said[:11] + b"\x04" + said[12:]
    assert protocol.admitted(TOKEN, as_another, 7) is None


def test_who_answers_without_the_token_is_a_stranger() -> None:
    """As another host does that has the address, too."""

    async def tried(answer: bytes | None) -> str:
        async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(protocol.HELLO_BYTES)
            if answer is not None:
                writer.write(answer)
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(other, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        alone = node(0, 2, Words())
        alone.tried = {1: Tried()}
        await alone._connect(1, {"address": "127.0.0.1", "port": port, "token": TOKEN.hex()})
        server.close()
        return alone.tried[1].error

    assert [asyncio.run(tried(answer)) for answer in (None, bytes(64), b"SSH-2.0-OpenSSH_9\r\n" * 4)] == [
        "stranger"
    ] * 3


def test_a_port_where_nobody_listens_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    alone = node(0, 2, Words())
    alone.tried = {1: Tried()}
    asyncio.run(alone._connect(1, {"address": "127.0.0.1", "port": port, "token": TOKEN.hex()}))
    assert alone.tried[1].error == "refused"


@pytest.mark.parametrize(
    ("number", "kind", "why"),
    [
        (errno.EADDRNOTAVAIL, "other", "cannot assign requested address"),
        (errno.ENOBUFS, "other", "no buffer space available"),
        (errno.EPERM, "other", "operation not permitted"),
        (errno.EHOSTUNREACH, "no_route", ""),
        (errno.EPIPE, "reset", ""),
    ],
)
def test_an_error_of_the_system_is_told_in_its_words(
    number: int, kind: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(connections, "_target", fails)
    assert connected() == Tried(kind, why)


def test_who_may_open_no_more_files_says_so_and_goes_on() -> None:
    def full() -> None:
        most = max(map(int, os.listdir("/proc/self/fd")))
        held.extend(os.dup(0) for _ in range(most))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, limits[1]))

    held: list[int] = []
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert connected(full) == Tried("other", "too many open files")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for node in held:
            os.close(node)


def connected(first: Callable[[], None] = lambda: None) -> Tried:
    """What node 0 says of node 1, whose port is closed."""

    async def tried() -> Tried:
        alone = node(0, 2, Words())
        alone.tried = {1: Tried()}
        first()
        await alone._connect(1, {"address": "127.0.0.1", "port": 9, "token": TOKEN.hex()})
        assert not alone._out
        return alone.tried[1]

    return asyncio.run(tried())


def test_a_node_that_never_comes_costs_a_bound_and_the_others_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MEET_S", 0.3)

    async def two_of_three() -> list[Meeting]:
        store = Words()
        met = [node(number, 3, store) for number in range(2)]
        await asyncio.gather(*(node.hold(connections.listen("127.0.0.1", "lo")) for node in met))
        return met

    first, second = asyncio.run(two_of_three())
    assert (first.tried[2].error, second.tried[2].error) == ("late", "late")
    assert not first.tried[1].error and first.tried[1].rate and second.tried[0].rate


def test_nobody_waits_for_a_node_that_cannot_listen() -> None:
    async def two_of_three() -> list[Meeting]:
        store = Words()
        met = [node(number, 3, store) for number in range(2)]
        connections.stand_aside(store, 2)  # type: ignore[arg-type]  # as far as it is used
        await asyncio.gather(*(node.hold(connections.listen("127.0.0.1", "lo")) for node in met))
        return met

    assert [set(node.tried) for node in asyncio.run(two_of_three())] == [{1}, {0}]


def test_when_no_time_is_left_it_ends_and_says_so() -> None:
    async def alone() -> Meeting:
        alone = node(0, 2, Words(), seconds=0.1)
        await alone.hold(connections.listen("127.0.0.1", "lo"))
        return alone

    assert asyncio.run(alone()).cut


async def joined(
    client: Callable[[PeerConnection], Awaitable[None]], server: Callable[[PeerConnection], Awaitable[None]]
) -> None:
    tcp = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(tcp.getsockname())
    other, _ = tcp.accept()
    for end in (one, other):
        end.setblocking(False)
    lines = PeerConnection(one), PeerConnection(other)

    async def beat() -> None:
        while True:
            for line in lines:
                line.beat()
            await asyncio.sleep(0.01)

    beating = asyncio.create_task(beat())
    await asyncio.gather(client(lines[0]), server(lines[1]))
    beating.cancel()
    for line in lines:
        line.release()
    tcp.close()


def test_heartbeats_do_no_harm_to_what_is_said_or_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, served = Tried(), Exchange()
    monkeypatch.setattr(probe, "STREAM_S", 0.2)

    async def ask(line: PeerConnection) -> None:
        await probe.ask(line, tried, Exchange(), Own())

    async def serve(line: PeerConnection) -> None:
        await asyncio.sleep(0.1)  # busy with another one: the client hears heartbeats meanwhile
        await probe.serve(line, served, Own())

    asyncio.run(joined(ask, serve))
    assert tried.rate and tried.rate_back and tried.round_trip_s and tried.stalled is None and not served.stalled


def test_who_waits_hears_heartbeats_and_is_patient() -> None:
    async def ask(line: PeerConnection) -> None:
        assert await line.hear(protocol.PING, patience_s=1.0) == (protocol.PING, 5)

    async def serve(line: PeerConnection) -> None:
        await asyncio.sleep(1.2)
        await line.say(protocol.PING, 5)

    asyncio.run(joined(ask, serve))


def test_half_a_heartbeat_is_made_whole() -> None:
    class Full:
        """A socket that has room for four bytes, and then for more."""

        sent, room = b"", 4

        def setsockopt(self, *_: int) -> None: ...

        def getsockopt(self, *_: int) -> bytes:
            return b""  # it counts nothing

        def send(self, words: bytes) -> int:
            taken, self.room = words[: self.room], 100
            self.sent += taken
            return len(taken)

    sock: Any = Full()
    line = PeerConnection(sock)
    line.beat()
    line.beat()
    line.beat()
    assert sock.sent == protocol._FRAME.pack(protocol.HEART, 0) * 2


def test_where_nothing_comes_it_is_silent() -> None:
    async def hears(line: PeerConnection) -> None:
        with pytest.raises(Refused, match="silent"):
            await line.hear(protocol.PING, patience_s=0.05)
        start = time.monotonic()
        with pytest.raises(Refused, match="silent"):
            await line.say(protocol.PING)
        assert time.monotonic() - start < 1, "it is known by now"

    async def alone() -> None:
        tcp = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(tcp.getsockname())
        client.setblocking(False)
        line = PeerConnection(client)
        await hears(line)
        line.release()
        tcp.close()

    asyncio.run(alone())


def test_data_that_stalls_is_told_by_who_receives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the data does not leave: half of it is never sent."""
    monkeypatch.setattr(probe, "STALL_S", 0.1)  # read by both ends when they have met

    async def half(line: PeerConnection, kind: int, size: int, patience_s: float, **_: bool) -> None:
        async with line._turn(patience_s):
            said = protocol._FRAME.pack(kind, size) + bytes(size // 2)
            await asyncio.get_running_loop().sock_sendall(line._sock, said)
            await asyncio.sleep(patience_s)

    monkeypatch.setattr(PeerConnection, "send_data", half)
    tried, served, asked = Tried(), Exchange(), Exchange(patience_s=0.1)

    async def ask(line: PeerConnection) -> None:
        await probe.ask(line, tried, asked, Own())

    async def serve(line: PeerConnection) -> None:
        with pytest.raises(Refused, match="stalled"):
            await probe.serve(line, served, Own())

    asyncio.run(joined(ask, serve))
    assert tried.stalled == timeouts.LARGE // 2 and tried.rate is None and not tried.error
    assert (asked.stalled, served.stalled) == ({"out"}, {"back"})


def test_after_some_stalls_patience_is_shorter_on_both_ends() -> None:
    assert probe._patience_s(0, timeouts.KNOWN - 1) == timeouts.STALL_S
    assert probe._patience_s(timeouts.KNOWN, 0) == probe._patience_s(0, timeouts.KNOWN) == timeouts.SHORT_STALL_S


def test_a_frame_that_was_not_asked_for_ends_the_connection() -> None:
    async def ask(line: PeerConnection) -> None:
        await line.say(protocol.READY)
        await line.hear(protocol.READY)
        await line.say(protocol.READY)
        await line.say(protocol.PUT, protocol.LONGEST + 1)

    async def serve(line: PeerConnection) -> None:
        with pytest.raises(Refused, match="stranger"):
            await probe.serve(line, Exchange(), Own())

    asyncio.run(joined(ask, serve))
