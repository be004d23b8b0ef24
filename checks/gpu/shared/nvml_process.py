"""The process that asks NVML: a call on a sick GPU can block for ever and no signal interrupts it, so it may be killed.

Questions and answers are JSON over a pipe: [group, arguments], then {"values", "notes"} or {"trouble": [kind, call,
text]}. The name of every call stands in shared memory before the call is made, so that a hang has a name.
"""

import contextlib
import json
import mmap
import os
import signal
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from preflight.checks.gpu.shared import links, nvml

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

HANGS, DIED, UNKNOWN = "hangs", "died", "unknown"
"""No answer in time; the process ended over it; nobody can tell, since the fault is ours."""
KILL_S = 1.0
"""A process in uninterruptible sleep does not end; it is left behind."""
_PR_SET_PDEATHSIG = 1


class Process:
    """Lives as long as the worker, or until a question goes unanswered."""

    def __init__(self) -> None:
        import multiprocessing

        self._calling = mmap.mmap(-1, 256)
        ours, theirs = multiprocessing.Pipe()
        self._connection = ours
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(theirs, self._calling, os.getpid()), daemon=True
        )
        self._process.start()
        theirs.close()

    def ask(self, group: str, arguments: list[Any], within_s: float) -> dict[str, Any]:
        """The answer; `trouble` is HANGS or DIED where there is none. `disturbed`: somebody stopped or killed the
        process, which says nothing of the GPU."""
        start = time.monotonic()
        try:
            self._connection.send_bytes(json.dumps([group, arguments]).encode())
            if self._connection.poll(within_s):
                return cast("dict[str, Any]", json.loads(self._connection.recv_bytes()))
            kind, text = HANGS, f"no answer within {time.monotonic() - start:.1f} s"
            disturbed = _is_stopped(self._process.pid)
        except (EOFError, OSError):
            self._await_end()
            kind, text = DIED, f"the process that asked ended with {self._process.exitcode}"
            disturbed = self._process.exitcode in (-signal.SIGKILL, -signal.SIGTERM)
        call = self._calling[:].rstrip(b"\0").decode(errors="replace")
        return {"trouble": [kind, call, text], "seconds": time.monotonic() - start, "disturbed": disturbed}

    def end(self) -> None:
        self._process.kill()
        self._await_end()
        self._connection.close()

    def _await_end(self) -> None:
        """Not by join(): its bound is that of a descriptor which the process has closed, and then it waits for ever
        for one in uninterruptible sleep."""
        end = time.monotonic() + KILL_S
        while self._process.exitcode is None and time.monotonic() < end:
            time.sleep(0.005)


def _is_stopped(pid: int | None) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _serve(connection: "Connection", calling: mmap.mmap, worker: int) -> None:
    """What the process runs: it answers until its worker is gone, and keeps no other descriptor of the worker's."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, connection.fileno()):
            with contextlib.suppress(OSError):  # that of the listing itself has been closed
                os.close(int(name))
    nvml.announce_to(lambda name: _write(calling, name))
    with contextlib.suppress(EOFError, OSError):
        while os.getppid() == worker:
            group, arguments = json.loads(connection.recv_bytes())
            connection.send_bytes(json.dumps(_answer(group, arguments)).encode())
    os._exit(0)


def _write(calling: mmap.mmap, name: str) -> None:
    calling[:] = name.encode()[:256].ljust(256, b"\0")


def _answer(group: str, arguments: list[Any]) -> dict[str, Any]:
    functions: Mapping[str, Any] = {
        "start": nvml.start, "system": nvml.system, "handle": nvml.handle, "identity": nvml.identity,
        "health": nvml.health, "pcie": links.pcie, "nvlink": links.nvlink, "place": links.place, "torch": _torch_count,
    }  # fmt: skip
    start = time.monotonic()
    nvml.take_notes()
    try:
        return {"values": functions[group](*arguments), "notes": nvml.take_notes()}
    except nvml.Trouble as trouble:
        told = [trouble.kind, trouble.call, trouble.text]
    except Exception as error:  # ours, or that of a pynvml of another kind
        told = [UNKNOWN, group, f"{type(error).__name__}: {error}"]
    return {"trouble": told, "seconds": time.monotonic() - start}


def _torch_count() -> int:
    """How many GPUs CUDA gives torch. Starts the driver's CUDA, which is why it is asked for here."""
    import torch

    nvml.announce("torch.cuda.device_count")
    try:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    except Exception as error:
        raise nvml.Trouble(nvml.ERROR, "torch.cuda.device_count", f"{type(error).__name__}: {error}") from None
