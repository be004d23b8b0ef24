"""The door to one path that a user names, for a process that must not hang: it is looked at in another process."""

import os
import stat
from collections.abc import Callable
from typing import Any, TypeVar

from preflight.errors import CannotWork, UsageError
from preflight.sdk import process_limits
from preflight.sdk.probe import NoReply, NoReplyKind, Probe
from preflight.sdk.system_call import not_answered

T = TypeVar("T")
ANSWER_S = 10.0
"""Time for all that is asked about one path. A rank waits so long before its run, so it is less than the least time
that ranks wait for each other with the deadline of a quick run (20 s)."""


def ask(named: str, look: Callable[[], T], within_s: float = ANSWER_S) -> T:
    """What `look` returns, as JSON, from another process. `named`: the path, with its option. Raises UsageError
    where no answer comes, CannotWork where no process can be started, and the UsageError or OSError of `look`."""
    with Probe({"look": lambda: _outcome(look)}) as probe:
        reply = probe.ask("look", deadline_s=within_s)
    if isinstance(reply, NoReply):
        if reply.kind is NoReplyKind.TIMED_OUT:
            raise UsageError(not_answered(named, reply.seconds), everywhere=False)
        if reply.refused is not None:
            limit = process_limits.hit(process_limits.refusals(), number=reply.refused)
            raise CannotWork(f"{named}: no process can be started to look at it: {limit or reply.text}")
        raise UsageError(f"{named}: cannot be looked at ({reply.text})", everywhere=False)
    if "usage" in reply.value:
        raise UsageError(reply.value["usage"], everywhere=reply.value["everywhere"])
    if "errno" in reply.value:
        raise OSError(reply.value["errno"], reply.value["why"], reply.value["path"])
    found: T = reply.value["found"]
    return found


def _outcome(look: Callable[[], Any]) -> dict[str, object]:
    try:
        return {"found": look()}
    except UsageError as error:
        return {"usage": str(error), "everywhere": error.everywhere}
    except OSError as error:
        return {"errno": error.errno or 0, "why": error.strerror or str(error), "path": error.filename}


def opened(path: str) -> int:
    """A descriptor for reading a regular file; waits for no writer. Raises OSError, also for a file of /proc: the
    reader of /proc/kmsg waits for the kernel's next message, which is lost for others."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    about = os.fstat(number)
    if stat.S_ISREG(about.st_mode) and about.st_dev != os.stat("/proc/self").st_dev:
        return number
    os.close(number)
    raise OSError(0, "is not a regular file")
