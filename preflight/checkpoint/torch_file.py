"""Files of torch.save: a zip since torch 1.6, a sequence of pickles before. Nothing is unpickled that could run.

The zip has `<name>/data.pkl`, a pickle of what was saved in which tensors refer to storages, and for each storage an
uncompressed entry `<name>/data/<key>` (torch/serialization.py).
"""

import io
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

from preflight.checkpoint import finite, pickled_names
from preflight.checkpoint.contents import BYTES, Contents, Damage, SavedTensor, Stretch
from preflight.core import words
from preflight.sdk import pickles
from preflight.sdk.pickles import Inert, InertUnpickler

LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""torch.serialization.MAGIC_NUMBER, pickled by protocol 2."""
_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexDouble": "complex128",
    "ComplexFloat": "complex64", "QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32", "Untyped": "uint8",
}  # fmt: skip
PIECE = 1 << 20
"""Bytes that are read at once."""
WASTE, WASTED_BYTES = 4, 64 << 20
"""A storage that is WASTE times as large as what its tensors use, and WASTED_BYTES larger, was saved by mistake."""
_LOCAL_HEADER = 30
_REBUILT = "torch._utils._rebuild_"


@dataclass(eq=False)
class Storage:
    """The memory of one or more tensors."""

    key: str
    dtype: str
    numel: int
    at: int | None = None
    """The place of its first byte in the file, and how many are there; None if the file lacks it."""
    bytes: int = 0
    crc: int = 0
    """The CRC32 that was saved with them; 0: none was (torch.serialization.set_crc32_options(False))."""


def storage_of(pid: Any) -> Storage:
    """The storage that a pickle's persistent id refers to. Raises Damage."""
    if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage" and isinstance(pid[4], int):
        name = getattr(pid[1], "origin", "").rpartition(".")[2].removesuffix("Storage")
        if name in _STORAGES:
            return Storage(str(pid[2]), _STORAGES[name], pid[4])
    raise Damage("broken", f"its pickle refers to {pid!r:.80}, expected storages of tensors")


def read(folder: str, name: str, contents: Contents) -> Iterator[int]:
    """Adds the tensors of the file `name` in the folder, and checks their elements. Yields bytes as they are read.
    Raises Damage, OSError."""
    with open(os.path.join(folder, name), "rb") as file:
        legacy = file.read(len(LEGACY)) == LEGACY
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        saved, names = _read_legacy(file, size) if legacy else read_zip(file, size)
    yield 0
    uses: dict[Storage, list[SavedTensor]] = {}
    stretches: list[Stretch] = []
    for tensor, storage, offset, strides in _tensors(saved, name, contents):
        uses.setdefault(storage, []).append(tensor)
        contents.tensors.append(tensor)
        stretches += _stretch(tensor, storage, offset, strides, contents)
    tell_of_names(name, names, contents, has_tensors=bool(uses))
    for storage, tensors in uses.items():
        _tell_of_waste(storage, tensors, contents)
    for storage, tensors in uses.items():
        with open(os.path.join(folder, name), "rb", buffering=0) as file:
            yield from checked(file, storage, name, tensors[0].name, contents)
        yield from finite.look(folder, [part for part in stretches if _is_in(part, storage)], contents)


def checked(file: IO[bytes], storage: Storage, name: str, tensor: str, contents: Contents) -> Iterator[int]:
    """Adds a flaw if its bytes are not those that were saved. Yields 0 for each piece: its elements are read after it,
    from the page cache. Raises OSError."""
    if storage.at is None or not storage.crc:
        return
    file.seek(storage.at)
    crc, left = 0, storage.bytes
    while left > 0 and (piece := file.read(min(PIECE, left))):
        crc, left = zlib.crc32(piece, crc), left - len(piece)
        yield 0
    if not left and crc != storage.crc:
        text = f"its {storage.bytes:,} bytes have the CRC32 {crc:08x}, saved was {storage.crc:08x}: the file is damaged"
        contents.add_flaw("checksum", name, text, tensor)


def _is_in(part: Stretch, storage: Storage) -> bool:
    return storage.at is not None and storage.at <= part.at < storage.at + max(1, storage.bytes)


def _tensors(saved: Any, file: str, contents: Contents) -> Iterator[tuple[SavedTensor, Storage, int, tuple[int, ...]]]:
    """Yields (tensor, storage, its offset there, strides), counted in elements."""
    for name, leaf in pickles.walk(saved, is_tensor):
        form = _form(leaf) if isinstance(leaf, Inert) else None
        if form is None:
            contents.others += 1
            continue
        storage, offset, shape, strides, dtype = form
        shares = f"{file}:{storage.key}:{offset}:{shape}:{strides}"
        yield SavedTensor(name, dtype, shape, file, shares), storage, offset, strides


