"""Digests of what 14 kernels give, by card, driver and library: the ground for judging a lone GPU by its bits.

The inputs are made of integers on the CPU, so that they are the same everywhere. A digest is a weighted sum of the
result's bits in integers, which no order of addition changes.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
SIZES = (512, 2048, 4096) if ON_GPU else (64, 96, 128)
LARGE = (1 << 28) if ON_GPU else (1 << 16)
"""Elements of 4 bytes: 1 GiB, several times the L2."""
IN_L2 = 1 << 22
CHUNK = 1 << 26
Kernel = Callable[[], list[torch.Tensor]]


def integers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Multiples of 1/64 from -2 to 2, which each floating-point type of 8 bits of mantissa holds."""
    generator = torch.Generator().manual_seed(seed + shape[0])
    return (torch.randint(-128, 129, shape, generator=generator).to(torch.float32) / 64).to(DEVICE).to(dtype)


def digest(tensor: torch.Tensor) -> int:
    """The sum of the result's words, each multiplied by an odd number that its place gives, modulo 2^64."""
    flat = tensor.detach().contiguous().flatten().view(torch.uint8)
    words = flat[: flat.numel() // 4 * 4].view(torch.int32)
    total = 0
    for part in torch.split(words, CHUNK):
        places = torch.arange(1, 2 * part.numel(), 2, device=part.device)
        total = (total * 31 + int((part.to(torch.int64) * places).sum())) % (1 << 64)
    return total


def _products(dtype: torch.dtype, tf32: bool = False) -> Kernel:
    pairs = [(integers(size, size, seed=1, dtype=dtype), integers(size, size, seed=2, dtype=dtype)) for size in SIZES]

    def call() -> list[torch.Tensor]:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return [a @ b for a, b in pairs]

    return call


def _products_fp8() -> Kernel:
    pairs = [(integers(size, size, seed=1), integers(size, size, seed=2)) for size in SIZES]
    low = [(a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()) for a, b in pairs]
    one = torch.ones((), device=DEVICE)
    return lambda: [torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16) for a, b in low]


def _attention() -> Kernel:
    q, k, v = (integers(4, 16, SIZES[1], 64, seed=seed, dtype=torch.bfloat16) for seed in (1, 2, 3))
    return lambda: [functional.scaled_dot_product_attention(q, k, v, is_causal=True)]


def _pattern(elements: int, turns: int) -> Kernel:
    words = torch.arange(elements, dtype=torch.int32, device=DEVICE)

    def call() -> list[torch.Tensor]:
        found = words
        for _ in range(turns):
            found = found ^ 0x5A5A5A5A
        return [found]

    return call


def _to_host_and_back() -> Kernel:
    there = torch.arange(LARGE // 8, dtype=torch.int32, device=DEVICE)
    host = torch.empty(LARGE // 8, dtype=torch.int32, pin_memory=ON_GPU)

    def call() -> list[torch.Tensor]:
        host.copy_(there)
        return [host.to(DEVICE)]

    return call


def kernels() -> Iterator[tuple[str, Kernel]]:
    """The 14, made one after the other, so that only one holds memory."""
    wide = integers(8192 if ON_GPU else 64, 4096, seed=3)
    yield "gemm_bf16", _products(torch.bfloat16)
    yield "gemm_fp16", _products(torch.float16)
    yield "gemm_tf32", _products(torch.float32, tf32=True)
    yield "gemm_fp32", _products(torch.float32)
    if ON_GPU:
        yield "gemm_fp8", _products_fp8()
    yield "attention", _attention()
    yield "softmax", lambda: [torch.softmax(wide, -1)]
    yield "layer_norm", lambda: [functional.layer_norm(wide, (4096,))]
    yield "sum", lambda: [wide.sum(), wide.sum(0), wide.sum(1)]
    yield "sort", lambda: list(torch.sort(wide.flatten()[: 1 << 22], stable=True))
    yield "hbm", _pattern(LARGE, 2)
    yield "l2", _pattern(IN_L2 if ON_GPU else 1 << 12, 64)
    yield "copy", lambda: [wide.t().contiguous().clone()]
    yield "host", _to_host_and_back()


def over_and_over(seconds: float) -> dict[str, Any]:
    """{"made_by", "repeats", "kernels": {name: {"digest", "repeats", "different"}}}."""
    found: dict[str, dict[str, Any]] = {}
    for name, call in kernels():
        end = time.monotonic() + seconds / 14
        first, repeats, different = None, 0, 0
        while first is None or time.monotonic() < end:
            text = hashlib.sha256(str([digest(each) for each in call()]).encode()).hexdigest()[:16]
            first = first or text
            different += text != first
            repeats += 1
        found[name] = {"digest": first, "repeats": repeats, "different": different}
    return {
        "made_by": made_by(),
        "repeats": sum(kernel["repeats"] for kernel in found.values()),
        "kernels": found,
    }


def made_by() -> dict[str, str]:
    """What a digest may depend on."""
    if not ON_GPU:
        return {"card": "CPU", "torch": torch.__version__}
    import pynvml

    pynvml.nvmlInit()
    return {
        "card": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "vbios": str(pynvml.nvmlDeviceGetVbiosVersion(pynvml.nvmlDeviceGetHandleByIndex(0))),
    }  # fmt: skip
