"""Which files are source code, and their content."""

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

SOURCES = (".py", ".pyi", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".sh")
SCRIPTS = (".sh",)
"""Sources that may be personal, as in a home folder under git: a difference there is not surely a fault."""
SETTINGS = (".cfg", ".gin", ".ini", ".json", ".toml", ".yaml", ".yml")
NO_CODE = {"__pycache__", "build", "checkpoints", "dist", "logs", "node_modules", "outputs", "runs", "wandb"}
"""Folders of build output, and of what training writes on one node only."""
MOST_FILES = 5000
MOST_BYTES = 64 * 1024 * 1024
"""Takes a tenth of a second to hash with SHA-1 on a slow core."""
PIECE = 4 << 20
FOLDER_S = 2.0
"""Time limit for reading the files of --code."""
NO_FOLDER, IS_FILE = "there is no such folder", "it is not a folder"


class Unreadable(Exception):  # noqa: N818 -- says what is
    """The files cannot be compared; the text says why."""


def below(folder: str) -> Iterator[str]:
    """The paths of all source and settings files below a folder. Raises Unreadable."""
    if not os.path.isdir(folder):
        raise Unreadable(IS_FILE if os.path.lexists(folder) else NO_FOLDER)
    start, count, size = time.monotonic(), 0, 0
    for path, folders, names in os.walk(folder, onerror=_refused):
        folders[:] = [name for name in folders if may_hold_code(path, name)]
        for file in (os.path.join(path, name) for name in names if name.endswith(SOURCES + SETTINGS)):
            count, size = count + 1, size + os.lstat(file).st_size
            if count > MOST_FILES or size > MOST_BYTES:
                raise Unreadable(f"it holds more than {MOST_FILES:,} source files, or {MOST_BYTES >> 20} MiB of them")
            if time.monotonic() - start > FOLDER_S:
                raise Unreadable(f"its files could not be read within {FOLDER_S:g} s")
            yield file


def _refused(error: OSError) -> None:
    raise Unreadable(f"{error.filename} cannot be read ({error.strerror})")


def may_hold_code(parent: str, name: str) -> bool:
    is_venv = os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))
    return not (name.startswith(".") or name in NO_CODE or is_venv)


def blob(path: str, algorithm: str = "sha1", in_time: Callable[[], None] = lambda: None) -> str:
    """A file's git blob id. Raises OSError, what `in_time` raises, and Unreadable for what is no file."""
    if os.path.islink(path):
        content = os.fsencode(os.readlink(path))
        return hashlib.new(algorithm, b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    with _opened(path) as file:
        whole = hashlib.new(algorithm, b"blob %d\0" % os.fstat(file.fileno()).st_size, usedforsecurity=False)
        while part := file.read(PIECE):
            in_time()
            whole.update(part)
    return whole.hexdigest()


def content_of(path: str) -> bytes:
    """The first MOST_BYTES of a regular file. Raises like `blob`."""
    with _opened(path) as file:
        return file.read(MOST_BYTES)


def _opened(path: str) -> BinaryIO:
    """Opening a pipe or device in place of a file could block."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise Unreadable(f"{path} is not a file")
    return open(path, "rb")
