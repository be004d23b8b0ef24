"""The limits that this process inherited from its launcher (getrlimit), and from which of them it is exempt."""

import os
import resource

from preflight.check import entries, read
from preflight.sdk.cgroups import Room

IPC_LOCK, SYS_ADMIN, SYS_RESOURCE = 14, 21, 24
"""Capabilities, by bit number (linux/capability.h)."""
EVERYBODY = ["0", "0", str(2**32 - 1)]
"""The uid_map of a process without its own user namespace."""


def limit(kind: int, *, hard: bool = False) -> int | None:
    """The value of a limit; None if unlimited."""
    value = resource.getrlimit(kind)[hard]
    return None if value == resource.RLIM_INFINITY else value


def memlock() -> int | None:
    """How many bytes may be locked; None if unlimited."""
    return None if _has(IPC_LOCK) else limit(resource.RLIMIT_MEMLOCK)


def tasks() -> Room | None:
    """Processes and threads of the user; None without a limit, and for root, which is exempt. The kernel also counts
    those that are not visible from here (in other containers)."""
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
    """Whether a capability of these is effective, or this is root. In a user namespace neither exempts a process."""
    if read("/proc/self/uid_map").split() != EVERYBODY:
        return False
    lines = [line for line in read("/proc/self/status").splitlines() if line.startswith("CapEff:")]
    effective = int(lines[0].split()[1], 16) if lines else 0
    return (root and os.getuid() == 0) or any(effective >> bit & 1 for bit in capabilities)
