"""Folders of torch.distributed.checkpoint: .metadata, a pickle written last, and files with each rank's chunks of
tensors, each as torch.save writes it (torch/distributed/checkpoint/filesystem.py)."""

import io
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Any

from preflight.checkpoint import finite, pickled_names, torch_file
from preflight.checkpoint.contents import BYTES, Contents, Damage, SavedTensor, Stretch
from preflight.core import words
from preflight.core.rank_ranges import count
from preflight.sdk import pickles
from preflight.sdk.pickles import Inert
from preflight.sdk.probe import Probe

METADATA = ".metadata"
KIND = "a checkpoint of torch.distributed.checkpoint (DCP)"
AT_ONCE = 256
"""The number of entries whose heads are read before their elements."""
_BY_RANK = re.compile(r"__(\d+)_\d+\.distcp")


@dataclass
class SavedPart:
    """What .metadata says about a chunk, or about an object that is not a tensor."""

    name: str
    offset: tuple[int, ...]
    file: str
    at: int
    length: int
    shape: tuple[int, ...] | None = None
    """None for something that is not a tensor."""
    dtype: str = ""


@dataclass
class Described:
    """A tensor as .metadata describes it."""

    shape: tuple[int, ...]
    dtype: str
    chunks: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    """Shapes by offset."""


def read(folder: str, names: Iterable[str], contents: Contents) -> Iterator[int]:
    """Adds what the folder holds. Yields bytes as they are read."""
    data = {name for name in names if name.endswith(".distcp")}
    contents.kind = KIND
    if METADATA not in names:
        text = f"it holds {count(len(data), 'file')} of ranks and no {METADATA}, which is written last"
        contents.add_flaw("unfinished", "", text)
        return
    described, entries = read_metadata(os.path.join(folder, METADATA))
    yield 0
    contents.others += sum(tensor is None for tensor in described.values())
    _tell_of_tiles(described, entries, contents)
    by_file: dict[str, list[SavedPart]] = {}
    for entry in entries:
        by_file.setdefault(entry.file, []).append(entry)
    for name in sorted(data - set(by_file)):
        contents.add_flaw("leftover", name, f"is not named in {METADATA}: it is left from another save")
    contents.ranks = (
        len({match[1] for name in by_file if (match := _BY_RANK.fullmatch(os.path.basename(name)))}) or None
    )
    for name, own in by_file.items():
        yield from _read_file(folder, name, own, contents)


def read_metadata(path: str) -> tuple[dict[str, Described | None], list[SavedPart]]:
    """(tensors and other objects by name, where they are). Raises Damage, OSError."""
    size = os.path.getsize(path)
    if not size:
        raise Damage("truncated", "has 0 bytes")
    if size > pickles.LARGEST:
        raise Damage("broken", f"has {words.size(size)}, expected {words.size(pickles.LARGEST)} or less")
    with open(path, "rb") as file:
        saved, names = torch_file.unpickled(io.BytesIO(file.read()))
    if runs := sorted(filter(pickled_names.runs_code, names)):
        raise Damage("executes", f"names {words.some(runs)} to be called when it is loaded, expected metadata of DCP")
    try:
        described = _described(saved)
        return described, _entries(saved, described)
    except (AttributeError, TypeError, ValueError, KeyError, IndexError):
        raise Damage("broken", "is a pickle, but not the metadata of a DCP checkpoint") from None


def _described(saved: Inert) -> dict[str, Described | None]:
    found: dict[str, Described | None] = {}
    for name, about in saved.get("state_dict_metadata").items():
        found[name] = None
        if about.origin.endswith(".TensorStorageMetadata"):
            properties = about.get("properties")
            dtype = properties.state[0] if isinstance(properties.state, tuple) else properties.get("dtype")
            made = found[name] = Described(_counts(about.get("size")), dtype.origin.removeprefix("torch."))
            for chunk in about.get("chunks"):
                made.chunks[_counts(chunk.get("offsets"))] = _counts(chunk.get("sizes"))
    return found


def _entries(saved: Inert, described: dict[str, Described | None]) -> list[SavedPart]:
    entries = []
    for index, about in saved.get("storage_data").items():
        name, offset = index.get("fqn"), _counts(index.get("offset") or ())
        tensor = described.get(name)
        file, at, length = str(about.get("relative_path")), about.get("offset"), about.get("length")
        if min(at, length) < 0 or os.path.isabs(file) or ".." in file.split("/"):
            raise ValueError
        entry = SavedPart(name, offset, file, at, length)
        if tensor is not None:
            entry.shape, entry.dtype = tensor.chunks.get(offset, ()), tensor.dtype
        entries.append(entry)
    return entries


def _counts(value: Any) -> tuple[int, ...]:
    counts = tuple(value)
    if not all(type(count) is int and 0 <= count < 1 << 62 for count in counts):
        raise ValueError
    return counts


