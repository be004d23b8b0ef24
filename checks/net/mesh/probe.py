"""What two nodes do on a connection, as requested by the one that opened it: round trips, 1 MiB each way, a stream.

With a wrong MTU on the way, small messages pass but large ones stall: these have their own timeout, and the receiver
says how much arrived.
"""

import asyncio
import time
from dataclasses import dataclass, field

from preflight.checks.net.mesh import protocol
from preflight.checks.net.mesh.protocol import PeerConnection, Refused
from preflight.checks.net.mesh.sent import SURE, Sent
from preflight.checks.net.mesh.timeouts import (
    ANSWER_S,
    KNOWN,
    LARGE,
    LARGE_S,
    SHORT_STALL_S,
    SILENT_S,
    STALL_S,
)

ROUND_TRIPS = 8
STREAM_S, STREAM_MOST_S = 0.03, 2.0
STREAMS, MORE_STREAMS = 2, 6
"""The best stream counts; after all rounds more follow if it is much slower than usual."""
MUCH, PAUSE_S = 3, 0.02
"""The factor that counts as slow, below the check's limit for a warning; and the pause before each repeat, which grows
so that a busy moment passes: a process that slept gets a core next."""
MORE_S = 8.0
"""Seconds of repeated streams per node: enough to be sure of one behind a slow link."""
BURST, PACKETS = 8, 2000
"""Packets per burst, and in all to one partner. A burst is less than what TCP sends at first into any network (10,
RFC 6928), and the next one leaves when it has arrived: what is lost was not too much. Of 2,000, 0.5 percent are 10."""
PLENTY = 6
"""So many lost packets are told from none and from few; then the bursts end."""
BURSTS_S, UNSURE_S, ALL_BURSTS_S = 0.5, 1.5, 3.0
"""For the bursts to one partner (30 ms without a loss, on idle cores; each loss may cost 0.2 s), for those of which a
few were lost, too few to be sure, and for all partners."""


@dataclass
class Tried:
    """What a node saw of one partner, on the connection that it opened itself."""

    error: str = ""
    """refused, filtered, no_route, stranger, reset, silent; left: the partner went away; late: no time was left;
    other: see `why`."""
    why: str = ""
    """This node's system error, if the error is not the network's."""
    round_trip_s: float | None = None
    """The shortest of several."""
    rate: float | None = None
    """Bytes per second to the partner; the best of several."""
    rate_back: float | None = None
    """Bytes per second from the partner, for 1 MiB."""
    stalled: int | None = None
    """How many bytes of 1 MiB to the partner arrived before it stalled; None if it did not."""
    stalled_back: int | None = None
    sent: Sent | None = None
    """Of the first look: bulk data fills queues, so that a sound network may lose some of it."""
    in_bursts: Sent | None = None
    """Of the second look, in bursts that fill no queue."""
    rtt_variation_s: float | None = None
    """After the second look."""


@dataclass
class Own:
    """What this node learned from all its partners."""

    stalls: int = 0
    """The number of partners with which large messages stalled."""
    more_s: float = 0.0
    """Seconds spent on repeated streams."""
    bursts_s: float = 0.0
    """Seconds spent on bursts."""


@dataclass
class Exchange:
    """What the two connections between two nodes have shown, so that no timeout is paid twice."""

    patience_s: float = STALL_S
    stalled: set[str] = field(default_factory=set)
    """Directions in which data stalled: `out`, `back` as seen from this node."""
    slow: set[str] = field(default_factory=set)
    """Directions in which data did not arrive within LARGE_S."""

    def may(self, way: str) -> bool:
        """Whether sending data that way is worthwhile."""
        return way not in self.stalled | self.slow

    def note(self, way: str, kind: int) -> None:
        """Records what became of data that way."""
        if kind in (protocol.STALLED, protocol.SLOW):
            (self.stalled if kind == protocol.STALLED else self.slow).add(way)


async def ask(line: PeerConnection, tried: Tried, exchange: Exchange, own: Own) -> None:
    """Measures all fields of `Tried` on the connection that this node opened. Raises Refused."""
    await _meet(line, exchange, own)
    for _ in range(ROUND_TRIPS):
        start = time.perf_counter()
        await line.say(protocol.PING)
        await line.hear(protocol.PONG)
        took = time.perf_counter() - start
        tried.round_trip_s = min(took, tried.round_trip_s or took)
    if exchange.may("out") and not await _put(line, LARGE, LARGE_S, tried, exchange):
        return
    if exchange.may("back") and not await _get(line, tried, exchange):
        return
    if tried.rate:
        for _ in range(STREAMS):
            if not await _stream(line, tried, exchange):
                return
    await line.say(protocol.BYE)


async def ask_again(line: PeerConnection, tried: Tried, usual: float, own: Own, is_suspect: bool = False) -> None:
    """After all rounds, measures again what seems slow compared with `usual` (bytes per second), and, where packets to
    the partner may be lost (`is_suspect`), how many. Busy cores on either end look like a slow link as long as a
    process gets none. Raises Refused."""
    exchange = Exchange()
    await _meet(line, exchange, own)
    if is_suspect and own.bursts_s < ALL_BURSTS_S and not await _bursts(line, tried, exchange, own):
        return
    for number in range(1, MORE_STREAMS + 1):
        if tried.rate is None or MUCH * tried.rate >= usual or own.more_s > MORE_S:
            break
        start = time.monotonic()
        await asyncio.sleep(PAUSE_S * number)
        if not await _stream(line, tried, exchange):
            return
        own.more_s += time.monotonic() - start
    await line.say(protocol.BYE)


