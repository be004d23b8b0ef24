"""The connections of net.mesh: who may open one, and the frames on it.

A listener has a token, which travels over the job's store only. Who connects proves that it knows it, and says which
node it is; the listener then proves the same (HMAC-SHA256 over a nonce). To anybody else it says nothing and closes.
After that there are frames of 9 bytes (a kind and a number), and data of a length that was agreed on. Each end sends
a heartbeat while it has nothing else to say, so that a node that waits is told from one that is gone.
"""

import asyncio
import contextlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import AsyncIterator

from preflight.checks.net.mesh.timeouts import SILENT_S

LONGEST = 256 << 20
"""Bytes of data that one frame may announce."""

HEART, READY, PING, PONG, PUT, GET, DATA, ARRIVED, STALLED, SLOW, BYE = b"HRPQUGDATSB"
_FRAME = struct.Struct("!BQ")
_HELLO = struct.Struct("!8sII16s32s")
_MAGIC = b"pf-mesh1"
_CHUNK = 1 << 20


class Refused(Exception):  # noqa: N818 -- says what happened
    """No connection to the node, or none any longer; its text is the kind: `silent`, `reset`, `left`, `stranger`."""


def kind_of(error: OSError) -> str:
    """What has become of a connection: reset by somebody, or another error of the system."""
    return "reset" if isinstance(error, ConnectionResetError | BrokenPipeError) else "left"


def hello(token: bytes, sender: int, to: int) -> bytes:
    """What the one who connects says first."""
    nonce = secrets.token_bytes(16)
    return _HELLO.pack(_MAGIC, sender, to, nonce, _proof(token, b"hello", sender, to, nonce))


def admitted(token: bytes, said: bytes, own: int) -> tuple[int, bytes] | None:
    """(who it is, what proves us to it); None for a stranger."""
    magic, sender, to, nonce, proof = _HELLO.unpack(said)
    known = hmac.compare_digest(proof, _proof(token, b"hello", sender, to, nonce))
    return (sender, answer(token, said)) if known and magic == _MAGIC and to == own else None


def answer(token: bytes, said: bytes) -> bytes:
    """The listener's answer to that hello."""
    _, sender, to, nonce, _ = _HELLO.unpack(said)
    return _proof(token, b"welcome", sender, to, nonce)


def _proof(token: bytes, word: bytes, sender: int, to: int, nonce: bytes) -> bytes:
    return hmac.digest(token, word + struct.pack("!II", sender, to) + nonce, "sha256")


HELLO_BYTES, ANSWER_BYTES = _HELLO.size, 32


async def read(sock: socket.socket, size: int, patience_s: float) -> bytes:
    """Exactly so many bytes. Raises Refused."""
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
    """A connection to another node, after both have proved themselves."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = False
        self._owed = b""
        """The rest of a heartbeat that the kernel had no room for."""
        self.error = ""
        """Why it is of no use any longer."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self, why: str = "left") -> None:
        """No more goes over it; who waits on it wakes. Its descriptor is kept until `release`: somebody may wait on
        it, and the next socket would be given its number."""
        if not self.error:
            self.error = why
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """When nobody waits on it."""
        self.close()
        self._sock.close()

    def beat(self) -> None:
        """A heartbeat, unless something else is on its way. Notices a peer that is gone."""
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
        """A frame, within SILENT_S. Raises Refused."""
        async with self._turn(SILENT_S):
            await asyncio.get_running_loop().sock_sendall(self._sock, _FRAME.pack(kind, number))

    async def hear(self, *expected: int, patience_s: float = SILENT_S) -> tuple[int, int]:
        """The next frame that is no heartbeat; heartbeats renew the patience. Raises Refused, also for a frame that
        was not expected."""
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

    async def send_data(self, kind: int, size: int, patience_s: float) -> None:
        """A frame and so many bytes, with no heartbeat between them. Raises Refused."""
        chunk = memoryview(bytes(min(size, _CHUNK)))
        async with self._turn(patience_s):
            await asyncio.get_running_loop().sock_sendall(self._sock, _FRAME.pack(kind, size))
            for start in range(0, size, _CHUNK):
                await asyncio.get_running_loop().sock_sendall(self._sock, chunk[: size - start])

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
        """No heartbeat comes between the bytes that are sent in it."""
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
