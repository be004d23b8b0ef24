"""Trainings on GPU ranks, and what preflight is given of a user's code: `train_jobs.py NAME` as a rank of a plain
launch. Each prints its figures and ends with 0 where they are right. With LEASE=dry on the CPU, over gloo."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # while there is no group: its defaults would hold it
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

DRY = os.environ.get("LEASE") == "dry"
DEVICE = "cpu" if DRY else "cuda"
STEPS, WIDTH, ROWS = 20, 256, 64
E4M3_MAX = 448.0


def say(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)


def join() -> None:
    if DRY:
        dist.init_process_group("gloo")
    else:
        torch.cuda.set_device(0)
        dist.init_process_group("nccl")


def _scaled(values: Tensor) -> tuple[Tensor, Tensor]:
    """As float8, and the scale that takes it back."""
    scale = (values.abs().amax().float() / E4M3_MAX).clamp(min=1e-12)
    return (values.float() / scale).to(torch.float8_e4m3fn), scale


class _Fp8Product(torch.autograd.Function):
    """Forward in float8, backward in bfloat16."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        (left, left_scale), (right, right_scale) = _scaled(inputs), _scaled(weight)
        return torch._scaled_mm(left, right.t(), scale_a=left_scale, scale_b=right_scale, out_dtype=torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weight = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].t() @ inputs


class Fp8Linear(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        apply: Any = _Fp8Product.apply
        made: Tensor = apply(inputs, self.weight)
        return made


def _losses(linear: type[nn.Linear], wrap: Callable[[nn.Module], nn.Module], dtype: torch.dtype) -> list[float]:
    """Of STEPS steps under DDP, from the same weights and data each time."""
    torch.manual_seed(0)
    layers = linear(WIDTH, WIDTH, bias=False), nn.ReLU(), linear(WIDTH, WIDTH, bias=False)
    model = DistributedDataParallel(wrap(nn.Sequential(*layers).to(DEVICE, dtype)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.manual_seed(1 + dist.get_rank())
    inputs = torch.randn(ROWS, WIDTH).to(DEVICE, dtype)
    losses = []
    for _ in range(STEPS):
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        optimizer.zero_grad()
        loss = (model(inputs).float() - inputs.float()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _compared(name: str, ours: list[float], theirs: list[float], limit: float) -> bool:
    worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    falls = ours[-1] < ours[0]
    say(f"{name}: loss {ours[0]:.4f} to {ours[-1]:.4f}, at most {worst:.2%} off, expected {limit:.0%}; falls: {falls}")
    return worst < limit and falls


def fp8() -> bool:
    """Two linear layers whose forward products are in float8, against bfloat16."""
    join()
    plain = _losses(nn.Linear, lambda model: model, torch.bfloat16)
    return _compared("fp8", _losses(Fp8Linear, lambda model: model, torch.bfloat16), plain, 0.1)


def _compile(model: nn.Module, how: dict[str, Any]) -> nn.Module:
    model.compile(**how)
    return model


def reduce_overhead() -> bool:
    """CUDA graphs, by torch.compile, under DDP."""
    join()
    plain = _losses(nn.Linear, lambda model: model, torch.float32)
    how: dict[str, Any] = {"backend": "aot_eager"} if DRY else {"mode": "reduce-overhead"}
    began = time.monotonic()
    compiled = _losses(nn.Linear, lambda model: _compile(model, how), torch.float32)
    say(f"compiled in {time.monotonic() - began:.1f} s")
    return _compared("reduce-overhead", compiled, plain, 0.01)


def _seen_by_nvml() -> tuple[bool, int]:
    """Whether the card has a process of this one's number, and how much of its memory is in use."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pids = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    pynvml.nvmlShutdown()
    return os.getpid() in pids, used


def _left_behind(before: dict[str, str], shm: set[str], used: int) -> list[str]:
    left = []
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        left.append("CUDA is initialized in this process")
    on_card, now = _seen_by_nvml()
    if on_card:
        left.append("this process is on the card")
    if now - used > 64 << 20:
        left.append(f"{(now - used) >> 20} MiB more of the card are in use")
    if dist.is_initialized():
        left.append("there is a process group")
    if more := set(os.listdir("/dev/shm")) - shm:
        left.append(f"in /dev/shm: {', '.join(sorted(more))}")
    if changed := {name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)}:
        left.append(f"variables: {', '.join(sorted(changed))}")
    return left


def within() -> bool:
    """preflight.run in a script that has not used CUDA yet: nothing stays behind, and the script goes on. That the two
    ranks share a card may be a finding."""
    import preflight

    before, shm, (_, used) = dict(os.environ), set(os.listdir("/dev/shm")), _seen_by_nvml()
    verdict = preflight.run(level="standard", only=["gpu.compute", "comm.all_reduce"], report="report")
    left = _left_behind(before, shm, used)
    say(f"{verdict.sentence}; left behind: {', '.join(left) or 'nothing'}")
    join()
    total = torch.ones(1, device=DEVICE)
    dist.all_reduce(total)
    say(f"then the sum of ones is {total.item():.0f}")
    return verdict.exit_code != 3 and not left and total.item() == dist.get_world_size()


# What preflight is given


def pinned_loader() -> Any:
    """Accelerate's, with pinned memory and workers. For --data."""
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    set_seed(42)
    numbers = TensorDataset(torch.arange(256).unsqueeze(1))
    return Accelerator(cpu=DRY).prepare(
        DataLoader(numbers, batch_size=8, shuffle=True, pin_memory=not DRY, num_workers=1)
    )


JOBS = {job.__name__: job for job in (fp8, reduce_overhead, within)}


def main() -> None:
    right = JOBS[sys.argv[1]]()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0 if right else 1)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    main()
