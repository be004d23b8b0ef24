"""NCCL's RAS: since 2.24 each process of a job answers questions about its communicators at a port of the machine.

The protocol is lines of text (NCCL, src/ras/client_support.cc; its manual, "RAS").
"""

import re
import socket
import time

DEFAULT = "localhost:28028"
"""NCCL_RAS_CLIENT_PORT in src/ras/ras_internal.h."""
PATIENCE_S = 3.0
LIMIT = 64 * 1024
_QUESTION = b"CLIENT PROTOCOL 2\nTIMEOUT 1\nVERBOSE STATUS\n"
"""TIMEOUT: how long the process that answers waits for the others of the job, in seconds."""


def status(address: str, within_s: float = PATIENCE_S) -> str:
    """What RAS says of the job, at most LIMIT bytes; "" where nothing answers there. `address`: as NCCL_RAS_ADDR."""
    end = time.monotonic() + within_s
    match = re.fullmatch(r"\[?([^\[\]]+?)\]?:(\d{1,5})", address)
    if not match:
        return ""
    answer = b""
    try:
        with socket.create_connection((match[1], int(match[2])), within_s) as connection:
            connection.sendall(_QUESTION)
            while len(answer) < LIMIT and (left := end - time.monotonic()) > 0:
                connection.settimeout(left)
                data = connection.recv(65536)
                if not data:
                    break
                answer += data
    except (OSError, OverflowError):
        pass  # what has come so far is better than nothing
    greeting, _, said = answer[:LIMIT].decode(errors="replace").partition("\n")
    return said.removeprefix("OK\n").strip() if greeting.upper().startswith("SERVER PROTOCOL") else ""
