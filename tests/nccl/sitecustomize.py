"""Has a run choose nccl on a machine without a GPU: for checks that only read, and judge by what the backend uses."""

import sys
from typing import Any


class _AtWork:
    """Stands before all finders, and finds nothing."""

    def find_spec(self, name: str, *_more: Any) -> None:
        if name == "preflight.engine.process_group":
            import torch

            torch.version.cuda = "12.4"
            torch.cuda.device_count = lambda: 8
            torch.distributed.is_nccl_available = lambda: True


sys.meta_path.insert(0, _AtWork())
