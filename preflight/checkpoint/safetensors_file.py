"""Files of safetensors: 8 bytes for the length of a header, the header in JSON, then the tensors without gaps.

https://github.com/huggingface/safetensors, "Format".
"""

import json
import math
import os
from collections.abc import Iterator
from typing import Any

from preflight.checkpoint import finite
from preflight.checkpoint.contents import BYTES, Contents, Damage, SavedTensor, Stretch

LARGEST_HEADER = 100_000_000
"""Bytes; the limit of the format's own reader."""
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64",
    "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
}  # fmt: skip


def read(folder: str, name: str, contents: Contents) -> Iterator[int]:
    """Like torch_file.read."""
    path = os.path.join(folder, name)
    size = os.path.getsize(path)
    header, start = _header(path, size)
    stretches: list[Stretch] = []
    places: list[tuple[int, int, str]] = []
    for tensor_name, about in header.items():
        if tensor_name != "__metadata__":
            tensor, low, high = _tensor(tensor_name, about, name)
            contents.tensors.append(tensor)
            places.append((low, high, tensor_name))
            if high - low != tensor.bytes:
                what = f"{list(tensor.shape)} of {tensor.dtype} needs {tensor.bytes:,} bytes"
                text = f"{what}, and the header gives it {high - low:,}"
                contents.add_flaw("wrong_shape", name, text, tensor_name)
            elif start + high > size:
                text = f"ends at byte {start + high:,} by the header, the file at {size:,}: it was cut off"
                contents.add_flaw("truncated", name, text, tensor_name)
            else:
                stretches.append(Stretch(name, start + low, high - low, tensor.dtype, tensor_name))
    _tell_of_gaps(sorted(places), size - start, name, contents)
    yield 0
    yield from finite.look(folder, [stretch for stretch in stretches if stretch.bytes], contents)


def _header(path: str, size: int) -> tuple[dict[str, Any], int]:
    """(the header, where the tensors begin)."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LARGEST_HEADER:
            raise Damage("broken", f"its header would have {length:,} bytes, expected {LARGEST_HEADER:,} or less")
        if 8 + length > size:
            raise Damage("truncated", f"has {size:,} bytes, and its header alone {length:,}: it was cut off")
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise Damage("broken", f"its header is not JSON ({str(error)[:80]})") from None
    if not isinstance(header, dict):
        raise Damage("broken", "its header is not a JSON object of tensors")
    return header, 8 + length


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it names {next(name for name in names if names.count(name) > 1)} twice")
    return made


def _tensor(name: str, about: Any, file: str) -> tuple[SavedTensor, int, int]:
    """(tensor, its first byte after the header, the byte after its last)."""
    try:
        dtype, shape, (low, high) = about["dtype"], tuple(about["shape"]), about["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise Damage(
            "broken", f"its header says of {name} {about!r:.80}, expected dtype, shape, data_offsets"
        ) from None
    numbers = (*shape, low, high)
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers) or math.prod(shape) >= 1 << 62 or low > high:
        raise Damage("broken", f"its header says of {name} {about!r:.80}, which no tensor has")
    if dtype not in DTYPES:
        raise Damage("wrong_format", f"{name} is of type {dtype!r:.20}, expected {', '.join(DTYPES)}")
    assert DTYPES[dtype] in BYTES
    return SavedTensor(name, DTYPES[dtype], shape, file, f"{file}:{low}:{high}" if high > low else ""), low, high


def _tell_of_gaps(places: list[tuple[int, int, str]], room: int, file: str, contents: Contents) -> None:
    """Adds a flaw for a gap or an overlap: safetensors refuses files where tensors overlap or bytes belong to none."""
    end = 0
    for low, high, name in places:
        if low != end:
            what = f"begins at byte {low:,} after the header, where the tensor before it ends at {end:,}"
            contents.add_flaw("broken", file, f"{what}; expected no gap and no overlap", name)
            return
        end = high
    if room > end:
        contents.add_flaw("broken", file, f"has {room - end:,} bytes after its last tensor, expected none")
