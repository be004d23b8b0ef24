"""Jobs with faults of CUDA, each as a user's script would have it: `fault_jobs.py NAME`, or under torchrun. Ranks share
the first GPU: each has an NCCL_HOSTID of its own, so that NCCL takes them for nodes. With LEASE=dry a job says what
`canned_text.py` has, and ends as the real one would."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANK = int(os.environ.get("RANK", "0"))
DRY = os.environ.get("LEASE") == "dry"
MIB = 1 << 20
KERNELS = Path(__file__).with_name("kernels.cu")


def say(text: str) -> None:
    print(text, flush=True)


def kernel(name: str) -> Any:
    """A kernel of kernels.cu, compiled by CuPy."""
    import cupy  # type: ignore[import-not-found,unused-ignore]

    return cupy.RawModule(code=KERNELS.read_text()).get_function(name)


def join(timeout_s: float = 120.0, *, as_nodes: bool = True, backend: str = "nccl") -> Any:
    """torch.distributed with a group of all ranks on the first GPU."""
    import datetime

    if as_nodes:
        os.environ["NCCL_HOSTID"] = f"host-{RANK}"
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_s))
    return dist


# One process


def out_of_bounds() -> None:
    import cupy
    import torch

    values = torch.zeros(32, device="cuda")
    kernel("write_far")((1,), (32,), (cupy.asarray(values), cupy.int64(1 << 40)))
    torch.cuda.synchronize()


def bad_index() -> None:
    import torch

    table = torch.nn.Embedding(10, 4).cuda()
    rows = table(torch.tensor([1, 99], device="cuda"))
    say(str(rows.sum().item()))


def misaligned() -> None:
    import cupy
    import torch

    values = torch.zeros(32, device="cuda")
    kernel("write_skewed")((1,), (1,), (cupy.asarray(values), cupy.int32(1)))
    torch.cuda.synchronize()


def stack_overflow() -> None:
    import cupy
    import torch

    values = torch.zeros(32, device="cuda", dtype=torch.int32)
    kernel("recurse")((1,), (1,), (cupy.asarray(values), cupy.int32(1_000_000)))
    torch.cuda.synchronize()


def too_many_resources() -> None:
    import cupy

    values = cupy.zeros(200 * 1024, dtype=cupy.float32)
    kernel("greedy")((1,), (1024,), (values, cupy.int32(1024)))
    cupy.cuda.Device().synchronize()


def out_of_memory() -> None:
    import torch

    weights = torch.nn.Linear(1024, 1024).cuda()
    activations = torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    say(f"{weights.weight.numel()} {activations.numel()}")


def endless() -> None:
    """Says that the kernel runs, and waits for it: somebody has to kill this process."""
    if not DRY:
        import cupy

        stop = cupy.zeros(1, dtype=cupy.int32)
        kernel("endless")((264,), (1024,), (stop,))  # all that fit on the 132 multiprocessors of an H100 or H200
    say("the kernel runs")
    while True:
        time.sleep(1)


def other_arch() -> None:
    """Code for sm_80 alone, as an extension that was built for other cards."""
    import cupy

    subprocess.run(["nvcc", "-cubin", "-arch=sm_80", str(KERNELS), "-o", "sm_80.cubin"], check=True)
    written = cupy.RawModule(path="sm_80.cubin").get_function("write_far")
    written((1,), (1,), (cupy.zeros(1, dtype=cupy.float32), cupy.int64(0)))
    cupy.cuda.Device().synchronize()


def forked_loader() -> None:
    import torch

    class OnTheGpu(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return torch.ones(4).cuda()

    say(str(torch.ones(1).cuda().item()))
    for batch in torch.utils.data.DataLoader(OnTheGpu(), num_workers=1, multiprocessing_context="fork"):
        say(str(batch.shape))


def no_such_gpu() -> None:
    import torch

    say(str(torch.zeros(1, device="cuda:7")))


def holds_memory() -> None:
    """A neighbor that keeps 1 GiB of the card until it is killed."""
    if not DRY:
        import torch

        torch.empty(1 << 30, dtype=torch.uint8, device="cuda").fill_(1)
    say("it is held")
    time.sleep(600)


def computes() -> None:
    """A neighbor that computes until it is killed, or for a minute."""
    import torch

    device = "cpu" if DRY else "cuda"
    values, end = torch.randn(512 if DRY else 4096, 512 if DRY else 4096, device=device), time.monotonic() + 60
    say("it computes")
    while time.monotonic() < end:
        for _ in range(10):
            torch.mm(values, values)
        if not DRY:
            torch.cuda.synchronize()


def _train(act: Callable[[int, Any], None], steps: int = 45) -> None:
    """A small training that says each step; `act` is told the step and the parameters before it."""
    import torch

    device, width = ("cpu", 64) if DRY else ("cuda", 2048)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)).to(
        device
    )
    optimizer, inputs = (
        torch.optim.SGD(model.parameters(), lr=1e-3),
        torch.randn(64 if DRY else 8192, width, device=device),
    )
    for step in range(steps):
        act(step, model)
        began = time.monotonic()
        for _ in range(10):
            optimizer.zero_grad()
            loss = (model(inputs) - inputs).square().mean()
            loss.backward()
            optimizer.step()
        value = loss.item()
        say(f"step {step} | loss {value:.4f} | {1e3 * (time.monotonic() - began):.1f} ms")


def turns_nan() -> None:
    def act(step: int, model: Any) -> None:
        if step == 30:
            model[0].weight.data[0, 0] = float("nan")

    _train(act)


def slows_down() -> None:
    neighbors: list[subprocess.Popen[bytes]] = []

    def act(step: int, model: Any) -> None:
        if step == 30:
            neighbors.append(subprocess.Popen([sys.executable, __file__, "computes"], stdout=subprocess.PIPE))
            assert neighbors[0].stdout is not None
            neighbors[0].stdout.readline()  # its process
            neighbors[0].stdout.readline()

    try:
        _train(act)
    finally:
        for neighbor in neighbors:
            neighbor.kill()


# Several ranks


def left_out() -> None:
    """Rank 1 does not enter the sixth all-reduce."""
    dist = join(timeout_s=12)
    import torch

    values = torch.ones(1024, device="cuda")
    for step in range(8):
        if RANK == 1 and step == 5:
            time.sleep(100)
        dist.all_reduce(values)
        say(f"step {step} | loss {values.mean().item():.3f}")


def holds_the_gil() -> None:
    """Rank 1 enters a collective and then holds Python's lock in native code."""
    import ctypes

    dist = join()
    import torch

    dist.all_reduce(torch.ones(1024, device="cuda"))
    torch.cuda.synchronize()
    say("step 0")
    dist.all_reduce(torch.ones(64 << 20, device="cuda"), async_op=True)  # the watchdog alone keeps the tensor
    if RANK == 1:
        ctypes.PyDLL(None).sleep(20)
    dist.all_reduce(torch.ones(1024, device="cuda"))
    torch.cuda.synchronize()
    say("all ranks are through")
    dist.destroy_process_group()


