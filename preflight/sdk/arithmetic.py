"""Everything that decides how a device's sums are rounded, and a mode in which equal devices compute equal bits.
Imports torch: only `measure` may import it."""

import contextlib
import ctypes
import hashlib
import platform
import re
from collections.abc import Iterator, Mapping
from typing import TypedDict

import torch

from preflight.sdk.files import read

SETTINGS = (
    "ATEN_CPU_CAPABILITY", "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY",
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT",
    "DNNL_DEFAULT_FPMATH_MODE", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_BLAS_PREFER_HIPBLASLT",
)  # fmt: skip
"""Variables that make torch or its libraries choose different arithmetic."""


class DeviceKind(TypedDict):
    """Devices of equal kind should have equal results, bit for bit, and equal speeds."""

    type: str
    """cuda or cpu."""
    name: str
    capability: str
    """For a CPU, what torch uses of it and a digest of its flags: a virtual machine may hide some flags, and libraries
    then choose different code."""
    units: int
    """Multiprocessors; 0 on a CPU."""
    driver: str | None
    torch: str
    cuda: str | None
    """The version of CUDA or ROCm. Next to it: cuDNN, and the cuBLAS that is loaded or, on a CPU, MKL."""
    cudnn: str | None
    blas: str | None
    threads: int
    """The number of threads that torch uses at this moment."""
    settings: list[str]
    """The variables of `SETTINGS` that are set: "NVIDIA_TF32_OVERRIDE=1"."""


def unknown(device: torch.device) -> DeviceKind:
    """For a device that does not report its kind."""
    return DeviceKind(
        type=device.type,
        name="unknown",
        capability="",
        units=0,
        driver=None,
        torch=str(torch.__version__),
        cuda=None,
        cudnn=None,
        blas=None,
        threads=torch.get_num_threads(),
        settings=[],
    )


def kind_of(device: torch.device, environ: Mapping[str, str]) -> DeviceKind:
    kind = unknown(device)
    kind["settings"] = [f"{name}={environ[name]}" for name in SETTINGS if name in environ]
    if device.type == "cpu":
        lines: list[tuple[str, str]] = re.findall(
            r"^(model name|flags|Features)\s*: (.+)$", read("/proc/cpuinfo"), re.MULTILINE
        )
        cpu_info = dict(lines)
        flags = hashlib.sha256((cpu_info.get("flags") or cpu_info.get("Features", "")).encode()).hexdigest()[:8]
        mkl = re.search(r"Math Kernel Library Version (\S+)", torch.__config__.show())
        kind["name"] = cpu_info.get("model name", platform.machine())
        kind["capability"] = f"{torch.backends.cpu.get_cpu_capability()}, flags {flags}"
        kind["blas"] = f"MKL {mkl[1]}" if mkl else None
        return kind
    properties = torch.cuda.get_device_properties(device)
    kind["name"], kind["units"] = properties.name, properties.multi_processor_count
    kind["capability"] = f"{properties.major}.{properties.minor}"
    kind["driver"] = read("/sys/module/nvidia/version") or read("/sys/module/amdgpu/version") or None
    kind["cuda"] = torch.version.cuda or f"ROCm {torch.version.hip}"
    kind["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    kind["blas"] = _cublas()
    return kind


def _cublas() -> str | None:
    """ "12.4.5", from the library that torch has loaded, since torch does not report it. None if it is no cuBLAS."""
    loaded = re.search(r"/\S*/libcublas\.so\S*", read("/proc/self/maps"))
    if not loaded:
        return None
    value, parts = ctypes.c_int(), []
    try:
        for part in range(3):  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL of libraryPropertyType
            if ctypes.CDLL(loaded.group()).cublasGetProperty(part, ctypes.byref(value)) != 0:
                return None
            parts.append(str(value.value))
    except (OSError, AttributeError):
        return None
    return ".".join(parts)


@contextlib.contextmanager
def plain_arithmetic(threads: int | None = 1) -> Iterator[None]:
    """Turns off TF32, partial sums in bf16 and kernels chosen by trial. One thread on a CPU: where ranks share cores,
    OpenMP's threads wait for each other by spinning (5 ranks with 2 threads each on 2 cores: 15 s). None leaves the
    number of threads as it is."""
    matmul, before = torch.backends.cuda.matmul, torch.get_num_threads()
    precision, in_bf16 = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    by_trial = torch.cuda.is_available() and torch.cuda.tunable.is_enabled()
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(threads or before)
    matmul.allow_bf16_reduced_precision_reduction = False
    if by_trial:
        torch.cuda.tunable.enable(False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(before)
        matmul.allow_bf16_reduced_precision_reduction = in_bf16
        if by_trial:
            torch.cuda.tunable.enable(True)
