"""What a process asks of the kernel about itself and its relatives (prctl(2)).

ctypes is imported on first use: most commands need it nowhere else. Where threads may run, `load` it before a fork.
"""

import os
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

_SET_PDEATHSIG, _SET_NAME, _SET_CHILD_SUBREAPER, _SET_PTRACER = 1, 15, 36, 0x59616D61


@cache
def load() -> "ctypes.CDLL":
    """The C library."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def end_with_parent(parent: int, number: int) -> bool:
    """In a child, after the fork: the kernel sends it the signal `number` when its parent ends. False if the parent had
    ended before that: no signal will come, so the child ends itself."""
    load().prctl(_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent


def adopt_orphans() -> None:
    """Makes this process the parent of orphans, so that the children of a killed child can be ended too."""
    load().prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_name(name: str) -> None:
    """The name of this process in ps(1), 15 bytes at most."""
    load().prctl(_SET_NAME, name.encode(), 0, 0, 0)


def let_trace(pid: int) -> None:
    """Lets another process look at this one: Yama lets only parents look at their children."""
    load().prctl(_SET_PTRACER, pid, 0, 0, 0)
