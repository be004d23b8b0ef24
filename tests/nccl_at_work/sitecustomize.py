"""A stand-in for NCCL on a machine without a GPU: gloo does the work, and the log of a made-up machine lies where
NCCL's would. In the folder PREFLIGHT_TEST_NCCL: RANK.log is that log; RANK.error is what init_process_group raises.
Where PREFLIGHT_TEST_BOOTSTRAP is an address, the ranks first meet as NCCL's do, over sockets of their own, and fail as
NCCL does where one of them cannot connect. PREFLIGHT_TEST_NVML is the path of a stand-in for the driver's library,
PREFLIGHT_TEST_LIBNCCL that of one for NCCL's own. PREFLIGHT_TEST_INIT_S is comm.init's deadline instead of a minute."""

import ctypes
import importlib.abc
import importlib.machinery
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

UNREACHABLE = "socketStartConnect: connect to {}<{}> returned {}, exceeded error retry count after 35 attempts"
"""NCCL 2.27.5, src/misc/socket.cc."""
REMOTE = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
KEPT: list[ctypes.CDLL] = []


def _log(text: str) -> None:
    """At the end of the file that NCCL_DEBUG_FILE names."""
    with open(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())), "a") as file:
        file.write(text)


def _start(rank: int) -> str:
    """Writes the log as NCCL does, and returns the error, if there is one."""
    folder = Path(os.environ["PREFLIGHT_TEST_NCCL"])
    log, error = (folder / f"{rank}.{kind}" for kind in ("log", "error"))
    if log.exists():
        _log(log.read_text())
    return error.read_text() if error.exists() else ""


def _bootstrap(store: Any, rank: int, world: int, timeout_s: float) -> str:
    """As NCCL's: rank 0 listens on a port of the kernel's choice, the store carries its address to the others, and each
    connects to it. Returns the error, if there is one."""
    address = os.environ["PREFLIGHT_TEST_BOOTSTRAP"]
    _log(f"gpu:1:1 [0] NCCL INFO Bootstrap: Using eth0:{address}<0>\n")
    if rank == 0:
        with socket.create_server((address, 0)) as root:
            root.settimeout(timeout_s)
            store.set("nccl_unique_id", f"{address} {root.getsockname()[1]}")
            for _ in range(world - 1):
                root.accept()[0].close()
        return ""
    host, port = store.get("nccl_unique_id").decode().split()
    try:
        socket.create_connection((host, int(port)), timeout_s).close()
    except OSError as error:
        told = UNREACHABLE.format(host, port, os.strerror(error.errno or 0))
        _log(f"\n[2026-01-31 12:00:00] gpu:1:1 [0] misc/socket.cc:577 NCCL WARN {told}\n")
        return (
            f"NCCL error in: ProcessGroupNCCL.cpp:94, remote error, NCCL version 2.27.5\n{REMOTE}\nLast error:\n{told}"
        )
    return ""


def _take_path(distributed: Any) -> None:
    """PREFLIGHT_TEST_PATH "NCCL_P2P_DISABLE=1 0.05": NCCL takes a way on which an all-reduce of 1 MiB or more lasts so
    many seconds longer ("wrong": has one wrong sum), unless that variable has that value. A third word is the least
    number of bytes instead, a fourth the ranks ("1,3") all of which must be in the group."""
    switch, fault, least, ranks = [*os.environ.get("PREFLIGHT_TEST_PATH", "").split(), "", "", "", ""][:4]
    name, _, value = switch.partition("=")
    if name and os.environ.get(name) != value and set(filter(None, ranks.split(","))) <= _members(distributed):
        right = distributed.all_reduce

        def faulty(values: Any, *arguments: Any, **options: Any) -> Any:
            is_concerned = values.numel() * values.element_size() >= int(least or 1 << 20)
            if is_concerned and fault != "wrong":
                time.sleep(float(fault))  # the fault itself
            work = right(values, *arguments, **options)
            if is_concerned and fault == "wrong":
                values.view(-1)[0] += 1
            return work

        distributed.all_reduce = faulty


def _members(distributed: Any) -> set[str]:
    """The job's ranks in this group."""
    import torch

    numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(distributed.get_world_size())]
    distributed.all_gather(numbers, torch.tensor([int(os.environ["RANK"])]))
    return {str(number.item()) for number in numbers}


def _patch_torch() -> None:
    import torch
    from torch import distributed
    from torch._C import _distributed_c10d as c10d

    # As in a build for CUDA: NCCL has a recorder of its own, and that of gloo is empty.
    c10d._dump_nccl_trace_json, c10d._dump_fr_trace_json = c10d._dump_fr_trace_json, lambda *_: b'{"entries": []}'  # type: ignore[attr-defined]
    torch.version.cuda = "12.4"
    torch.cuda.device_count = lambda: 8
    torch.cuda.is_available = lambda: True
    distributed.is_nccl_available = lambda: True
    make: Any = distributed.init_process_group

    def init_process_group(backend: str, **options: Any) -> Any:
        error = _start(options["rank"])
        if not error and "PREFLIGHT_TEST_BOOTSTRAP" in os.environ:
            seconds = options["timeout"].total_seconds()
            error = _bootstrap(options["store"], options["rank"], options["world_size"], seconds)
        if error:
            raise distributed.DistBackendError(error)
        make("gloo", **{**options, "device_id": None})
        _take_path(distributed)

    distributed.init_process_group = init_process_group  # type: ignore[assignment]


class _Loader(importlib.abc.Loader):
    def __init__(self, spec: importlib.machinery.ModuleSpec) -> None:
        self._own = spec.loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        assert self._own
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._own
        self._own.exec_module(module)
        if module.__name__ == "preflight.check":
            module.Context.device = property(lambda _self: __import__("torch").device("cpu"))
        elif "PREFLIGHT_TEST_INIT_S" in os.environ:
            made: Any = module
            made.PLAN = replace(made.PLAN, deadline_s=float(os.environ["PREFLIGHT_TEST_INIT_S"]))


class _AtWork(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "preflight.engine.process_group":
            _patch_torch()
        if name not in ("preflight.check", "preflight.checks.comm.init"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec:
            spec.loader = _Loader(spec)
        return spec


sys.meta_path.insert(0, _AtWork())
# Loaded by its path once, a library is found by its name: LD_LIBRARY_PATH would need a process that starts anew.
LIBRARIES = ("PREFLIGHT_TEST_NVML", "PREFLIGHT_TEST_LIBNCCL")
KEPT.extend(ctypes.CDLL(os.environ[library]) for library in LIBRARIES if library in os.environ)
