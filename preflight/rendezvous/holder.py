"""Who has a port of this host."""

import contextlib
import errno
import os
import socket
import time


def problem(port: int) -> tuple[str, str]:
    """("taken" or "refused", the system's words), or ("", "") where a server may listen at this port."""
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
    """The process that listens there, or whose connection goes out from there: "python3 (process 42 of ann, since
    3 hours)"; "another process" where it cannot be seen. Its command line is not told: it may hold secrets."""
    import psutil

    users = [one for one in psutil.net_connections("tcp") if one.laddr and one.laddr.port == port]
    users.sort(key=lambda one: one.status != psutil.CONN_LISTEN)
    for one in users:
        if one.pid:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(one.pid)
                module = _module(process.cmdline())
                age = _age(time.time() - process.create_time())
                who = f"{process.name()}{module} (process {one.pid} of {process.username()}, started {age} ago"
                return (
                    f"{who})" if one.status == psutil.CONN_LISTEN else f"{who}; its own connection goes out from there)"
                )
    why = "; as root its name could be seen" if users and os.geteuid() else ""
    return f"another process{why or ' (of another container, perhaps)'}"


def _module(words: list[str]) -> str:
    """What a Python runs by -m: of an agent of torchrun it is the word that tells."""
    at = words.index("-m") + 1 if "-m" in words[:4] else len(words)
    scripts = [os.path.basename(word) for word in words[1:2] if os.path.basename(word) == "torchrun"]
    found = [*words[at : at + 1], *scripts]
    return f" {found[0]}" if found else ""


def _age(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