def _fill(left: int) -> None:
    """Takes the card's memory but for `left` bytes, and keeps it."""
    import torch

    for _ in range(200):
        free, _total = torch.cuda.mem_get_info()
        if free - left < 2 * MIB:
            return
        try:
            KEPT.append(torch.empty(min(free - left, 8 << 30), dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            return


KEPT: list[Any] = []


def nccl_out_of_memory() -> None:
    """NCCL starts on a card on which less and less is free: 200 MiB, 64, 16, 2."""
    dist = join(timeout_s=15, backend="cpu:gloo,cuda:nccl")
    import torch

    values = torch.ones(1 << 16, device="cuda")
    dist.all_reduce(torch.zeros(1))
    for left in (200, 64, 16, 2):
        if RANK == 0:
            _fill(left * MIB)
        dist.all_reduce(torch.zeros(1))  # by gloo: the card is full from here on
        group = dist.new_group(backend="nccl")
        dist.all_reduce(values, group=group)
        torch.cuda.synchronize()
        say(f"NCCL started with {torch.cuda.mem_get_info()[0] // MIB} MiB left of {left} MiB")


def starts() -> None:
    """One all-reduce. What is wrong is around it."""
    dist = join(timeout_s=15, as_nodes="NCCL_MULTI_RANK_GPU_ENABLE" not in os.environ)
    import torch

    values = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(values)
    say(f"the sum is {values[0].item():.0f}")
    dist.destroy_process_group()


def shares_gpu() -> None:
    """As where LOCAL_RANK was forgotten: all ranks are on the first GPU."""
    dist = join(timeout_s=15, as_nodes=False)
    import torch

    dist.all_reduce(torch.ones(4, device="cuda"))
    torch.cuda.synchronize()


def killed() -> None:
    """Rank 1 is killed within an all-reduce."""
    dist = join(timeout_s=10)
    import torch

    values = torch.ones(64 << 20, device="cuda")
    for step in range(1000):
        dist.all_reduce(values)
        if RANK == 1 and step == 4:
            say("rank 1 kills itself")
            os.kill(os.getpid(), signal.SIGKILL)
        say(f"step {step} | loss {values[:8].mean().item():.3f}")


JOBS = {
    job.__name__: job
    for job in (
        out_of_bounds, bad_index, misaligned, stack_overflow, too_many_resources, out_of_memory, endless, other_arch,
        forked_loader, no_such_gpu, holds_memory, computes, turns_nan, slows_down, left_out, holds_the_gil,
        nccl_out_of_memory, starts, shares_gpu, killed,
    )
}  # fmt: skip


def main() -> None:
    say(f"pid {os.getpid()}")
    if DRY:
        from tests.real_gpu.jobs import canned_text

        canned_text.end_as(sys.argv[1], RANK)
    JOBS[sys.argv[1]]()


if __name__ == "__main__":
    main()
