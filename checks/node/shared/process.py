"""The limits of this process, as its launcher left them to it (getrlimit), and from which of them it is excepted."""

import os
import resource

from preflight.check import entries, read
from preflight.sdk.cgroups import Room

IPC_LOCK, SYS_ADMIN, SYS_RESOURCE = 14, 21, 24
"""Capabilities, by their bits (linux/capability.h)."""
EVERYBODY = ["0", "0", str(2**32 - 1)]
"""The uid_map of a process that is in no user namespace of its own."""


def limit(kind: int, *, hard: bool = False) -> int | None:
    """None is unlimited."""
    value = resource.getrlimit(kind)[hard]
    return None if value == resource.RLIM_INFINITY else value


def memlock() -> int | None:
    """Bytes that may be locked."""
    return None if _has(IPC_LOCK) else limit(resource.RLIMIT_MEMLOCK)


def tasks() -> Room | None:
    """Processes and threads of the user. Those that cannot be seen from here (in other containers) count for the
    kernel, and not here. Root is excepted."""
    most = limit(resource.RLIMIT_NPROC)
    if most is None or _has(SYS_ADMIN, SYS_RESOURCE, root=True):
        return None
    return Room(most, max(0, most - sum(_threads(name) for name in entries("/proc") if name.isdecimal())))


def _threads(pid: str) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task")) if os.stat(f"/proc/{pid}").st_uid == os.getuid() else 0
    except OSError:  # it has ended
        return 0


def _has(*capabilities: int, root: bool = False) -> bool:
    """Whether one of these capabilities is effective, or this is root. In a user namespace neither excepts anybody."""
    if read("/proc/self/uid_map").split() != EVERYBODY:
        return False
    lines = [line for line in read("/proc/self/status").splitlines() if line.startswith("CapEff:")]
    effective = int(lines[0].split()[1], 16) if lines else 0
    return (root and os.getuid() == 0) or any(effective >> bit & 1 for bit in capabilities)
