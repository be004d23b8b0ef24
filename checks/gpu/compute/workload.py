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
from preflight.checks.gpu.compute.copies import uuid_of
from preflight.checks.gpu.compute.workload_facts import Facts
from preflight.sdk.arithmetic import kind_of, plain_arithmetic, unknown

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
def at_work_on(device: torch.device) -> Iterator[None]:
    """In plain arithmetic. Gives the device's memory back."""
    on_gpu = device.type == "cuda"
    try:
        with plain_arithmetic(), torch.cuda.device(device) if on_gpu else contextlib.nullcontext():
            yield
    finally:
        if on_gpu:
            with contextlib.suppress(RuntimeError):  # after some errors every call of CUDA fails
                torch.cuda.empty_cache()