async def serve(line: PeerConnection, exchange: Exchange, own: Own) -> None:
    """Answers requests on the connection that the partner opened, until it says goodbye. Raises Refused."""
    await line.hear(protocol.READY)
    await line.say(protocol.READY, own.stalls)
    kind, theirs = await line.hear(protocol.READY)
    exchange.patience_s = _patience_s(own.stalls, theirs)
    while True:
        kind, number = await line.hear(protocol.PING, protocol.PUT, protocol.GET, protocol.BYE)
        if kind == protocol.BYE:
            return
        if kind == protocol.PING:
            await line.say(protocol.PONG)
        elif kind == protocol.PUT:
            await _pull(line, number, LARGE_S if number == LARGE else STREAM_MOST_S, exchange)
        else:
            await _push(line, protocol.DATA, number, LARGE_S, exchange)


def _patience_s(own: int, theirs: int) -> float:
    """Seconds to wait for data; both ends compute the same."""
    return SHORT_STALL_S if max(own, theirs) >= KNOWN else STALL_S


async def _meet(line: PeerConnection, exchange: Exchange, own: Own) -> None:
    """Waits for the partner, which sends heartbeats while it is busy with another node."""
    await line.say(protocol.READY)
    _, theirs = await line.hear(protocol.READY)
    await line.say(protocol.READY, own.stalls)
    exchange.patience_s = _patience_s(own.stalls, theirs)


async def _put(line: PeerConnection, size: int, most_s: float, tried: Tried, exchange: Exchange) -> bool:
    """Whether the connection is of use after it."""
    start = time.perf_counter()
    kind, arrived = await _push(line, protocol.PUT, size, most_s, exchange)
    if kind == protocol.STALLED:
        tried.stalled = arrived
    else:
        tried.rate = max(arrived / (time.perf_counter() - start), tried.rate or 0.0)
    return kind == protocol.ARRIVED


async def _get(line: PeerConnection, tried: Tried, exchange: Exchange) -> bool:
    start = time.perf_counter()
    await line.say(protocol.GET, LARGE)
    await line.hear(protocol.DATA)
    kind, arrived = await _pull(line, LARGE, LARGE_S, exchange)
    if kind == protocol.STALLED:
        tried.stalled_back = arrived
    else:
        tried.rate_back = arrived / (time.perf_counter() - start)
    return kind == protocol.ARRIVED


async def _stream(line: PeerConnection, tried: Tried, exchange: Exchange) -> bool:
    """Whether the connection is of use after it."""
    size = min(max(int((tried.rate or 0.0) * STREAM_S), LARGE + 1), protocol.LONGEST)
    return await _put(line, size, STREAM_MOST_S, tried, exchange)


async def _bursts(line: PeerConnection, tried: Tried, exchange: Exchange, own: Own) -> bool:
    """Counts what is lost of packets that come a few at a time. Whether the connection is of use after it."""
    if (before := line.sent) is None:
        return True  # the kernel does not count
    start, kind = time.monotonic(), protocol.ARRIVED
    for _ in range(0, PACKETS, BURST):
        if kind != protocol.ARRIVED or _is_enough(line, before, time.monotonic() - start):
            break
        burst = line.send_data(protocol.PUT, BURST * line.segment_bytes, SILENT_S, apart=True)
        kind, _ = await _outcome(line, asyncio.create_task(burst), exchange)
    if kind == protocol.ARRIVED:
        await line.say(protocol.PING)  # what has arrived twice is known before its answer
        await line.hear(protocol.PONG)
    if now := line.sent:
        tried.in_bursts, tried.rtt_variation_s = now.since(before), line.rtt_variation_s
    own.bursts_s += time.monotonic() - start
    return kind == protocol.ARRIVED


def _is_enough(line: PeerConnection, before: Sent, took_s: float) -> bool:
    """Whether what was sent in bursts says whether packets are lost, or has taken too long."""
    now = line.sent
    lost = now.since(before).lost if now else 0
    return lost >= PLENTY or took_s > (UNSURE_S if 0 < lost < SURE else BURSTS_S)


async def _push(line: PeerConnection, word: int, size: int, most_s: float, exchange: Exchange) -> tuple[int, int]:
    """Sends data, and hears from the receiver what became of it. Raises Refused."""
    patience_s = most_s + exchange.patience_s + SILENT_S
    sending = asyncio.create_task(line.send_data(word, size, patience_s, apart=size == LARGE))
    return await _outcome(line, sending, exchange)


async def _outcome(line: PeerConnection, sending: asyncio.Task[None], exchange: Exchange) -> tuple[int, int]:
    """What became of data that is being sent. Small messages passed just before, so if nothing at all arrives any more,
    not even a heartbeat, the data has stalled (acknowledgements of the receiver's words are lost with it). Raises
    Refused."""
    try:
        expected = (protocol.ARRIVED, protocol.STALLED, protocol.SLOW)
        kind, arrived = await line.hear(*expected, patience_s=exchange.patience_s + ANSWER_S)
    except Refused:
        if line.error != "silent":
            raise
        kind, arrived = protocol.STALLED, 0
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    exchange.note("out", kind)
    _end(line, kind)
    return kind, arrived


async def _pull(line: PeerConnection, size: int, most_s: float, exchange: Exchange) -> tuple[int, int]:
    """Receives data, and says what became of it. Raises Refused."""
    kind, arrived = await line.receive(size, exchange.patience_s, most_s)
    exchange.note("back", kind)
    await line.say(kind, arrived)
    _end(line, kind)
    return kind, arrived


def _end(line: PeerConnection, kind: int) -> None:
    """Closes the connection unless all data arrived: the rest could not be told from what follows."""
    if kind != protocol.ARRIVED:
        line.close("stalled" if kind == protocol.STALLED else "slow")
