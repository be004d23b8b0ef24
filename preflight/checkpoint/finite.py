"""Reads the elements of tensors, in pieces, and says which are NaN or infinite."""

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from preflight.checkpoint.contents import BYTES, Contents, Stretch

if TYPE_CHECKING:
    import torch

PIECE = 1 << 20
"""Bytes that are read at once: they stay in the processor's cache while they are checked."""
_PLAIN = ("float64", "float32", "float16", "bfloat16")
_CAST = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
_COMPLEX = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}


@dataclass
class Tally:
    """Counts for the elements of one tensor."""

    nan: int = 0
    infinite: int = 0
    zero_or_minus_inf: int = 0
    """Such elements in pieces that hold an infinite element."""
    seen: int = 0
    in_pieces: int = 0
    """Elements in such pieces."""
    first: int = -1
    """The index of the first element that is not finite, from the stretch's beginning."""
    positive: int = 0


def look(folder: str, stretches: Iterable[Stretch], contents: Contents) -> Iterator[int]:
    """Reads all stretches, each byte once, and adds flaws. Yields bytes as they are read. Raises OSError."""
    by_file: dict[str, list[Stretch]] = {}
    for stretch in stretches:
        contents.stretches.append(stretch)
        by_file.setdefault(stretch.file, []).append(stretch)
    buffer = bytearray(PIECE)
    for name, own in by_file.items():
        with open(os.path.join(folder, name), "rb", buffering=0) as file:
            for group in _groups(own):
                yield from _look_at(file, group, buffer, contents)


def _groups(stretches: list[Stretch]) -> Iterator[list[Stretch]]:
    """Groups stretches that fit into one piece; a large one is alone. Leaves out a stretch that is inside another."""
    group: list[Stretch] = []
    end, dtype = 0, ""
    for stretch in sorted(stretches, key=lambda s: (s.at, -s.bytes)):
        if stretch.at + stretch.bytes <= end and stretch.dtype == dtype:
            continue
        if group and stretch.at + stretch.bytes - group[0].at > PIECE:
            yield group
            group = []
        group.append(stretch)
        end, dtype = max(end, stretch.at + stretch.bytes), stretch.dtype
    if group:
        yield group


def _look_at(file: IO[bytes], group: list[Stretch], buffer: bytearray, contents: Contents) -> Iterator[int]:
    start = group[0].at
    end = max(stretch.at + stretch.bytes for stretch in group)
    tallies = [Tally() for _ in group]
    file.seek(start)
    view = memoryview(buffer)
    while start < end:
        wanted = min(PIECE, end - start)
        got = _fill(file, view[:wanted])
        for stretch, tally in zip(group, tallies, strict=True):
            low = max(0, stretch.at - start)
            high = min(got, stretch.at + stretch.bytes - start)
            if low < high and not _is_finite(buffer, low, high, stretch.dtype):
                _count(buffer, low, high, stretch, tally, start + low - stretch.at)
            tally.seen += max(0, high - low) // BYTES[stretch.dtype]
        start += got
        yield got
        if got < wanted:
            text = f"ends at byte {start:,}, expected {end:,}: it became shorter while it was read"
            contents.add_flaw("truncated", group[0].file, text)
            break
    for stretch, tally in zip(group, tallies, strict=True):
        _tell(stretch, tally, contents)


def _fill(file: IO[bytes], view: memoryview) -> int:
    """Reads until the view is full or the file ends: a network file system may return less at once."""
    got = 0
    while got < len(view) and (more := file.readinto(view[got:])):  # type: ignore[attr-defined]
        got += more
    return got


def _tensor(buffer: bytearray, low: int, high: int, dtype: str) -> "torch.Tensor":
    import torch

    kind: torch.dtype = getattr(torch, _COMPLEX.get(dtype, dtype))
    data: Any = buffer if low % kind.itemsize == 0 else bytearray(memoryview(buffer)[low:high])
    offset, count = (low, (high - low) // kind.itemsize) if data is buffer else (0, (high - low) // kind.itemsize)
    made = torch.frombuffer(data, dtype=kind, count=count, offset=offset)
    return made.to(torch.float32) if dtype in _CAST else made


def _is_finite(buffer: bytearray, low: int, high: int, dtype: str) -> bool:
    """Whether all elements are finite. A sum is finite only then, unless it overflows; torch has nothing faster."""
    if dtype not in _PLAIN and dtype not in _CAST and dtype not in _COMPLEX:
        return True
    tensor = _tensor(buffer, low, high, dtype)
    if math.isfinite(tensor.sum().item()):
        return True
    least, most = tensor.aminmax()
    return math.isfinite(least.item()) and math.isfinite(most.item())


def _count(buffer: bytearray, low: int, high: int, stretch: Stretch, tally: Tally, before: int) -> None:
    """`before`: bytes of the stretch before `low`."""
    tensor = _tensor(buffer, low, high, stretch.dtype)
    bad = ~tensor.isfinite()
    if tally.first < 0:
        tally.first = before // BYTES[stretch.dtype] + int(bad.nonzero()[0]) // (2 if stretch.dtype in _COMPLEX else 1)
    tally.nan += int(tensor.isnan().sum())
    tally.infinite += int(tensor.isinf().sum())
    tally.positive += int((tensor == math.inf).sum())
    tally.zero_or_minus_inf += int(((tensor == 0) | (tensor == -math.inf)).sum())
    tally.in_pieces += tensor.numel()


def _tell(stretch: Stretch, tally: Tally, contents: Contents) -> None:
    """Adds flaws. A mask of 0 and -inf is sound; so may be a minimum or maximum that was not observed yet."""
    seen = tally.seen * (2 if stretch.dtype in _COMPLEX else 1)
    if tally.nan or (tally.infinite < seen and (tally.positive or tally.zero_or_minus_inf < tally.in_pieces)):
        parts = [f"{tally.nan:,} NaN"] * bool(tally.nan) + [f"{tally.infinite:,} infinite"] * bool(tally.infinite)
        text = f"{' and '.join(parts)} of {seen:,} elements, the first at {tally.first:,}; expected finite numbers"
        if tally.nan or tally.infinite:
            contents.add_flaw("not_finite", stretch.file, text, stretch.tensor)
    elif tally.infinite and tally.infinite == seen and not _is_a_score(stretch.tensor, contents):
        text = f"every element is infinite ({seen:,} of {stretch.dtype}), expected finite numbers"
        contents.add_flaw("infinite", stretch.file, text, stretch.tensor)


def _is_a_score(name: str, contents: Contents) -> bool:
    """Whether it is a number such as a callback's best value so far, which begins infinite: a scalar in a part of the
    checkpoint (`callbacks`, or its top) that holds only scalars."""
    part, dot, _ = name.partition(".")
    beside = [
        tensor for tensor in contents.tensors if (tensor.name.startswith(f"{part}.") if dot else "." not in tensor.name)
    ]
    return bool(beside) and all(not tensor.shape for tensor in beside)
