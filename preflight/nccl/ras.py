"""NCCL's RAS: since 2.24 each process of a job answers questions about its communicators at a port of the machine,
since 2.28.7 in JSON, too, and since 2.29 it reports events of the job's processes to listeners.

The protocol is lines of text (NCCL, src/ras/client_support.cc; its manual, "RAS"): an older version answers an unknown
command with ERROR and reads the next.
"""

import contextlib
import re
import socket
import time

from preflight.nccl import ras_snapshot
from preflight.nccl.ras_snapshot import Snapshot
from preflight.nccl.version import is_before

DEFAULT = "localhost:28028"
"""NCCL_RAS_CLIENT_PORT in src/ras/ras_internal.h."""
PATIENCE_S = 3.0
LIMIT = 64 * 1024
"""The most bytes that are kept of an answer in text, and read of the events."""
LARGEST = 8 * 1024 * 1024
"""The most bytes of an answer that are read: NCCL writes 0.7 KiB of JSON per rank of each communicator."""
_QUESTION = b"CLIENT PROTOCOL 2\nTIMEOUT 1\nSET FORMAT json\nVERBOSE STATUS\n"
"""TIMEOUT: how many seconds the answering process waits for the others of the job."""
_MONITOR = b"CLIENT PROTOCOL 2\nSET FORMAT json\nMONITOR\nMONITOR all\n"
"""`all`: also reports a process that does not answer, 60 s before it counts as dead. 2.29 may not know the word."""


def status(address: str, within_s: float = PATIENCE_S) -> str:
    """What RAS says about the job, in JSON if it can; "" if nothing answers. `address`: as in NCCL_RAS_ADDR."""
    end = time.monotonic() + within_s
    answer = bytearray()
    # what has come before an error is better than nothing
    with contextlib.suppress(OSError, OverflowError), _connected(address, within_s) as connection:
        connection.sendall(_QUESTION)
        while len(answer) < LARGEST and (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            data = connection.recv(65536)
            if not data:
                break
            answer += data
    answered = answer[:LARGEST].decode(errors="replace")
    greeting = ras_snapshot.GREETING.match(answered)
    return answered[greeting.end() :].strip() if greeting else ""


class Watch:
    """Asks RAS during one check, more than once: only what does not move is a hang."""

    def __init__(self, address: str, within_s: float = PATIENCE_S) -> None:
        self._address, self._within_s = address, within_s
        self._before: Snapshot | None = None
        self._monitor: socket.socket | None = None
        self._heard = b""

    def ask(self) -> str:
        """A snapshot as JSON (ras_snapshot.read reads it), the text of an older NCCL, or ""."""
        answered = status(self._address, self._within_s)
        snapshot = ras_snapshot.parse(answered)
        if snapshot is None:
            return answered[:LIMIT]
        if self._before is not None:
            snapshot["still"] = ras_snapshot.is_still(self._before, snapshot)
        elif not is_before(snapshot["version"], 2, 29):
            self._listen()
        self._before = snapshot
        snapshot["events"] = self._events()
        return ras_snapshot.to_text(snapshot, LIMIT)

    def close(self) -> None:
        """The check has ended; another thread may still be asking."""
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.close()

    def _listen(self) -> None:
        """Starts listening for events; the kernel buffers them until they are read, so nothing waits."""
        with contextlib.suppress(OSError, OverflowError):
            self._monitor = _connected(self._address, self._within_s)
            self._monitor.sendall(_MONITOR)
            self._monitor.setblocking(False)

    def _events(self) -> list[str]:
        with contextlib.suppress(OSError):  # nothing more has come
            while self._monitor is not None and len(self._heard) < LIMIT and (data := self._monitor.recv(65536)):
                self._heard += data
        return ras_snapshot.events(self._heard[:LIMIT].decode(errors="replace"))


def _connected(address: str, within_s: float) -> socket.socket:
    match = re.fullmatch(r"\[?([^\[\]]+?)\]?:(\d{1,5})", address)
    if not match:
        raise OSError(f"{address!r} is not an address and port")
    return socket.create_connection((match[1], int(match[2])), within_s)
