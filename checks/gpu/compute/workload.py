"""What a device is put through: products and copies with known answers, one product again and again, and how fast.

Imports torch: only `measure` may import this module.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from preflight.check import Skip
from preflight.checks.gpu.compute import copies, gemm
from preflight.checks.gpu.compute.kind import kind_of, unknown, uuid_of
from preflight.checks.gpu.compute.workload_facts import Facts

MIB = 1024 * 1024


@dataclass(frozen=True)
class Sizes:
    rows: dict[str, int]
    """Of square matrices; a power of two, and at least 8 (see gemm.py)."""
    copied: int
    """Bytes that are copied on the device: far more than its caches hold."""
    sent: int
    """Bytes between host and device, and between GPUs."""
    budget_s: float
    """Seconds for each thing that is timed."""
    memory: int
    """Bytes of the device's memory that must be free: about twice what is used at once."""


GPU = Sizes({"bf16": 8192, "fp32": 4096}, 512 * MIB, 64 * MIB, 0.15, 2560 * MIB)
CPU = Sizes({"bf16": 256, "fp32": 256}, 8 * MIB, 4 * MIB, 0.002, 0)
"""Shows that it works, in milliseconds."""


def nothing_yet(device: torch.device) -> Facts:
    return {"kind": unknown(device), "uuid": None, "speeds": {}, "wrong": [], "repeats": {}, "not_measured": [],
            "error": None}  # fmt: skip


def is_of_memory(error: RuntimeError) -> bool:
    """Whether somebody else holds the memory that was wanted. cuBLAS says it in its own words."""
    return "out of memory" in str(error) or "CUBLAS_STATUS_ALLOC_FAILED" in str(error)


def is_of_device(error: RuntimeError) -> bool:
    """Whether the driver or the device said it, and not torch."""
    words = ("CUDA error", "CUDA driver", "cudaGetDeviceCount", "No CUDA GPUs", "HIP error")
    return any(word in str(error) for word in words)


def steps(
    facts: Facts, device: torch.device, environ: Mapping[str, str], repeats: int, peers: int
) -> Iterator[tuple[str, Callable[[], None]]]:
    """(what it is, what does it and notes in the facts what it finds). Raises Skip where too little memory is free."""
    facts["kind"], facts["uuid"] = kind_of(device, environ), uuid_of(device)
    sizes = _sizes_for(device)
    yield "copies between host and device", partial(copies.with_host, facts, device, sizes.sent, sizes.budget_s)
    for name, rows in sizes.rows.items():
        if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            facts["not_measured"].append("bf16 GEMM: this GPU has no bf16")
            continue
        yield f"{name} GEMM", partial(gemm.exercise, facts, name, rows, device, repeats, sizes.budget_s)
    yield "copy on the device", partial(copies.on_device, facts, device, sizes.copied, sizes.budget_s)
    for peer in _peers(facts, device, peers):
        yield (
            f"P2P copies with GPU {peer.index}",
            partial(copies.with_peer, facts, device, peer, sizes.sent, sizes.budget_s),
        )


def _sizes_for(device: torch.device) -> Sizes:
    if device.type == "cpu":
        return CPU
    free = torch.cuda.mem_get_info(device)[0]
    if free < GPU.memory:
        text = f"{free // MIB:,} MiB of the GPU's memory are free, expected {GPU.memory // MIB:,}"
        raise Skip(f"{text}: see nvidia-smi for who holds it")
    return GPU


def _peers(facts: Facts, device: torch.device, most: int) -> Iterator[torch.device]:
    """The next GPUs after one's own, around: at each moment most GPUs then have one sender and one receiver."""
    if device.type == "cpu" or most < 1:
        return
    visible, own = torch.cuda.device_count(), device.index or 0
    if visible < 2:
        facts["not_measured"].append("P2P copies: a rank sees only its own GPU")
    for number in range(own + 1, own + 1 + min(most, visible - 1)):
        peer = torch.device("cuda", number % visible)
        if torch.cuda.can_device_access_peer(device, peer):
            yield peer
        else:
            facts["not_measured"].append("P2P copies: GPUs cannot access each other")


@contextlib.contextmanager
def plain_arithmetic(device: torch.device) -> Iterator[None]:
    """No TF32, no partial sums in bf16, no kernels chosen by trial: like devices then compute in like ways. On a CPU
    one thread, since ranks share cores. Gives the device's memory back."""
    matmul, on_gpu = torch.backends.cuda.matmul, device.type == "cuda"
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    in_bf16 = matmul.allow_bf16_reduced_precision_reduction
    by_trial = on_gpu and torch.cuda.tunable.is_enabled()
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(1)
    matmul.allow_bf16_reduced_precision_reduction = False
    if by_trial:
        torch.cuda.tunable.enable(False)
    try:
        with torch.cuda.device(device) if on_gpu else contextlib.nullcontext():
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)
        matmul.allow_bf16_reduced_precision_reduction = in_bf16
        if by_trial:
            torch.cuda.tunable.enable(True)
        if on_gpu:
            with contextlib.suppress(RuntimeError):  # after some errors every call of CUDA fails
                torch.cuda.empty_cache()
