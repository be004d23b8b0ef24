"""Of which kind a rank's hardware and libraries are: all that decides which bits its sums round to."""

import hashlib
import os
import platform
import re
from collections.abc import Mapping

import torch

SETTINGS = (
    "ATEN_CPU_CAPABILITY", "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY",
    "CUBLAS_WORKSPACE_CONFIG", "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "NVIDIA_TF32_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT",
)  # fmt: skip
"""Variables that make torch or its libraries choose other arithmetic."""


def of(device: torch.device, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """By what it is: short texts. The number of threads is the one at this moment."""
    kind = {"type": device.type, **(_gpu(device) if device.type == "cuda" else _cpu())}
    kind |= {"torch": str(torch.__version__), "threads": str(torch.get_num_threads())}
    settings = [f"{name}={environ[name]}" for name in SETTINGS if name in environ]
    return {**kind, "settings": ", ".join(settings)} if settings else kind


def _gpu(device: torch.device) -> dict[str, str]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}, {properties.multi_processor_count} multiprocessors",
        "cuda": torch.version.cuda or f"ROCm {torch.version.hip}",
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
    }


def _cpu() -> dict[str, str]:
    """The flags, since a virtual machine may hide some of its CPU's, and libraries then choose other code."""
    with open("/proc/cpuinfo", errors="replace") as file:
        told = dict(re.findall(r"^(model name|flags|Features)\s*: (.+)$", file.read(), re.MULTILINE))
    flags = told.get("flags") or told.get("Features", "")
    mkl = re.search(r"Math Kernel Library Version (\S+)", torch.__config__.show())
    return {
        "name": told.get("model name", platform.machine()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "flags": hashlib.sha256(flags.encode()).hexdigest()[:8],
        "mkl": mkl[1] if mkl else "none",
    }
