"""Digests of what loaders yield: equal content of any type has equal digests in every process."""

import ctypes
import hashlib
import os
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


BYTES = 8
ID_BITS = 63
DEEPEST = 30
"""The deepest nesting of containers; an object that refers to itself would go deeper."""
MOST = 1_000_000
"""The most values in one sample."""
PLAIN = (type(None), bool, int, float, complex)
"""For exactly these types (no subclasses) `repr` is the content."""


class Unknown(Exception):  # noqa: N818 -- an answer, not an error
    """The content cannot be determined, as of an open file."""


def digest(value: Any) -> int:
    """A 63-bit integer; types and shapes count, too. Supports tensors on any device, sparse and nested ones, NumPy
    arrays, containers, and all objects that can be pickled (by `__reduce_ex__`). Raises Unknown."""
    feeding = _Feeding()
    try:
        feeding.feed(value, 0)
    except Exception as error:  # the user's objects' own methods are called
        raise Unknown from error
    return number(feeding.hasher)


def id_of(value: Any) -> int:
    """`digest`; content that cannot be determined counts as random: its id never comes again."""
    try:
        return digest(value)
    except Unknown:
        return int.from_bytes(os.urandom(BYTES), "little") >> 1


def rows(column: Any) -> list[int]:
    """An id per row of a tensor or array of at least one dimension, or per element of a sequence."""
    if is_tensor(column) and column.layout is _strided() and not column.is_quantized:
        dense = _dense(column)
        return _cut(f"rows {dense.dtype} {tuple(dense.shape[1:])}", _buffer(dense), len(dense))
    if is_array(column) and not column.dtype.hasobject:
        return _cut(f"rows {column.dtype.str} {column.shape[1:]}", memoryview(column.tobytes()), len(column))
    return [id_of(item) for item in column]


def number(hasher: "hashlib.blake2b") -> int:
    return int.from_bytes(hasher.digest(), "little") >> (8 * BYTES - ID_BITS)


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    """Whether it is a NumPy array or number, without importing NumPy."""
    return all(hasattr(value, name) for name in ("dtype", "shape", "tobytes", "ndim"))


class _Feeding:
    """Feeds values to a hash, each with its type and size, so that ["ab"] and ["a", "b"] differ."""

    def __init__(self) -> None:
        self.hasher = hashlib.blake2b(digest_size=BYTES)
        self.left = MOST

    def say(self, *words: object) -> None:
        self.hasher.update(" ".join(map(str, words)).encode("utf-8", "surrogatepass") + b"\0")

    def feed(self, value: Any, depth: int) -> None:
        self.left -= 1
        if depth > DEEPEST or self.left < 0:
            raise Unknown
        kind = type(value)
        if kind in PLAIN:
            self.say(kind.__name__, repr(value))
        elif kind is str:
            self.say("str", len(value), value)
        elif kind in (bytes, bytearray, memoryview):
            self.say(kind.__name__, len(value))
            self.hasher.update(value)
        elif kind in (list, tuple):
            self.say(kind.__name__, len(value))
            for item in value:
                self.feed(item, depth + 1)
        elif kind in (dict, set, frozenset):
            self.unordered(value, depth)
        elif is_tensor(value):
            self.tensor(value, depth)
        elif is_array(value):
            self.array(value, depth)
        else:
            self.object(value, depth)

    def unordered(self, value: Any, depth: int) -> None:
        """Feeds a set in a fixed order: its own differs between processes."""
        parts = []
        for item in value.items() if isinstance(value, dict) else value:
            part = _Feeding()
            part.left = self.left
            part.feed(item, depth + 1)
            self.left = part.left
            parts.append(part.hasher.digest())
        self.say(type(value).__name__, len(parts))
        self.hasher.update(b"".join(sorted(parts)))

    def tensor(self, tensor: "torch.Tensor", depth: int) -> None:
        import torch

        if tensor.is_nested:
            self.feed(list(tensor.unbind()), depth + 1)
        elif tensor.is_quantized:
            self.feed((str(tensor.dtype), tensor.int_repr()), depth + 1)
        elif tensor.layout is not torch.strided:
            sparse = tensor.detach().to_sparse().coalesce()
            self.feed((tuple(sparse.shape), sparse.indices(), sparse.values()), depth + 1)
        else:
            dense = _dense(tensor)
            self.say("tensor", dense.dtype, tuple(dense.shape))
            self.hasher.update(_buffer(dense))

    def array(self, array: Any, depth: int) -> None:
        self.say("array", array.dtype.str, array.shape)
        if array.dtype.hasobject:  # its bytes are addresses
            self.feed(array.tolist(), depth + 1)
        else:
            self.hasher.update(array.tobytes())

    def object(self, value: Any, depth: int) -> None:
        """Feeds an object as pickle would decompose it. A function or class is its name."""
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            self.say("name", value.__module__, value.__qualname__)
            return
        parts = value.__reduce_ex__(4)
        if isinstance(parts, str):
            self.say("name", type(value).__qualname__, parts)
            return
        for part in parts:
            self.feed(list(part) if isinstance(part, Iterator) else part, depth + 1)


def _strided() -> "torch.layout":
    import torch

    return torch.strided


def _dense(tensor: "torch.Tensor") -> "torch.Tensor":
    import torch

    plain = tensor.detach().as_subclass(torch.Tensor)
    return plain.resolve_conj().resolve_neg().cpu().contiguous()


def _buffer(tensor: "torch.Tensor") -> memoryview:
    """The bytes of a contiguous tensor, not copied: valid while the tensor lives. Does not need NumPy."""
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr()) if size else b"").cast("B")


def _cut(words: str, buffer: memoryview, count: int) -> list[int]:
    size = len(buffer) // max(1, count)
    begun = hashlib.blake2b(words.encode(), digest_size=BYTES)
    ids = []
    for row in range(count):
        hasher = begun.copy()
        hasher.update(buffer[row * size : (row + 1) * size])
        ids.append(number(hasher))
    return ids
