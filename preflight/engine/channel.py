"""JSON messages over a socket pair, between a supervisor and its children. Never blocks the supervisor."""

import json
import select
import socket
import struct
from collections import deque
from typing import Any

_LENGTH = struct.Struct("!I")
MESSAGE_LIMIT = 64 * 1024 * 1024
"""Bytes. A longer length in a header means that something else wrote into the socket."""


class Closed(Exception):  # noqa: N818 -- an event
    """The other end is gone."""


class Channel:
    """One end. The other may be stopped in the middle of a message: only `send_all` and `wait` wait for it."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._messages: deque[dict[str, Any]] = deque()
        self.closed = False

    @staticmethod
    def pair() -> tuple["Channel", "Channel"]:
        mine, other = socket.socketpair()
        return Channel(mine), Channel(other)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Whether some of what was sent is still queued here."""
        return bool(self._outgoing) and not self.closed

    def send(self, message: dict[str, object]) -> None:
        """Queues a message and writes what can be written now."""
        data = json.dumps(message).encode()
        self._outgoing += _LENGTH.pack(len(data)) + data
        self.flush()

    def flush(self) -> None:
        while self._outgoing and not self.closed:
            try:
                sent = self._socket.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError:
                self.closed = True
                return
            del self._outgoing[:sent]

    def receive(self) -> dict[str, Any] | None:
        """The next complete message, or None."""
        if not self._messages:
            self._read()
        return self._messages.popleft() if self._messages else None

    def _read(self) -> None:
        while not self.closed:
            try:
                data = self._socket.recv(1 << 20)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            self._incoming += data
        self._parse()

    def _parse(self) -> None:
        at = 0
        while len(self._incoming) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming, at)
            if length > MESSAGE_LIMIT:
                self.closed = True
                break
            end = at + _LENGTH.size + length
            if len(self._incoming) < end:
                break
            try:
                message = json.loads(self._incoming[at + _LENGTH.size : end])
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                self.closed = True
                break
            self._messages.append(message)
            at = end
        del self._incoming[:at]

    def send_all(self, message: dict[str, Any]) -> None:
        """In a child, which may wait: returns when everything is written. Raises Closed."""
        self.send(message)
        while self._outgoing:
            if self.closed:
                raise Closed
            select.select([], [self._socket], [])
            self.flush()

    def wait(self) -> dict[str, Any]:
        """In a child, which may wait: the next message. Raises Closed."""
        while True:
            message = self.receive()
            if message is not None:
                return message
            if self.closed:
                raise Closed
            select.select([self._socket], [], [])

    def close(self) -> None:
        self.closed = True
        self._socket.close()