def tell_of_names(file: str, names: set[str], contents: Contents, *, has_tensors: bool) -> None:
    """Adds flaws if a pickle names what tensors and plain data do not need. A file without tensors may hold objects."""
    if runs := sorted(filter(pickled_names.runs_code, names)):
        text = f"names {words.some(runs)} to be called when it is loaded, expected tensors and plain data"
        contents.add_flaw("executes", file, text)
    objects = sorted(name for name in names if not pickled_names.is_plain(name))
    if objects and not runs and has_tensors:
        contents.add_flaw("objects", file, f"holds objects of {words.some(objects)}, expected tensors and plain data")


def read_zip(file: IO[bytes], size: int, start: int = 0) -> tuple[Any, set[str]]:
    """(what was saved, all that the pickle names). `start`, `size`: the zip's place in the file. Raises
    Damage."""
    entries = _entries(file, size, start)
    pickled = next((entry for entry in entries if entry.rpartition("/")[2] == "data.pkl"), None)
    if pickled is None:
        raise Damage("wrong_format", "is a zip without data.pkl, expected one of torch.save")
    folder = pickled.removesuffix("data.pkl")
    if f"{folder}constants.pkl" in entries:
        raise Damage("wrong_format", "is an archive of TorchScript (torch.jit.save), expected a state dict")
    at, length, _ = entries[pickled]
    if length > pickles.LARGEST:
        raise Damage("broken", f"has a pickle of {words.size(length)}, expected {words.size(pickles.LARGEST)} or less")
    file.seek(at)
    storages: dict[str, Storage] = {}

    def persistent(pid: Any) -> Storage:
        storage = storage_of(pid)
        storage.at, storage.bytes, storage.crc = entries.get(f"{folder}data/{storage.key}", (None, 0, 0))
        return storages.setdefault(storage.key, storage)

    if f"{folder}byteorder" in entries and _entry(file, entries[f"{folder}byteorder"]) != sys.byteorder.encode():
        raise Damage("wrong_format", f"was saved with a different byte order, expected {sys.byteorder} endian")
    return unpickled(io.BytesIO(_entry(file, (at, length, 0))), persistent)


def _entry(file: IO[bytes], place: tuple[int, int, int]) -> bytes:
    file.seek(place[0])
    return file.read(place[1])


def _entries(file: IO[bytes], size: int, start: int) -> dict[str, tuple[int, int, int]]:
    """By name: (first byte of the data in the file, number of bytes, their CRC32)."""
    window = cast(IO[bytes], _Window(file, start, size))
    try:
        listed = zipfile.ZipFile(window).infolist()
    except (zipfile.BadZipFile, ValueError, EOFError, struct.error, OverflowError, NotImplementedError):
        raise _torn_zip(file, size, start) from None
    except OSError as error:
        if error.errno is None:  # the window's own: a place before its beginning
            raise _torn_zip(file, size, start) from None
        raise
    return {
        entry.filename: (start + _data_at(file, start, entry, size), entry.file_size, entry.CRC) for entry in listed
    }


def _torn_zip(file: IO[bytes], size: int, start: int) -> Damage:
    file.seek(start)
    if file.read(4) != b"PK\3\4":
        return Damage("broken", f"does not begin as a zip (at byte {start:,})")
    text = "begins as a zip of torch.save, but the directory at its end is missing"
    return Damage("truncated", f"{text}: it was cut off after {size:,} bytes, while it was written or copied")


def _data_at(file: IO[bytes], start: int, entry: zipfile.ZipInfo, size: int) -> int:
    """The place of the data after the entry's local header, whose extra field may be longer than the directory's."""
    header = b""
    if 0 <= entry.header_offset < size:
        file.seek(start + entry.header_offset)
        header = file.read(_LOCAL_HEADER)
    if len(header) < _LOCAL_HEADER or header[:4] != b"PK\3\4":
        raise Damage(
            "broken", f"its directory says that {entry.filename} is at byte {entry.header_offset:,}, where it is not"
        )
    if entry.compress_type != zipfile.ZIP_STORED:
        raise Damage("wrong_format", f"{entry.filename} in it is compressed, which torch.save never does")
    name, extra = struct.unpack("<HH", header[26:30])
    at = entry.header_offset + _LOCAL_HEADER + int(name) + int(extra)
    if at + entry.file_size > size:
        raise Damage("truncated", f"{entry.filename} in it ends at byte {at + entry.file_size:,} of {size:,}")
    return at


