"""Samples by content: splits a batch into samples; the id of each is the digest of its content.

torch's default collation makes columns (tensors, lists of numbers or texts) of one common length. Others keep a list of
samples, or transpose it: (images, targets). If the loader's batch size is known, the split that fits it is taken. If
none fits, the batch counts as one sample, and its size stays unknown.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from preflight.checks.data.shared import digests


class NoKey(Exception):  # noqa: N818 -- an answer, not an error
    """The batch has no such field. The text is what it has instead."""


class Cutter:
    """Splits the batches of one loader, all in the way that fits the first whole one."""

    def __init__(self, size: int | None, key: str | None = None) -> None:
        """`size`: the most samples in a batch, if known. `key`: the field (a dict's key, a position, an attribute) that
        identifies a sample."""
        self._size, self._key = size, key
        self._way: int | None = None

    def samples(self, batch: Any) -> tuple[list[int], bool]:
        """(ids of the samples, whether their number is known). Raises NoKey."""
        if self._key is not None:
            field = _field(batch, self._key)
            return ([digests.id_of(field)] if _length(field) is None else digests.rows(field)), True
        columns = self._columns(batch)
        if columns is None:
            return [digests.id_of(batch)], False
        if len(columns) == 1:
            return digests.rows(columns[0]), True
        return [_joined(row) for row in zip(*map(digests.rows, columns), strict=True)], True

    def size(self, batch: Any) -> int:
        """How many samples are in the batch; 0 if unknown."""
        columns = self._columns(batch)
        return 0 if columns is None else len(columns[0])

    def _columns(self, batch: Any) -> list[Any] | None:
        """Columns of one common length; None if the batch cannot be split."""
        cuts = {way: columns for way, columns in enumerate(_cuts(batch)) if self._fits(columns)}
        if self._way is None:
            whole = [way for way, columns in cuts.items() if self._size in (None, _common(columns))]
            self._way = whole[0] if whole else None
        way = self._way if self._way is not None else min(cuts, default=0)
        return cuts.get(way)

    def _fits(self, columns: list[Any]) -> bool:
        length = _common(columns)
        if length is None:
            return False
        if self._size is not None:
            return length <= self._size
        # A row of numbers may be one sample, such as a text's tokens, which would seem to come again and again.
        return not all(_rowed(column) and column.ndim == 1 for column in columns)


def _joined(row: tuple[int, ...]) -> int:
    packed = b"".join(number.to_bytes(digests.BYTES, "little") for number in row)
    return digests.number(hashlib.blake2b(packed, digest_size=digests.BYTES))


def _cuts(batch: Any) -> Iterator[list[Any]]:
    """Possible splits: columns of torch's default collation; transposed; a list of samples."""
    yield list(_leaves(batch))
    yield [] if isinstance(batch, list) else _fields(batch) or []
    yield [batch] if isinstance(batch, list) else []


def _leaves(value: Any) -> Iterator[Any]:
    """Tensors, arrays and lists of plain values; anything else is not a column."""
    fields = _fields(value)
    if fields is None or (isinstance(value, list | tuple) and fields and not any(map(_holds, fields))):
        yield value
    else:
        for field in fields:
            yield from _leaves(field)


def _fields(value: Any) -> list[Any] | None:
    """A container's elements; None if it is not a container."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return None


def _holds(value: Any) -> bool:
    return _fields(value) is not None or _rowed(value)


def _rowed(value: Any) -> bool:
    """Whether it is a tensor or array, of any shape."""
    return digests.is_tensor(value) or digests.is_array(value)


def _length(column: Any) -> int | None:
    if _rowed(column):
        return len(column) if column.ndim else None
    return len(column) if isinstance(column, Sequence) and not isinstance(column, str | bytes | bytearray) else None


def _common(columns: list[Any]) -> int | None:
    lengths = {_length(column) for column in columns}
    return lengths.pop() if len(lengths) == 1 else None


def _field(batch: Any, key: str) -> Any:
    if isinstance(batch, list) and batch and all(isinstance(sample, Mapping) for sample in batch):
        return [_field(sample, key) for sample in batch]
    known: Mapping[str, Any] = {}
    if isinstance(batch, Mapping):
        known = {str(name): value for name, value in batch.items()}
    elif hasattr(batch, key) and key.isidentifier():
        return getattr(batch, key)
    elif isinstance(batch, list | tuple):
        known = {str(place): value for place, value in enumerate(batch)}
    if key not in known:
        raise NoKey(", ".join(list(known)[:10]) or f"a {type(batch).__name__} without fields")
    return known[key]
