"""A process's RAS as NCCL serves it (src/ras/client_support.cc of 2.30): a line of answer for each line of a question,
the connection ends after a status, and stays for a monitor. The numbers are made up."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

TEXT = "NCCL version 2.27.5 compiled with CUDA 12.9\n\nJob summary\n===========\n"
ZERO = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def rank(number: int, *, launched: Mapping[str, int], init: int = 0, error: int = 0) -> dict[str, Any]:
    status = {"init_state": init, "async_error": error, "finalize_called": False, "destroy_flag": False,
              "abort_flag": False}  # fmt: skip
    return {**_place(number), "status": status, "collective_counts": {**dict.fromkeys(ZERO, 0), **launched}}


def missing(number: int, *, dead: bool = False) -> dict[str, Any]:
    return {**_place(number), "status": {"unresponsive": True, "considered_dead": dead}}


def _place(number: int) -> dict[str, Any]:
    return {"rank": number, "host": f"10.0.0.{number + 1}", "pid": 4000 + number, "cuda_dev": 0, "nvml_dev": 0}


def answer(
    ranks: Sequence[Mapping[str, Any]], gone: Sequence[Mapping[str, Any]] = (), *, version: str = "2.30.7",
    more: Sequence[Mapping[str, Any]] = (),
) -> str:  # fmt: skip
    """The status of a job of one communicator, and of `more`."""
    return json.dumps({
        "nccl_version": version, "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
        "timestamp": "2026-02-03 04:05:06", "communicators_count": 1,
        "communicators": [communicator(ranks, gone), *more],
        "ras": {"collection_time_sec": 0.01, "timeouts_count": 0},
    }, indent=2) + "\n"  # fmt: skip


def communicator(ranks: Sequence[Mapping[str, Any]], gone: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    return {"hash": "0x1234", "secondary_hash": "0x5:0x6", "size": len(ranks) + len(gone), "ranks_count": len(ranks),
            "missing_ranks_count": len(gone), "ranks": list(ranks), "missing_ranks": list(gone)}  # fmt: skip


def event(name: str, number: int, details: str = "") -> str:
    peer = {**_place(number), "cuda_devs": [0], "nvml_devs": [0]}
    kept = {key: peer[key] for key in ("host", "pid", "cuda_devs", "nvml_devs")}
    told = {"timestamp": "2026-02-03 04:05:07", "group": "TRACE", "event": name, "peer": kept, "details": details}
    return json.dumps(told, indent=2) + "\n"


Answering = Callable[[socket.socket], None]


def as_nccl(
    statuses: Iterator[str],
    events: str = "",
    *,
    knows: Sequence[str] = ("SET", "MONITOR"),
    monitored: threading.Event | None = None,
) -> Answering:
    """`knows`: the commands beyond those of 2.24. Without SET the status is TEXT. `monitored` is set once a listener
    has been sent the events."""

    def answering(connection: socket.socket) -> None:
        as_json = False
        for line in connection.makefile():
            command, word = line.strip().upper(), line.split()[0].upper()
            if command.endswith("STATUS"):
                connection.sendall((next(statuses) if as_json else TEXT).encode())
                return
            if word in ("SET", "MONITOR") and word not in knows:
                connection.sendall(f"ERROR: Unknown command {line}".encode())
                continue
            as_json |= word == "SET"
            connection.sendall(b"SERVER PROTOCOL 2\n" if word == "CLIENT" else b"OK\n")
            if command == "MONITOR":
                connection.sendall(events.encode())
                if monitored:
                    monitored.set()

    return answering


@contextlib.contextmanager
def served(answering: Answering, family: int = socket.AF_INET) -> Iterator[int]:
    """The port at which connections are answered, each by a thread."""
    with socket.socket(family) as listener:
        listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        listener.listen()
        threads: list[threading.Thread] = []

        def talk(connection: socket.socket) -> None:
            with contextlib.suppress(OSError), connection:
                answering(connection)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threads.append(threading.Thread(target=talk, args=(listener.accept()[0],)))
                    threads[-1].start()

        accepting = threading.Thread(target=serve)
        accepting.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        for thread in (accepting, *threads):
            thread.join()
