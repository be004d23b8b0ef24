"""Jobs of one rank each, as a user's script would be: `python -m tests.real_gpu.jobs.collectives NAME`."""

import datetime
import os
import signal
import sys
import time
from collections.abc import Callable

import torch
from torch import distributed as dist

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
RANK = int(os.environ.get("RANK", "0"))
CULPRIT, AT = 1, 5
LATE_S = 5.0 if os.environ.get("LEASE") == "dry" else 20.0
FOREVER_S = 600.0


def begin(timeout_s: float = 600.0) -> None:
    dist.init_process_group("nccl" if ON_GPU else "gloo", timeout=datetime.timedelta(seconds=timeout_s))
    if ON_GPU:
        torch.cuda.set_device(DEVICE)


def reduce(elements: int = 1 << 18, dtype: torch.dtype = torch.float32) -> float:
    """The first element of a sum over the ranks; waits for it."""
    total = torch.ones(elements, device=DEVICE, dtype=dtype)
    dist.all_reduce(total)
    return float(total[0].item())


def once() -> None:
    """One right sum."""
    begin()
    total = reduce()
    assert total == dist.get_world_size(), total
    print(f"rank {RANK}: sum {total:.0f}", flush=True)
    dist.destroy_process_group()


def steadily() -> None:
    """Until it is killed; says so after the first."""
    begin()
    for step in range(1_000_000):
        reduce()
        if step == 0:
            print("at work", flush=True)
        time.sleep(0.01)


def many() -> None:
    """2,000 all-reduces of 4 KiB: prints their seconds."""
    begin()
    for _ in range(20):
        reduce(1024)
    began = time.perf_counter()
    for _ in range(2000):
        total = torch.ones(1024, device=DEVICE)
        dist.all_reduce(total)
    if ON_GPU:
        torch.cuda.synchronize()
    print(f"took {time.perf_counter() - began:.4f} s", flush=True)
    dist.destroy_process_group()


def _train(deed: Callable[[], None], steps: int = 12) -> None:
    """Steps of one all-reduce; at step AT rank CULPRIT does the deed in its place."""
    begin(float(os.environ.get("JOB_TIMEOUT_S", "600")))
    for step in range(steps):
        if RANK == CULPRIT and step == AT:
            deed()
        else:
            reduce()
        if RANK == 0:
            print(f"step {step}", flush=True)
    dist.destroy_process_group()


def stopped() -> None:
    _train(lambda: os.kill(os.getpid(), signal.SIGSTOP))


def killed() -> None:
    _train(lambda: os.kill(os.getpid(), signal.SIGKILL))


def exited() -> None:
    _train(lambda: os._exit(0))


def raising() -> None:
    def deed() -> None:
        raise ValueError("sample 17 has no label")

    _train(deed)


def skipping() -> None:
    """The culprit leaves one all-reduce out: it ends one step early, and waits for nobody."""
    _train(lambda: None)


def other_shape() -> None:
    _train(lambda: print(reduce(1 << 10)))


def other_dtype() -> None:
    _train(lambda: print(reduce(dtype=torch.bfloat16)))


def other_collective() -> None:
    _train(lambda: dist.broadcast(torch.ones(1 << 18, device=DEVICE), 0))


def late() -> None:
    def deed() -> None:
        time.sleep(LATE_S)
        reduce()

    _train(deed)


def two_groups() -> None:
    """Rank 0 waits in a group of its own with rank 1, which waits with all: as a trainer and its server."""
    begin(12.0)
    pair = dist.new_group([0, 1])
    reduce()
    if RANK == 0:
        dist.all_reduce(torch.ones(16, device=DEVICE), group=pair)
    else:
        reduce(32)
    if ON_GPU:
        torch.cuda.synchronize()


def coalesced() -> None:
    """Gathers that go out as one; rank 1 leaves them out."""
    begin(12.0)
    reduce()
    world = dist.get_world_size()
    if RANK != CULPRIT:
        pieces = [torch.ones(1024, device=DEVICE) for _ in range(3)]
        whole = [torch.empty(1024 * world, device=DEVICE) for _ in pieces]
        with dist.distributed_c10d._coalescing_manager(device=DEVICE, async_ops=True) as work:
            for out, piece in zip(whole, pieces, strict=True):
                dist.all_gather_into_tensor(out, piece)
        work.wait()
        if ON_GPU:
            torch.cuda.synchronize()
    else:
        time.sleep(FOREVER_S)


def parameters() -> None:
    """What NCCL's own library is called, and which parameters it has."""
    import ctypes
    import json
    import re
    from pathlib import Path

    from preflight.nccl import parameters as nccl_parameters

    torch.zeros(1, device=DEVICE)
    path = re.search(r"/\S*libnccl\.so\S*", Path("/proc/self/maps").read_text())
    version = ctypes.c_int()
    if path:
        ctypes.CDLL(path[0]).ncclGetVersion(ctypes.byref(version))
    found = nccl_parameters.ask({"NCCL_DEBUG": "VERSION"}, within_s=8.0)
    print(json.dumps({"path": path and path[0], "version": version.value, "parameters": found}), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
