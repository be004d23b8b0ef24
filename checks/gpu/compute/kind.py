"""Of which kind a device is: its model, and all that decides which bits its sums round to."""

import ctypes
import hashlib
import platform
import re
from collections.abc import Mapping

import torch

from preflight.checks.gpu.compute.workload_facts import DeviceKind
from preflight.sdk import files

SETTINGS = (
    "ATEN_CPU_CAPABILITY", "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY",
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "DNNL_DEFAULT_FPMATH_MODE", "DNNL_MAX_CPU_ISA",
    "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "NVIDIA_TF32_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_BLAS_PREFER_HIPBLASLT",
)  # fmt: skip
"""Variables that make torch or its libraries choose other arithmetic."""


def kind_of(device: torch.device, environ: Mapping[str, str]) -> DeviceKind:
    settings = [f"{name}={environ[name]}" for name in SETTINGS if name in environ]
    if device.type == "cpu":
        return _kind_of_cpu(settings)
    properties = torch.cuda.get_device_properties(device)
    return {
        "type": device.type,
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "units": properties.multi_processor_count,
        "driver": _driver(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or f"ROCm {torch.version.hip}",
        "blas": _cublas(),
        "settings": settings,
    }


def unknown(device: torch.device) -> DeviceKind:
    return {"type": device.type, "name": "unknown", "capability": "", "units": 0, "driver": None,
            "torch": str(torch.__version__), "cuda": None, "blas": None, "settings": []}  # fmt: skip


def uuid_of(device: torch.device) -> str | None:
    """As NVML writes it: torch leaves out the prefix."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None) if device.type == "cuda" else None
    if uuid is None or str(uuid).startswith(("GPU-", "MIG-")):
        return uuid and str(uuid)
    return f"{'MIG' if ' MIG ' in torch.cuda.get_device_properties(device).name else 'GPU'}-{uuid}"


def _kind_of_cpu(settings: list[str]) -> DeviceKind:
    """The flags, since a virtual machine may hide some of its CPU's, and libraries then choose other code."""
    lines = re.findall(r"^(model name|flags|Features)\s*: (.+)$", files.read("/proc/cpuinfo"), re.MULTILINE)
    told: dict[str, str] = dict(lines)
    flags = hashlib.sha256((told.get("flags") or told.get("Features", "")).encode()).hexdigest()[:8]
    name = told.get("model name", platform.machine())
    capability = f"{torch.backends.cpu.get_cpu_capability()}, flags {flags}"
    return {**unknown(torch.device("cpu")), "name": name, "capability": capability, "settings": settings}


def _driver() -> str | None:
    """NVIDIA's or AMD's kernel module."""
    return files.read("/sys/module/nvidia/version") or files.read("/sys/module/amdgpu/version") or None


def _cublas() -> str | None:
    """ "12.4.5": torch does not tell; the library that it has loaded does. None where that is another one."""
    loaded = re.search(r"/\S*/libcublas\.so\S*", files.read("/proc/self/maps"))
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
