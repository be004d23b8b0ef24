"""Reads a checkpoint in a separate process, step by step: a file system may hang, and a file may be hostile."""

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from typing import Any

from preflight.checkpoint import find
from preflight.checkpoint.contents import Contents, NotUsable, Stretch
from preflight.sdk.probe import Probe

STEP_S = 0.5
"""A step answers after this time, plus at most one call."""
PIECE = 1 << 20
MEMORY = 16 << 30
"""Bytes of memory that the process may take: a hostile file can ask for any amount."""


class CheckpointReader:
    """The functions of the process. `open`, then `step` until it is done, then `contents`."""

    def __init__(self) -> None:
        self._contents, self._path, self._read = Contents(), "", 0
        self._steps: Iterator[int] = iter(())

    def open(self, path: str) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY if hard < 0 else min(MEMORY, hard), hard))
        self._path = path
        Probe.doing(f"listing {path}")
        try:
            self._steps = find.read(path, self._contents)
        except NotUsable as error:
            return {"not_usable": str(error)}
        except OSError as error:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            return {"not_usable" if missing else "unreadable": _why(error)}
        return {"bytes": sum(self._contents.files.values())}

    def step(self) -> dict[str, Any]:
        end = time.monotonic() + STEP_S
        Probe.doing("importing torch")
        import torch

        torch.set_num_threads(1)
        for read in self._steps:
            self._read += read
            if time.monotonic() > end:
                return {"read": self._read, "done": False}
        return {"read": self._read, "done": True}

    def contents(self) -> Iterator[dict[str, Any]]:
        yield from self._contents.parts()

    def differ(self, first: str, second: str) -> bool | None:
        """Whether two tensors of the checkpoint hold different bytes; None if it is not known."""
        place = self._path if os.path.isdir(self._path) else os.path.dirname(os.path.abspath(self._path))
        return _hold_other_bytes(place, self._contents, first, second)


def _why(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file or folder"
    return f"cannot be read ({error.strerror})"


def _hold_other_bytes(folder: str, contents: Contents, first: str, second: str) -> bool | None:
    """Whether two tensors, such as tied parameters, differ; None if their layouts do, or they were not found. Raises
    OSError."""
    own = [stretch for stretch in contents.stretches if stretch.tensor == first]
    others = [stretch for stretch in contents.stretches if stretch.tensor == second]
    if not own or [(s.bytes, s.dtype) for s in own] != [(s.bytes, s.dtype) for s in others]:
        return None
    return any(_differ(folder, *pair) for pair in zip(own, others, strict=True))


def _differ(folder: str, first: Stretch, second: Stretch) -> bool:
    with open(os.path.join(folder, first.file), "rb") as mine, open(os.path.join(folder, second.file), "rb") as other:
        mine.seek(first.at)
        other.seek(second.at)
        left = first.bytes
        while left > 0:
            if mine.read(min(PIECE, left)) != other.read(min(PIECE, left)):
                return True
            left -= PIECE
    return False
