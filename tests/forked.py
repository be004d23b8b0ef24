"""Ranks forked from this process, which has imported what they need: once for all of them."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn


class NoPage:
    """For a Context without an engine: nobody reads what is being done."""

    def doing(self, what: str, where: Any) -> None: ...
    def enter(self, operation: str, shape: str) -> None: ...
    def leave(self) -> None: ...


def run(world: int, rank: Callable[[int], object]) -> NoReturn:
    """Calls `rank` in a process for each, which leaves by os._exit(0) where all went well. Ends with this process: by 1
    if one has left otherwise."""
    pids = []
    for number in range(world):
        pid = os.fork()
        if not pid:
            try:
                rank(number)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        pids.append(pid)
    sys.exit(any(os.waitpid(pid, 0)[1] for pid in pids))
