"""Which NCCL the job will load, without an import of torch."""

import functools
import os
import re

from preflight.sdk import packages
from preflight.sdk.files import read

SAME_VERSION_FIX = (
    "Install the same NCCL on all nodes: a run with NCCL_DEBUG=VERSION prints the one that is loaded "
    "(torch.cuda.nccl.version() is the one that torch was built with); see LD_PRELOAD and LD_LIBRARY_PATH."
)


@functools.cache
def installed() -> str:
    """ "2.27.5": of the wheel nvidia-nccl-cu* that this torch asks for, and then loads. "" where it asks for none: it
    was built with a libnccl of the system, as in NVIDIA's containers, or with none."""
    known = packages.installed()
    metadata = read(os.path.join(known["torch"].folder, "METADATA")) if "torch" in known else ""
    asked = re.search(r"^Requires-Dist: (nvidia-nccl-cu\d+)", metadata, re.MULTILINE)
    return known[asked[1]].version if asked and asked[1] in known else ""


def version_text(code: int) -> str:
    """22703 means 2.27.3 (NCCL_VERSION in src/nccl.h.in, since 2.9)."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def is_before(version: str, major: int, minor: int) -> bool:
    """Whether the version is known and before major.minor: an unknown version counts as the newest."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < (major, minor)
