"""The connections of net.mesh: who may open one, and the frames on it.

A listener has a token, which only travels through the job's store. A peer proves that it knows the token, and says
which node it is; the listener then proves the same (HMAC-SHA256 over a nonce). For anyone else it closes silently.
Then follow frames of 9 bytes (a kind and a number), and data of an agreed length. Each end sends heartbeats while it
has nothing else to say, to tell a waiting node from one that is gone.
"""

import asyncio
import contextlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import AsyncIterator

from preflight.checks.net.mesh import sent
from preflight.checks.net.mesh.sent import Sent
from preflight.checks.net.mesh.timeouts import SILENT_S

LONGEST = 256 << 20
"""The most bytes of data that one frame may announce."""

HEART, READY, PING, PONG, PUT, GET, DATA, ARRIVED, STALLED, SLOW, BYE = b"HRPQUGDATSB"
_FRAME = struct.Struct("!BQ")
_HELLO = struct.Struct("!8sII16s32s")
_MAGIC = b"pf-mesh1"
_CHUNK, _LEAST = 1 << 20, 512
"""Bytes: what is handed to the kernel at once, and at least in a packet (the smallest MSS, RFC 9293, is 536)."""


class Refused(Exception):  # noqa: N818 -- says what happened
    """No connection to the node, or no longer; the text is the kind: `silent`, `reset`, `left`, `stranger`."""


def kind_of(error: OSError) -> str:
    """What became of a connection: reset by someone, or another system error."""
    return "reset" if isinstance(error, ConnectionResetError | BrokenPipeError) else "left"


def hello(token: bytes, sender: int, to: int) -> bytes:
    """The first message of the connecting side."""
    nonce = secrets.token_bytes(16)
    return _HELLO.pack(_MAGIC, sender, to, nonce, _proof(token, b"hello", sender, to, nonce))


def admitted(token: bytes, greeting: bytes, own: int) -> tuple[int, bytes] | None:
    """(number of the peer, our proof for it); None for a stranger."""
    magic, sender, to, nonce, proof = _HELLO.unpack(greeting)
    known = hmac.compare_digest(proof, _proof(token, b"hello", sender, to, nonce))
    return (sender, answer(token, greeting)) if known and magic == _MAGIC and to == own else None


def answer(token: bytes, greeting: bytes) -> bytes:
    """The listener's answer to a hello."""
    _, sender, to, nonce, _ = _HELLO.unpack(greeting)
    return _proof(token, b"welcome", sender, to, nonce)


def _proof(token: bytes, word: bytes, sender: int, to: int, nonce: bytes) -> bytes:
    return hmac.digest(token, word + struct.pack("!II", sender, to) + nonce, "sha256")


HELLO_BYTES, ANSWER_BYTES = _HELLO.size, 32


async def read(sock: socket.socket, size: int, patience_s: float) -> bytes:
    """Reads exactly `size` bytes. Raises Refused."""
    got = b""
    try:
        async with asyncio.timeout(patience_s):
            while len(got) < size:
                some = await asyncio.get_running_loop().sock_recv(sock, size - len(got))
                if not some:
                    raise Refused("left")
                got += some
    except TimeoutError:
        raise Refused("silent") from None
    except OSError as error:
        raise Refused(kind_of(error)) from None
    return got


