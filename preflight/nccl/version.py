"""Which NCCL the job will load, without an import of torch."""

import functools
import importlib.metadata
import re

SAME_VERSION_FIX = (
    "Install the same torch on all nodes: python -c 'import torch; print(torch.cuda.nccl.version())'; see "
    "LD_PRELOAD and LD_LIBRARY_PATH."
)


@functools.cache
def installed() -> str:
    """ "2.27.5": the version of the wheel nvidia-nccl-cu* that this torch requires and loads. "" if it requires none:
    it was built with the system's libnccl, as in NVIDIA's containers, or without NCCL."""
    try:
        asked = re.findall(r"^nvidia-nccl-cu\d+", "\n".join(importlib.metadata.requires("torch") or ()), re.MULTILINE)
        return importlib.metadata.version(asked[0]) if asked else ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def is_before(version: str, major: int, minor: int) -> bool:
    """Whether the version is known and before major.minor: an unknown version counts as the newest."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < (major, minor)
