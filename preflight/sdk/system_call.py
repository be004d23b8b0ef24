"""In which system call a process waits, and for which path: so that a file system that does not answer can be named.

The kernel shows it in /proc/PID/syscall (proc(5)) to the parent of the process, and to root; where it does not
(Yama's ptrace_scope of 2 or 3, gVisor), the kernel function in /proc/PID/wchan at least shows whether it waits for
files.
"""

import os
from typing import NamedTuple

from preflight.core import words
from preflight.sdk.files import read, sleeps, state_of

BY_PATH = {
    "x86_64": {
        2: ("open", 0), 4: ("stat", 0), 6: ("lstat", 0), 21: ("access", 0), 59: ("execve", 0), 76: ("truncate", 0),
        80: ("chdir", 0), 82: ("rename", 1), 83: ("mkdir", 0), 84: ("rmdir", 0), 85: ("creat", 0), 87: ("unlink", 0),
        88: ("symlink", 1), 89: ("readlink", 0), 90: ("chmod", 0), 137: ("statfs", 0), 257: ("openat", 1),
        258: ("mkdirat", 1), 262: ("newfstatat", 1), 263: ("unlinkat", 1), 264: ("renameat", 3), 267: ("readlinkat", 1),
        268: ("fchmodat", 1), 269: ("faccessat", 1), 280: ("utimensat", 1), 316: ("renameat2", 3), 332: ("statx", 1),
        437: ("openat2", 1), 439: ("faccessat2", 1),
    },
    "aarch64": {
        34: ("mkdirat", 1), 35: ("unlinkat", 1), 38: ("renameat", 3), 43: ("statfs", 0), 45: ("truncate", 0),
        48: ("faccessat", 1), 49: ("chdir", 0), 53: ("fchmodat", 1), 56: ("openat", 1), 78: ("readlinkat", 1),
        79: ("newfstatat", 1), 88: ("utimensat", 1), 221: ("execve", 0), 276: ("renameat2", 3), 291: ("statx", 1),
        437: ("openat2", 1), 439: ("faccessat2", 1),
    },
}  # fmt: skip
"""Calls that take a path: the name, and which argument it is, by the numbers of arch/*/syscalls in Linux."""
BY_DESCRIPTOR = {
    "x86_64": {
        0: "read", 1: "write", 3: "close", 5: "fstat", 8: "lseek", 17: "pread64", 18: "pwrite64", 19: "readv",
        20: "writev", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 77: "ftruncate", 78: "getdents",
        138: "fstatfs", 217: "getdents64", 295: "preadv", 296: "pwritev",
    },
    "aarch64": {
        25: "fcntl", 32: "flock", 44: "fstatfs", 46: "ftruncate", 57: "close", 61: "getdents64", 62: "lseek",
        63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 69: "preadv", 70: "pwritev",
        80: "fstat", 82: "fsync", 83: "fdatasync",
    },
}  # fmt: skip
"""Calls whose first argument is a descriptor."""
OF_OTHERS = ("pipe:", "socket:", "anon_inode:", "/memfd:", "/dev/")
"""How the names of descriptors begin that belong to no file system: who waits there, waits for another process."""
NOT_FOR_FILES = (
    "pipe",
    "poll",
    "select",
    "wait4",
    "do_wait",
    "tty",
    "futex",
    "sleep",
    "sigtimedwait",
    "stream",
    "woken",
)
"""Parts of the names of kernel functions that wait for a process, a terminal or a time."""
MAPPED = "a file that is mapped into memory"
LONGEST_PATH = PAGE = 4096
TO_DO = "see whether it is mounted and its server is up (mount, dmesg), then run this again, or name a local copy"


def not_answered(path: str, seconds: float, call: str = "") -> str:
    """The sentence about a path that was waited for in vain."""
    shown, in_call = words.printable(path) or "a path", f" ({call})" if call else ""
    return f"{shown}: its file system has not answered for {seconds:.0f} s{in_call}; {TO_DO}"


class FileWait(NamedTuple):
    """A process waits for a file system."""

    call: str
    """Such as openat; where the kernel does not tell, its own function, or ""."""
    path: str
    """As the process gave it; "" if it is not known."""
    at: str
    """Differs when the process has moved on since."""


def waits_for(pid: int | str) -> str:
    """What to add to "did not end": for which file a process waits; "" where it waits for none."""
    wait = wait_of(pid)
    return f": the file system of {wait.path} does not answer ({wait.call})" if wait and wait.path else ""


def wait_of(pid: int | str, machine: str = os.uname().machine) -> FileWait | None:
    """For which file a process (or a thread, "PID/task/TID") waits now; None where it computes, or waits for something
    else."""
    state = state_of(pid)
    if state not in ("S", "D"):
        return None
    text = read(f"/proc/{pid}/syscall")
    if not text:
        return _by_wait_channel(pid)
    number, *arguments = text.split()
    if number == "running":
        return None
    if number == "-1":  # no call: a page of a mapped file is read
        return FileWait("page fault", MAPPED, f"{text} {sleeps(pid)}") if state == "D" else None
    return _in_call(pid, text, int(number), [int(argument, 16) for argument in arguments], machine)


def _in_call(pid: int | str, text: str, number: int, arguments: list[int], machine: str) -> FileWait | None:
    if number in BY_PATH.get(machine, {}):
        name, place = BY_PATH[machine][number]
        path = _text_at(pid, arguments[place])
        return FileWait(name, path, f"{text} {path} {read(f'/proc/{pid}/io')}")
    name = BY_DESCRIPTOR.get(machine, {}).get(number, "")
    if not name:
        return None
    if "pipe" in read(f"/proc/{pid}/wchan"):  # the path of a FIFO is in a file system, its writer is a process
        return None
    try:
        path = os.readlink(f"/proc/{pid}/fd/{arguments[0]}")
    except OSError:  # close() has taken it out of the table
        path = ""
    if path.startswith(OF_OTHERS):
        return None
    moved = [text, read(f"/proc/{pid}/io"), read(f"/proc/{pid}/fdinfo/{arguments[0]}")]
    if name.startswith("getdents"):  # of a long list, in which no byte is counted
        moved.append(sleeps(pid))
    return FileWait(name, path, " ".join(moved))


def _by_wait_channel(pid: int | str) -> FileWait | None:
    channel = read(f"/proc/{pid}/wchan").strip("0")
    if not channel or any(part in channel for part in NOT_FOR_FILES):
        return None
    return FileWait(channel, "", f"{channel} {sleeps(pid)}")


def _text_at(pid: int | str, address: int) -> str:
    """The text in the memory of a process; "" if it cannot be read."""
    found = b""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            while b"\0" not in found and len(found) < LONGEST_PATH:
                memory.seek(address + len(found))
                found += memory.read(PAGE - (address + len(found)) % PAGE)  # the next page may not exist
    except (OSError, ValueError, OverflowError):
        pass
    return os.fsdecode(found.partition(b"\0")[0])