def _tell_of_tiles(described: dict[str, Described | None], entries: list[SavedPart], contents: Contents) -> None:
    """Adds flaws for tensors that their chunks do not cover, and for chunks that are in no file."""
    placed = {(entry.name, entry.offset) for entry in entries}
    file_of = {entry.name: entry.file for entry in reversed(entries)}
    for name, tensor in described.items():
        if tensor is None:
            if name not in file_of:
                contents.add_flaw("missing", METADATA, "is named there, but no file holds it", name)
            continue
        contents.tensors.append(SavedTensor(name, tensor.dtype, tensor.shape, file_of.get(name, "")))
        lost = [offset for offset in tensor.chunks if (name, offset) not in placed]
        covered = sum(math.prod(sizes) for sizes in tensor.chunks.values())
        if lost:
            text = (
                f"{len(lost)} of its {count(len(tensor.chunks), 'chunk')} are in no file (the first at {list(lost[0])})"
            )
            contents.add_flaw("missing", METADATA, text, name)
        elif covered != math.prod(tensor.shape):
            whole = f"its shape {list(tensor.shape)} has {math.prod(tensor.shape):,}"
            text = f"its chunks hold {covered:,} elements, and {whole}"
            contents.add_flaw("wrong_shape", METADATA, text, name)
        elif text := _not_tiled(tensor):
            contents.add_flaw("wrong_shape", METADATA, text, name)


def _not_tiled(tensor: Described) -> str:
    """Where chunks that hold as many elements as the tensor do not tile it: one is beyond it, or two overlap."""
    for offset, sizes in tensor.chunks.items():
        if any(at + size > whole for at, size, whole in zip(offset, sizes, tensor.shape, strict=True)):
            return f"its chunk at {list(offset)} of {list(sizes)} is not in its shape {list(tensor.shape)}"
    dimensions = range(len(tensor.shape))
    sweep = max(dimensions, key=lambda dim: len({offset[dim] for offset in tensor.chunks}), default=0)
    listed = sorted(
        (item for item in tensor.chunks.items() if all(item[1])), key=lambda item: item[0][sweep : sweep + 1]
    )
    for place, (offset, sizes) in enumerate(listed):
        for other, others in islice(listed, place + 1, None):
            if other[sweep] >= offset[sweep] + sizes[sweep]:
                break
            if all(offset[d] < other[d] + others[d] and other[d] < offset[d] + sizes[d] for d in dimensions):
                return f"its chunks at {list(offset)} and {list(other)} overlap, so that others are missing"
    return ""


def _read_file(folder: str, name: str, entries: list[SavedPart], contents: Contents) -> Iterator[int]:
    path = os.path.join(folder, name)
    Probe.doing(f"reading {path}")
    if name not in contents.files:
        tensors = sorted({entry.name for entry in entries})
        text = f"is not there, but {METADATA} expects {count(len(tensors), 'part')} in it: {words.some(tensors, 2)}"
        contents.add_flaw("missing", name, text)
        return
    size = os.path.getsize(path)
    end = max(entry.at + entry.length for entry in entries)
    if end > size:
        lost = [entry for entry in entries if entry.at + entry.length > size]
        text = f"has {size:,} bytes, expected {end:,}: {len(lost)} of its {count(len(entries), 'part')} are cut off"
        contents.add_flaw("truncated", name, f"{text}, such as {lost[0].name}")
    whole = iter(sorted((entry for entry in entries if entry.at + entry.length <= size), key=lambda entry: entry.at))
    with open(path, "rb") as file:
        while batch := list(islice(whole, AT_ONCE)):
            stretches = [stretch for entry in batch for stretch in _stretches(file, entry, contents)]
            yield 0
            yield from finite.look(folder, stretches, contents)


def _stretches(file: IO[bytes], entry: SavedPart, contents: Contents) -> Iterator[Stretch]:
    """Where the chunk's elements are, if they are as .metadata says."""
    try:
        saved, names = torch_file.read_zip(file, entry.length, entry.at)
        form = torch_file.only_tensor(saved)
    except Damage as damage:
        slug = "executes" if damage.slug == "executes" else "broken"
        contents.add_flaw(slug, entry.file, f"what is at its place {damage}", entry.name)
        return
    torch_file.tell_of_names(entry.file, names, contents, has_tensors=False)
    if entry.shape is None or any(map(pickled_names.runs_code, names)):
        return
    if form is None:
        contents.add_flaw("wrong_shape", entry.file, f"is no tensor there, expected one as in {METADATA}", entry.name)
        return
    storage, offset, shape, _, dtype = form
    if (shape, dtype) != (entry.shape, entry.dtype):
        expected = f"expected {list(entry.shape)} of {entry.dtype} as {METADATA} says"
        text = f"its chunk at {list(entry.offset)} is {list(shape)} of {dtype}, {expected}"
        contents.add_flaw("wrong_shape", entry.file, text, entry.name)
        return
    needed = math.prod(shape) * BYTES[dtype]
    if storage.at is None or storage.bytes < offset * BYTES[dtype] + needed:
        contents.add_flaw(
            "truncated", entry.file, f"expected {needed:,} bytes, {storage.bytes:,} are there", entry.name
        )
    elif needed:
        for _ in torch_file.checked(file, storage, entry.file, entry.name, contents):
            pass
        yield Stretch(entry.file, storage.at + offset * BYTES[dtype], needed, dtype, entry.name)