class _Window(io.RawIOBase):
    """Bytes of a file from `start` on, `size` of them, as a file."""

    def __init__(self, file: IO[bytes], start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        if self._at < 0:
            raise OSError("before the beginning")
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        self._file.seek(self._start + self._at)
        data = self._file.read(left if size is None or size < 0 else min(size, left))
        self._at += len(data)
        return data


def unpickled(file: IO[bytes], persistent: Any = None) -> tuple[Any, set[str]]:
    """(what the pickle holds, all that it names). Raises Damage."""
    reader = InertUnpickler(file, persistent)
    try:
        return reader.load(), reader.names
    except (Damage, OSError):
        raise
    except MemoryError:
        raise Damage("broken", "its pickle would take more memory than this process may have") from None
    except Exception as error:
        runs = sorted(filter(pickled_names.runs_code, reader.names))
        if runs:
            raise Damage("executes", f"names {words.some(runs)} to be called when it is loaded") from None
        raise Damage("broken", f"its pickle is broken ({type(error).__name__}: {str(error)[:80]})") from None


def _read_legacy(file: IO[bytes], size: int) -> tuple[Any, set[str]]:
    """Format: magic number, version, system, what was saved, keys of storages; then each storage: elements, bytes."""
    storages: dict[str, Storage] = {}

    def persistent(pid: Any) -> Storage:
        storage = storage_of(pid)
        return storages.setdefault(storage.key, storage)

    for _ in range(3):
        unpickled(file)
    saved, names = unpickled(file, persistent)
    keys, _ = unpickled(file)
    at = file.tell()
    for key in keys if isinstance(keys, list) else ():
        storage = storages.get(str(key))
        if storage is None:
            raise Damage("broken", f"has a storage {key!r:.40} that no tensor refers to")
        storage.at, storage.bytes = at + 8, max(0, min(storage.numel * BYTES[storage.dtype], size - at - 8))
        at += 8 + storage.numel * BYTES[storage.dtype]
    return saved, names


def is_tensor(item: Any) -> bool:
    return isinstance(item, Inert) and _form(item) is not None


def _form(item: Inert) -> tuple[Storage, int, tuple[int, ...], tuple[int, ...], str] | None:
    """(storage, offset, shape, strides, dtype), counted in elements; None if it is not a tensor."""
    args: Any = item.args
    if item.origin == "torch._tensor._rebuild_from_type_v2" and len(args) > 2:  # a tensor with attributes
        return _form_of(getattr(args[0], "origin", ""), args[2])
    if item.origin in (f"{_REBUILT}parameter", f"{_REBUILT}parameter_with_state") and args:
        return _form(args[0]) if isinstance(args[0], Inert) else None
    return _form_of(item.origin, args)


def _form_of(origin: str, args: Any) -> tuple[Storage, int, tuple[int, ...], tuple[int, ...], str] | None:
    if origin.removeprefix(_REBUILT) not in ("tensor", "tensor_v2", "tensor_v3", "qtensor") or len(args) < 4:
        return None
    storage, offset, shape, strides = args[:4]
    shape, strides = (tuple(counts) if isinstance(counts, tuple | list) else (None,) for counts in (shape, strides))
    counts = (offset, *shape, *strides)
    if not isinstance(storage, Storage) or not all(isinstance(n, int) and 0 <= n < 1 << 62 for n in counts):
        raise Damage("broken", f"a tensor in it has the shape {shape!r:.60}, which no tensor has")
    dtype = getattr(args[6], "origin", "").rpartition(".")[2] if origin.endswith("_v3") and len(args) > 6 else ""
    return storage, offset, shape, strides, dtype if dtype in BYTES else storage.dtype


def _stretch(
    tensor: SavedTensor, storage: Storage, offset: int, strides: tuple[int, ...], contents: Contents
) -> Iterator[Stretch]:
    """Yields the place of its elements, if they are all there."""
    file, size = tensor.file, BYTES[tensor.dtype]
    steps = zip(tensor.shape, strides, strict=False)
    extent = sum((count - 1) * stride for count, stride in steps) + 1 if tensor.numel else 0
    needed, has = (offset + extent) * size, storage.numel * BYTES[storage.dtype]
    what = f"{list(tensor.shape)} of {tensor.dtype} needs {needed:,} bytes of its storage"
    if storage.at is None:
        text = f"its storage, data/{storage.key}, is not in the file, but its pickle names it"
        contents.add_flaw("missing", file, text, tensor.name)
    elif needed > has:
        contents.add_flaw("wrong_shape", file, f"{what}, which has {has:,} by the pickle", tensor.name)
    elif needed > storage.bytes:
        contents.add_flaw("truncated", file, f"{what}, and {storage.bytes:,} are in the file", tensor.name)
    elif extent:
        yield Stretch(file, storage.at + offset * size, extent * size, tensor.dtype, tensor.name)


def _tell_of_waste(storage: Storage, tensors: list[SavedTensor], contents: Contents) -> None:
    """Adds a flaw for waste: a slice of a large tensor is saved with all of it."""
    used = sum(tensor.bytes for tensor in tensors)
    if storage.bytes > WASTE * used and storage.bytes - used > WASTED_BYTES:
        text = f"uses {words.size(used)} of a storage of {words.size(storage.bytes)}, all of which was saved"
        contents.add_flaw("oversized", tensors[0].file, text, tensors[0].name)


def only_tensor(saved: Any) -> tuple[Storage, int, tuple[int, ...], tuple[int, ...], str] | None:
    """(storage, offset, shape, strides, dtype) if only a tensor was saved, else None. Raises Damage."""
    return _form(saved) if isinstance(saved, Inert) else None
