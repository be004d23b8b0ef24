"""Folders of files that each hold some of the tensors: with an index (Hugging Face's *.index.json) or without."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from preflight.checkpoint import safetensors_file, torch_file
from preflight.checkpoint.contents import Contents, Damage
from preflight.core import words
from preflight.core.rank_ranges import count
from preflight.sdk.probe import Probe

INDEX = ".index.json"
SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".tar")
LONGEST_INDEX = 1 << 28
_NUMBERED = re.compile(r"(.*-)(\d{5})(-of-)(\d{5})(\.\w+)")
_MAYBE = re.compile(r"(pytorch_|consolidated|adapter_)?(model|optim|optimizer|weights)")
"""Prefixes of .bin files that should hold tensors: others may be anything."""
FORMATS = {
    b"GGUF": "GGUF (llama.cpp)", b"\x89HDF": "HDF5 (Keras)", b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2", b"\x93NUM": "NumPy (.npy)", b"\xfd7zX": "xz", b"<htm": "HTML", b"<!DO": "HTML", b"<!do": "HTML",
}  # fmt: skip
LFS = b"version https://git-lfs"


def kind_of(path: str) -> str:
    """ "torch" or "safetensors". Raises Damage with what is wrong, or which other format it has; OSError."""
    with open(path, "rb") as file:
        head = file.read(512)
    if not head:
        raise Damage("truncated", "has 0 bytes: it was created, but nothing was written to it")
    if head.startswith(LFS):
        raise Damage("missing", "is a Git LFS pointer, and the data is not here: git lfs pull")
    if head.startswith((b"PK\3\4", torch_file.LEGACY)):
        return "torch"
    if head[8:9] == b"{" or head[8:10] == b" {":
        return "safetensors"
    if not head.strip(b"\0"):
        raise Damage("truncated", f"begins with {len(head)} zeros: space was allocated, but the data was never written")
    if name := next((name for start, name in FORMATS.items() if head.startswith(start)), ""):
        raise Damage("wrong_format", f"is a file of {name}")
    if head[:1] == b"\x80" and head[1:2] in b"\2\3\4\5":
        raise Damage("pickle", "is a plain pickle, not one of torch.save: loading it runs what it says")
    if path.endswith(".safetensors"):
        raise Damage("broken", f"begins with {head[:16]!r}, expected the length of a header and the header in JSON")
    raise Damage("wrong_format", f"begins with {head[:16]!r}")


def read_file(folder: str, name: str, contents: Contents) -> Iterator[int]:
    """One file of either format. Yields bytes as they are read. What is wrong with it becomes a flaw."""
    Probe.doing(f"reading {os.path.join(folder, name)}")
    try:
        kind = kind_of(os.path.join(folder, name))
        yield from (torch_file if kind == "torch" else safetensors_file).read(folder, name, contents)
    except Damage as damage:
        contents.add_flaw(damage.slug, name, str(damage))
    except FileNotFoundError:
        contents.add_flaw("missing", name, "is not there")
    except OSError as error:
        contents.add_flaw("unreadable", name, f"cannot be read ({error.strerror})")


def is_wanted(name: str) -> bool:
    """Whether a file of this name should hold tensors."""
    lower = name.lower()
    return lower.endswith(SUFFIXES) and (not lower.endswith(".bin") or bool(_MAYBE.match(lower)))


def read(folder: str, contents: Contents) -> Iterator[int]:
    """Reads all files in the folder that hold tensors, and their indices."""
    indices = sorted(name for name in contents.files if name.endswith(INDEX))
    contents.kind = "a folder of checkpoint files" + f" with {words.some(indices)}" * bool(indices)
    named: set[str] = set()
    maps: dict[str, dict[str, str]] = {}
    for index in indices:
        maps[index] = _map(folder, index, contents)
        named |= set(maps[index].values())
    own = [name for name in contents.files if is_wanted(name)]
    yield 0
    for name in sorted({*own, *named}):
        if name in contents.files:
            yield from read_file(folder, name, contents)
    for index, parts in maps.items():
        _compare(index, parts, contents)
    _tell_of_numbers(named, contents)


def _map(folder: str, index: str, contents: Contents) -> dict[str, str]:
    """Files by tensor."""
    try:
        if os.path.getsize(os.path.join(folder, index)) > LONGEST_INDEX:
            raise ValueError(f"it has more than {words.size(LONGEST_INDEX)}")
        with open(os.path.join(folder, index), "rb") as file:
            parts: Any = json.loads(file.read())["weight_map"]
        if not all(isinstance(name, str) and os.path.basename(name) == name for name in parts.values()):
            raise ValueError("it names files that are in no checkpoint's folder")
        return dict(parts)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        contents.add_flaw("broken", index, f"is no index with a weight_map ({type(error).__name__}: {str(error)[:80]})")
    except OSError as error:
        contents.add_flaw("unreadable", index, f"cannot be read ({error.strerror})")
    return {}


def _compare(index: str, parts: Mapping[str, str], contents: Contents) -> None:
    unread = {flaw.file for flaw in contents.flaws if not flaw.tensor}
    held: dict[str, list[str]] = {}
    for tensor in contents.tensors:
        if tensor.file in parts.values():
            held.setdefault(tensor.name, []).append(tensor.file)
    for file in sorted({*parts.values()} - set(contents.files)):
        lost = [name for name in parts if parts[name] == file]
        text = f"is not there, but {index} expects {count(len(lost), 'tensor')} in it: {words.some(lost, 2)}"
        contents.add_flaw("missing", file, text)
    for name, file in parts.items():
        places = held.get(name, [])
        if file in contents.files and file not in unread and file not in places:
            elsewhere = f"; it is in {words.some(places)}" if places else ""
            contents.add_flaw("missing", file, f"is not in it, but {index} expects it there{elsewhere}", name)
        elif len(places) > 1:
            contents.add_flaw("duplicate_tensor", index, f"is in {words.some(places)}, expected it in one file", name)
    for name, places in held.items():
        if parts and name not in parts:
            contents.add_flaw("leftover", places[0], f"is in it, but not in {index}: no loader reads it", name)


def _tell_of_numbers(named: set[str], contents: Contents) -> None:
    """Adds a flaw for missing files: model-00001-of-00003 says how many there must be, even without an index."""
    series: dict[tuple[str, int, str], set[int]] = {}
    for name in contents.files:
        if name not in named and (match := _NUMBERED.fullmatch(name)):
            series.setdefault((match[1], int(match[4]), match[5]), set()).add(int(match[2]))
    for (start, total, suffix), numbers in series.items():
        lost = sorted({*range(1, min(total, 10_000) + 1)} - numbers)
        if lost and not any(name.startswith(start) for name in named):
            names = [f"{start}{number:05}-of-{total:05}{suffix}" for number in lost]
            contents.add_flaw("missing", "", f"{words.some(names)} of {total} numbered files are not there")
