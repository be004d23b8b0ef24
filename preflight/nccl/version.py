"""Which NCCL the job will load, without an import of torch."""

import functools
import re

SAME_VERSION_FIX = (
    "Install the same torch on all nodes: python -c 'import torch; print(torch.cuda.nccl.version())'; see "
    "LD_PRELOAD and LD_LIBRARY_PATH."
)


@functools.cache
def installed() -> str:
    """ "2.27.5": of the wheel nvidia-nccl-cu* that this torch asks for, and then loads. "" where it asks for none: it
    was built with a libnccl of the system, as in NVIDIA's containers, or with none."""
    import importlib.metadata  # here: it takes as long as all that the supervisor imports of preflight

    try:
        asked = re.findall(r"^nvidia-nccl-cu\d+", "\n".join(importlib.metadata.requires("torch") or ()), re.MULTILINE)
        return importlib.metadata.version(asked[0]) if asked else ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def is_before(version: str, major: int, minor: int) -> bool:
    """Whether the version is known and before major.minor: an unknown version counts as the newest."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < (major, minor)
