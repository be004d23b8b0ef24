"""Gives torch a CUDA, as CUDA_DEED says: the number of GPUs that it counts, "hangs" or "raises"."""

import os
import sys
import time
from typing import Any


class _AtWork:
    """Stands before all finders, and finds nothing."""

    def find_spec(self, name: str, *_more: Any) -> None:
        if name == "preflight.checks.gpu.inventory":
            import torch

            torch.version.cuda = "12.4"
            torch.cuda.is_available = lambda: True
            torch.cuda.device_count = _count


def _count() -> int:
    deed = os.environ["CUDA_DEED"]
    if deed == "hangs":
        time.sleep(1000)
    if deed == "raises":
        raise RuntimeError("CUDA driver initialization failed")
    return int(deed)


sys.meta_path.insert(0, _AtWork())
