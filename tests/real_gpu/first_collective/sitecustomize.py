"""Rank 1 does what FIRST_COLLECTIVE says just before its first collective: "stop" stops its process, "endless" puts
work on its GPU that takes minutes."""

import os
import signal
import sys
from typing import Any

CYCLES = 1 << 40
"""Minutes at 2 GHz."""


class _AtWork:
    """Stands before all finders, and finds nothing."""

    def find_spec(self, name: str, *_more: Any) -> None:
        if name == "preflight.checks.comm.init":
            sys.meta_path.remove(self)
            from torch import distributed as dist

            first = dist.all_reduce

            def all_reduce(*arguments: Any, **named: Any) -> Any:
                dist.all_reduce = first
                _do(os.environ.get("FIRST_COLLECTIVE", ""))
                return first(*arguments, **named)

            dist.all_reduce = all_reduce


def _do(deed: str) -> None:
    import torch

    if deed == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif deed == "endless" and torch.cuda.is_available():
        torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]


if os.environ.get("RANK") == "1" and os.environ.get("FIRST_COLLECTIVE"):
    sys.meta_path.insert(0, _AtWork())