class PeerConnection:
    """A connection to another node, after both sides authenticated."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = False
        self._owed = b""
        """The rest of a heartbeat that did not fit the kernel's buffer."""
        self.error = ""
        """Why it can no longer be used, or ""."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._before = sent.sent(sock)

    @property
    def sent(self) -> Sent | None:
        """What was sent on it since both sides authenticated; None where the kernel does not say."""
        now = sent.sent(self._sock)
        return now.since(self._before) if now and self._before else None

    @property
    def segment_bytes(self) -> int:
        return sent.segment_bytes(self._sock)

    @property
    def rtt_variation_s(self) -> float:
        return sent.rtt_variation_s(self._sock)

    def close(self, why: str = "left") -> None:
        """Shuts the connection down and wakes its waiters. Keeps the descriptor until `release`: a waiter may still
        use it, and the next socket would get its number."""
        if not self.error:
            self.error = why
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Closes the descriptor, once nothing waits on it."""
        self.close()
        self._sock.close()

    def beat(self) -> None:
        """Sends a heartbeat, unless something else is being sent. Notices a peer that is gone."""
        if self._sending or self.error:
            return
        try:
            words = self._owed or _FRAME.pack(HEART, 0)
            self._owed = words[self._sock.send(words) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(kind_of(error))

    async def say(self, kind: int, number: int = 0) -> None:
        """Sends a frame, within SILENT_S. Raises Refused."""
        async with self._turn(SILENT_S):
            await asyncio.get_running_loop().sock_sendall(self._sock, _FRAME.pack(kind, number))

    async def hear(self, *expected: int, patience_s: float = SILENT_S) -> tuple[int, int]:
        """The next frame other than a heartbeat; heartbeats restart the timeout. Raises Refused, also for an unexpected
        frame."""
        kind = HEART
        while kind == HEART:
            self._check()
            try:
                kind, number = _FRAME.unpack(await read(self._sock, _FRAME.size, patience_s))
            except Refused as error:
                self.close(str(error))
                raise Refused(self.error) from None
        if kind not in expected or number > LONGEST:
            self.close("stranger")
            raise Refused("stranger")
        return kind, number

    async def send_data(self, kind: int, size: int, patience_s: float, apart: bool = False) -> None:
        """Sends a frame and `size` bytes, with no heartbeat between them. `apart`: as packets that stay single
        where the kernel passes on many at once, as to a virtual card, so that each may be lost by itself. Raises
        Refused."""
        most = max(self.segment_bytes, _LEAST) if apart else _CHUNK
        chunk = memoryview(bytes(min(size, most)))
        async with self._turn(patience_s):
            await asyncio.get_running_loop().sock_sendall(self._sock, _FRAME.pack(kind, size))
            for start in range(0, size, most):
                await self._send(chunk[: size - start], socket.MSG_EOR if apart else 0)

    async def _send(self, data: memoryview, flags: int) -> None:
        """Hands it to the kernel at once where there is room. Raises OSError."""
        try:
            sent_bytes = self._sock.send(data, flags)
        except BlockingIOError:
            sent_bytes = 0
        await asyncio.get_running_loop().sock_sendall(self._sock, data[sent_bytes:])

    async def receive(self, size: int, stall_s: float, most_s: float) -> tuple[int, int]:
        """(ARRIVED, STALLED after `stall_s` without a byte, or SLOW after `most_s`; how many bytes came). Raises
        Refused."""
        loop, view, got = asyncio.get_running_loop(), memoryview(bytearray(min(size, _CHUNK))), 0
        end = time.monotonic() + most_s
        try:
            while got < size:
                if time.monotonic() > end:
                    return SLOW, got
                async with asyncio.timeout(stall_s):
                    some = await loop.sock_recv_into(self._sock, view[: size - got])
                if not some:
                    self.close()
                    raise Refused(self.error)
                got += some
        except TimeoutError:
            return STALLED, got
        except OSError as error:
            self.close(kind_of(error))
            raise Refused(self.error) from None
        return ARRIVED, got

    def _check(self) -> None:
        if self.error:
            raise Refused(self.error)

    @contextlib.asynccontextmanager
    async def _turn(self, patience_s: float) -> AsyncIterator[None]:
        """While it is held, no heartbeat is sent in between."""
        self._check()
        self._sending = True
        try:
            async with asyncio.timeout(patience_s):
                await asyncio.get_running_loop().sock_sendall(self._sock, self._owed)
                self._owed = b""
                yield
        except TimeoutError:
            self.close("silent")
            raise Refused("silent") from None
        except OSError as error:
            self.close(kind_of(error))
            raise Refused(self.error) from None
        finally:
            self._sending = False
