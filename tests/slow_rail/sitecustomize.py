"""The stand-in for NCCL (tests/nccl_at_work), and a switch that is slow only when all nodes of its rail use it at once:
there an all-reduce of the rail takes ten times as long, and no less than 50 MB/s allow: the other rails share this
machine's cores, and may be several times slower for that.

Python imports this module by itself where its folder is on PYTHONPATH.
"""

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

runpy.run_path(str(Path(__file__).parent.parent / "nccl_at_work" / "sitecustomize.py"))


class _AtWork:
    """Stands before all finders, and finds nothing."""

    def find_spec(self, name: str, *_more: Any) -> None:
        if name == "preflight.checks.comm.shared.transfers" and os.environ["LOCAL_RANK"] == "1":
            from torch import distributed as dist

            right: Any = dist.all_reduce

            def congested(values: Any, *arguments: Any, **options: Any) -> Any:
                start = time.perf_counter()
                done = right(values, *arguments, **options)
                if values.numel() > 2:
                    least_s = values.numel() * values.element_size() / 50e6
                    time.sleep(max(9 * (time.perf_counter() - start), least_s))  # the fault itself
                return done

            dist.all_reduce = congested  # type: ignore[assignment]


sys.meta_path.insert(0, _AtWork())
