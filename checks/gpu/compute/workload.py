"""The workload for a device: products and copies with known answers, repeats of one product, and their speed.

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
    """Rows of square matrices by type; a power of two, and at least 8 (see gemm.py)."""
    copied: int
    """Bytes to copy on the device: far more than its caches hold."""
    sent: int
    """Bytes to copy between host and device, and between GPUs."""
    budget_s: float
    """Seconds for each measurement."""
    memory: int
    """Bytes of device memory that must be free: about twice what is used at once."""


GPU = Sizes({"bf16": 8192, "fp32": 4096}, 512 * MIB, 64 * MIB, 0.15, 2560 * MIB)
CPU = Sizes({"bf16": 256, "fp32": 256}, 8 * MIB, 4 * MIB, 0.002, 0)
"""Small enough for milliseconds: only shows that it works."""


def nothing_yet(device: torch.device) -> Facts:
    return {
        "kind": unknown(device),
        "uuid": None,
        "speeds": {},
        "wrong": [],
        "repeats": {},
        "not_measured": [],
        "error": None,
    }


def is_of_memory(error: RuntimeError) -> bool:
    """Whether the error means that memory is taken. cuBLAS has its own words for it."""
    return "out of memory" in str(error) or "CUBLAS_STATUS_ALLOC_FAILED" in str(error)


def is_of_device(error: RuntimeError) -> bool:
    """Whether the error comes from the driver or the device rather than torch."""
    words = ("CUDA error", "CUDA driver", "cudaGetDeviceCount", "No CUDA GPUs", "HIP error")
    return any(word in str(error) for word in words)


def steps(
    facts: Facts, device: torch.device, environ: Mapping[str, str], repeats: int, peers: int
) -> Iterator[tuple[str, Callable[[], None]]]:
    """(name, function that runs it and records results in the facts). Raises Skip if too little memory is free."""
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
        raise Skip(f"{text}: see nvidia-smi for what uses it")
    return GPU


def _peers(facts: Facts, device: torch.device, most: int) -> Iterator[torch.device]:
    """The next GPUs after the rank's own, cyclically: so at any moment most GPUs have one sender and one receiver."""
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
    """Sets plain arithmetic for the workload, and frees the device's memory after it."""
    on_gpu = device.type == "cuda"
    try:
        with plain_arithmetic(), torch.cuda.device(device) if on_gpu else contextlib.nullcontext():
            yield
    finally:
        if on_gpu:
            with contextlib.suppress(RuntimeError):  # after some errors every CUDA call fails
                torch.cuda.empty_cache()
