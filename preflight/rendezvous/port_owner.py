"""Which process has a port of this host."""

import contextlib
import errno
import os
import socket
import time

from preflight.core import words


def problem(port: int) -> tuple[str, str]:
    """("taken" or "refused", the system's message), or ("", "") if a server may listen at this port."""
    try:
        with socket.create_server(("", port)):
            pass
        if socket.has_dualstack_ipv6():
            with socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True):
                pass
    except OSError as error:
        return "taken" if error.errno == errno.EADDRINUSE else "refused", os.strerror(error.errno or 0).lower()
    return "", ""


def holder(port: int) -> str:
    """The process that listens there, or connects from there: "python3 (process 42 of ann, started 3 h ago)"; "another
    process" if it cannot be seen. Without its command line, which may hold secrets."""
    import psutil

    users = [user for user in psutil.net_connections("tcp") if user.laddr and user.laddr.port == port]
    users.sort(key=lambda user: user.status != psutil.CONN_LISTEN)
    for user in users:
        if user.pid:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(user.pid)
                module = _module(process.cmdline())
                age = words.duration(time.time() - process.create_time())
                who = f"{process.name()}{module} (process {user.pid} of {process.username()}, started {age} ago"
                listens = user.status == psutil.CONN_LISTEN
                return f"{who})" if listens else f"{who}; its own connection goes out from there)"
    why = "; as root its name could be seen" if users and os.geteuid() else ""
    return f"another process{why or ' (of another container, perhaps)'}"


def _module(command: list[str]) -> str:
    """What Python runs by -m: that shows an agent of torchrun."""
    at = command.index("-m") + 1 if "-m" in command[:4] else len(command)
    scripts = [os.path.basename(word) for word in command[1:2] if os.path.basename(word) == "torchrun"]
    programs = [*command[at : at + 1], *scripts]
    return f" {programs[0]}" if programs else ""
