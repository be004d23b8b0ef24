"""Compares the files of a checkpoint with what was written."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch

from preflight.train_smoke.trainer.wrapped import StrategySetting

METADATA = ".metadata"
"""The file that torch.distributed.checkpoint unpickles: it is read only if it is what was written."""
DIGEST = 32


class DamagedFile(TypedDict):
    """A file that differs from what was written."""

    file: str
    """Its name in the checkpoint's folder."""
    told: str


WrittenFiles = dict[str, tuple[int, bytes]]
"""Size and SHA-256 of files by name, taken from what was given to the file system: reading them back would take what
the medium has made of it for what was written."""


class RecordingStream:
    """A file that is written, and the digest of the bytes that it was given, in order."""

    def __init__(self, file: Any) -> None:
        self._file, self._digest, self._size, self._in_order = file, hashlib.sha256(), 0, True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        self._size += memoryview(data).nbytes
        written: int = self._file.write(data)
        return written

    def seek(self, *where: int) -> int:
        self._in_order = False
        place: int = self._file.seek(*where)
        return place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def written(self) -> tuple[int, bytes] | None:
        """(size, digest); None if it was not written from its start to its end."""
        return (self._size, self._digest.digest()) if self._in_order else None


@dataclass(frozen=True)
class Manifest:
    """Digests of the files that this rank has written, and of the metadata as all ranks must see it."""

    folder: Path
    digests: dict[str, tuple[int, bytes]]
    """Size and SHA-256 by name."""

    @classmethod
    def of(cls, folder: Path, setting: StrategySetting, written: Mapping[str, tuple[int, bytes]]) -> "Manifest":
        """Made right after all ranks have written. `written`: what this rank has given to the file system; other files
        of this rank are read back. Called on all ranks together."""
        rank = setting.group.rank()
        names = [name for name in _names(folder) if _writer(name) == rank and name not in written]
        digests = {name: _written(folder / name) for name in names if not name.endswith(".tmp")} | dict(written)
        size, digest = digests.get(METADATA, (-1, bytes(DIGEST)))
        told = torch.tensor([size, *digest], device=setting.device)
        torch.distributed.broadcast(told, group=setting.group, group_src=0)
        size, *numbers = told.tolist()
        if size >= 0:
            digests[METADATA] = size, bytes(numbers)
        return cls(folder, digests)

    def damaged(self) -> list[DamagedFile]:
        found = ((name, self._damage(name)) for name in self.digests)
        return [DamagedFile(file=name, told=told) for name, told in found if told]

    def _damage(self, name: str) -> str:
        was, digest = self.digests[name]
        try:
            now, other = _digest(self.folder / name)
        except FileNotFoundError:
            return "is missing, expected it as it was written"
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if was < 0:
            return "could not be read right after it was written, expected its bytes"
        if now != was:
            return f"has {now:,} bytes, expected the {was:,} that were written"
        return "" if other == digest else f"has other contents in its {was:,} bytes, expected those that were written"

    def is_unsafe(self, damaged: list[DamagedFile]) -> bool:
        return any(damage["file"] == METADATA for damage in damaged)


def _written(path: Path) -> tuple[int, bytes]:
    """(size, digest) of a file; size -1 if it cannot be read."""
    try:
        return _digest(path)
    except OSError:
        return -1, bytes(DIGEST)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _writer(name: str) -> int:
    """The rank that wrote a file, by its name (in DCP "__3_0.distcp", or forms.py)."""
    word = name.removeprefix("__").removeprefix("rank-").partition("_" if name.startswith("__") else ".")[0]
    return int(word) if word.isdecimal() else 0


def _digest(path: Path) -> tuple[int, bytes]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
        return file.tell(), digest
