"""What is installed: the versions of the loaded libraries, whatever variables say, and the packages."""

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from preflight.check import read
from preflight.nccl import parameters
from preflight.sdk import packages

IMAGE_NAMES = ("APPTAINER_NAME", "SINGULARITY_NAME", "NVIDIA_BUILD_ID")
"""Variables that tell images apart from inside: the file's name, and the build id in NVIDIA's own images. Docker and
Kubernetes tell a container nothing about its image."""


def versions(environ: Mapping[str, str]) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """(versions, paths), by component. None if absent or unknown."""
    found, folder = _torch()
    found |= {"python": sys.version.split()[0], "kernel": f"{os.uname().release} {os.uname().machine}"}
    found |= {"driver": _driver(), "image": _image(environ)}
    nccl = parameters.loaded() if found["nccl"] else ""
    return found, {"python": sys.executable, "torch": folder, "nccl": nccl or None}


def package_names() -> list[str]:
    """ "numpy 2.1.0" for each package."""
    return [f"{name} {package.version}" for name, package in sorted(packages.installed().items())]


def _torch() -> tuple[dict[str, str | None], str | None]:
    """(versions, path). Asks torch only if it is already imported: importing takes a second. cuDNN is asked
    below torch.backends.cudnn.version(), which starts CUDA and NVML in this process: later checks fork it."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return _torch_by_its_files()
    nccl = importlib.import_module("torch.cuda.nccl")
    build = torch.version.cuda or (f"ROCm {torch.version.hip}" if torch.version.hip else "none")
    return {
        "torch": str(torch.__version__),
        "cuda": build,
        "nccl": parameters.version() or _answer(lambda: ".".join(map(str, nccl.version()))),
        "cudnn": _answer(lambda: torch.backends.cudnn._cudnn.getVersionInt()),
    }, os.path.dirname(torch.__file__)


def _answer(ask: Callable[[], object]) -> str | None:
    """A version as text; None if torch was built without the library, which it reports in many ways."""
    try:
        version = ask()
    except Exception:
        return None
    return None if version is None else str(version)


def _torch_by_its_files() -> tuple[dict[str, str | None], str | None]:
    build = packages.torch_build()
    constants = build.constants if build else {}
    platform = constants.get("cuda") or (f"ROCm {constants['hip']}" if "hip" in constants else "none")
    versions = {
        "torch": constants.get("__version__"),
        "cuda": platform if constants else None,
        "nccl": None,
        "cudnn": None,
    }
    return versions, build.folder if build else None


def _driver() -> str | None:
    """The version of NVIDIA's or AMD's kernel module."""
    if version := read("/sys/module/nvidia/version") or read("/sys/module/amdgpu/version"):
        return version
    found = re.search(r"\s(\d+\.[\d.]+)\s", read("/proc/driver/nvidia/version"))
    return found[1] if found else None


def _image(environ: Mapping[str, str]) -> str:
    """What is visible from inside: the distribution, the C library, and the image's name if known."""
    system = re.search(r'^PRETTY_NAME="?([^"\n]+)', read("/etc/os-release"), re.MULTILINE)
    podman = re.search(r'^image="?([^"\n]+)', read("/run/.containerenv"), re.MULTILINE)
    names = [environ[name] for name in IMAGE_NAMES if environ.get(name)] + ([podman[1]] if podman else [])
    library = os.confstr("CS_GNU_LIBC_VERSION") or "an unknown C library"
    inside = f" in {' '.join(names)}" if names else ""
    return f"{system[1] if system else 'an unknown system'} with {library}{inside}"
