"""What a checkpoint holds, in the same form for all formats."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "complex128": 16, "complex64": 8, "complex32": 4,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
    "qint32": 4, "qint8": 1, "quint8": 1,
}  # fmt: skip
"""The size of an element, by torch's name of the type."""


class NotUsable(Exception):  # noqa: N818 -- as it reads where it is caught
    """The path is not a checkpoint of a known format. Its text is the end of a sentence about the path."""


class Damage(Exception):  # noqa: N818 -- what the file has
    """A file cannot be read any further. Becomes a flaw of that file."""

    def __init__(self, slug: str, text: str) -> None:
        super().__init__(text)
        self.slug = slug


@dataclass(frozen=True)
class Flaw:
    """Something wrong with a file or with a tensor in it. Equal ones of many tensors become one finding."""

    slug: str
    """The slug of its code."""
    file: str
    """Relative to the checkpoint; "" for the checkpoint as a whole."""
    text: str
    """What was seen, and what was expected."""
    tensor: str = ""


@dataclass(frozen=True)
class Stretch:
    """Bytes of a file that hold elements of one tensor, one after another."""

    file: str
    at: int
    bytes: int
    dtype: str
    tensor: str


@dataclass(frozen=True)
class SavedTensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    shares: str = ""
    """Equal for tensors that share the same elements of a storage, which are saved once."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.numel * BYTES.get(self.dtype, 0)


@dataclass
class Contents:
    kind: str = ""
    """ "a checkpoint of torch.distributed.checkpoint (DCP)"."""
    files: dict[str, int] = field(default_factory=dict)
    """Relative path: size in bytes."""
    tensors: list[SavedTensor] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    flaws: list[Flaw] = field(default_factory=list)
    ranks: int | None = None
    """How many ranks wrote it, if the format says."""
    others: int = 0
    """The number of entries that are not tensors: numbers, texts, objects."""

    def add_flaw(self, slug: str, file: str, text: str, tensor: str = "") -> None:
        self.flaws.append(Flaw(slug, file, text, tensor))

    def parts(self, most: int = 1000) -> Iterator[dict[str, Any]]:
        """Yields it as JSON, in parts; without the stretches."""
        yield {"kind": self.kind, "files": self.files, "ranks": self.ranks, "others": self.others}
        for batch in _batches(self.tensors, most):
            yield {"tensors": [[t.name, t.dtype, list(t.shape), t.file, t.shares] for t in batch]}
        for flaws in _batches(self.flaws, most):
            yield {"flaws": [asdict(flaw) for flaw in flaws]}

    @staticmethod
    def of_parts(parts: Iterable[dict[str, Any]]) -> "Contents":
        made = Contents()
        for part in parts:
            for name in ("kind", "files", "ranks", "others"):
                if name in part:
                    setattr(made, name, part[name])
            made.tensors += [SavedTensor(n, d, tuple(s), f, shares) for n, d, s, f, shares in part.get("tensors", ())]
            made.flaws += [Flaw(**flaw) for flaw in part.get("flaws", ())]
        return made


def _batches(items: list[Any], most: int) -> Iterator[list[Any]]:
    return (items[at : at + most] for at in range(0, len(items), most))
