"""What preflight itself needs from its process and container; each error is one sentence."""

import os
import resource

from preflight.errors import CannotWork, UsageError

LEAST_FILES = 32
"""A rank's supervisor holds up to 20 at once, in addition to the import of torch."""


def need_a_folder() -> None:
    """Raises UsageError if the current folder is gone: torch's MKL would end the process."""
    try:
        os.getcwd()
    except OSError:
        raise UsageError("the current folder is gone: change to one that exists", everywhere=False) from None


def need_what_processes_need() -> None:
    """Raises CannotWork."""
    if not os.path.isdir("/proc/self/fd"):
        raise CannotWork("/proc does not show this process, expected the process table: mount -t proc proc /proc")
    try:
        os.close(os.open(os.devnull, os.O_RDWR))
    except OSError as error:
        what = f"{os.devnull} cannot be opened ({error.strerror}), expected the null device"
        raise CannotWork(f"{what}: start the container with a /dev, or mknod -m 666 {os.devnull} c 1 3") from None
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < LEAST_FILES:
        raise CannotWork(f"this process may open {files} files at once, expected {LEAST_FILES} or more: ulimit -n 1024")
