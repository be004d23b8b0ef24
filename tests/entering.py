"""Puts this process where a test wants a rank: on a host of tests/hosts.py, as `ip netns exec NAMESPACE unshare --uts`
does with a command, or among mounts, limits and cgroups of its own."""

import ctypes
import os
import socket
import subprocess
from collections.abc import Sequence

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS, _NEW_UTS, _NEW_NET = 0x20000, 0x4000000, 0x40000000
_READ_ONLY, _BIND, _RECURSIVE, _PRIVATE, _SLAVE = 0x1, 0x1000, 0x4000, 0x40000, 0x80000
_DETACH = 2


def enter(namespace: str, name: str, folder: str) -> None:
    """For a process with one thread. `folder`: what the host has in /etc. Raises OSError."""
    with open(f"/run/netns/{namespace}") as file:
        _call("setns", file.fileno(), _NEW_NET)
    _call("unshare", _NEW_MOUNTS | _NEW_UTS)
    _mount("none", "/", "", _RECURSIVE | _SLAVE)
    flags = os.statvfs("/sys").f_flag & _READ_ONLY
    _call("umount2", b"/sys", _DETACH)
    _mount(namespace, "/sys", "sysfs", flags)
    for entry in os.listdir(folder):
        _mount(os.path.join(folder, entry), os.path.join("/etc", entry), "", _BIND)
    socket.sethostname(name)


def prepare(script: str) -> None:
    """Does a shell's lines, in which $PPID is this process: in a mount namespace of its own where root does it. For a
    process with one thread. Raises OSError and CalledProcessError."""
    if os.geteuid() == 0:
        _call("unshare", _NEW_MOUNTS)
        _mount("none", "/", "", _RECURSIVE | _PRIVATE)
    subprocess.run(["sh", "-ec", script], check=True)


def prepared(script: str, folder: str, command: Sequence[str]) -> list[str]:
    """The command in that folder, once a shell of its own has done the same."""
    own = ["unshare", "--mount"] if os.geteuid() == 0 else []
    begin = 'sh -ec "$0" && cd "$1" && shift && exec "$@"'
    return [*own, "sh", "-c", begin, script, folder, *command]


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    _call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")
