"""What a path holds, and which reader reads it."""

import os
import stat
from collections.abc import Iterator

from preflight.checkpoint import dcp, folder
from preflight.checkpoint.contents import Contents, Damage, NotUsable
from preflight.core import words

MOST_FILES = 200_000
"""In one folder: enough for a checkpoint of 8,192 ranks with some files each."""
EXPECTED = "expected DCP (.metadata, *.distcp), a file of torch.save, or safetensors"


def read(path: str, contents: Contents) -> Iterator[int]:
    """Reads a checkpoint. Yields bytes as they are read. Raises NotUsable; OSError for the path itself."""
    about = os.stat(path)
    if stat.S_ISREG(about.st_mode):
        return _read_file(path, contents)
    if not stat.S_ISDIR(about.st_mode):
        raise NotUsable(f"is neither a file nor a folder; {EXPECTED}")
    folders = _list(path, contents)
    if dcp.METADATA in contents.files or any(name.endswith(".distcp") for name in contents.files):
        return _read_dcp(path, contents)
    if any(name.endswith(folder.INDEX) or folder.is_wanted(name) for name in contents.files):
        return folder.read(path, contents)
    if inner := sorted(name for name in folders if _is_checkpoint(os.path.join(path, name))):
        raise NotUsable(f"holds no checkpoint itself, but {words.some(inner)} in it {_do(inner)}: name one of them")
    raise NotUsable(f"holds no checkpoint ({_holds(contents, folders)}); {EXPECTED}")


def _do(names: list[str]) -> str:
    return "does" if len(names) == 1 else "do"


def _holds(contents: Contents, folders: list[str]) -> str:
    return words.some([*contents.files, *(f"{name}/" for name in folders)], 3) or "it is empty"


def _list(path: str, contents: Contents) -> list[str]:
    """Adds the files in the folder; returns the names of folders in it."""
    folders = []
    with os.scandir(path) as found:
        for entry in found:
            if len(contents.files) >= MOST_FILES:
                raise NotUsable(f"holds more than {MOST_FILES:,} files")
            try:
                if entry.is_dir():
                    folders.append(entry.name)
                elif entry.is_file():
                    contents.files[entry.name] = entry.stat().st_size
            except OSError:  # a link to nowhere or to itself: if the file is expected, it will be missed
                pass
    contents.files = dict(sorted(contents.files.items()))
    return sorted(folders)


def _is_checkpoint(path: str) -> bool:
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return dcp.METADATA in names or any(
        name.endswith((folder.INDEX, ".distcp")) or folder.is_wanted(name) for name in names
    )


def _read_file(path: str, contents: Contents) -> Iterator[int]:
    place, name = os.path.split(os.path.abspath(path))
    contents.files[name] = os.path.getsize(path)
    try:
        kind = folder.kind_of(path)
    except Damage as damage:
        if damage.slug == "wrong_format":
            raise NotUsable(f"{damage}; {EXPECTED}") from None
        kind = ""
    contents.kind = {"torch": "a file of torch.save", "safetensors": "a file of safetensors"}.get(kind, "a file")
    return folder.read_file(place, name, contents)


def _read_dcp(path: str, contents: Contents) -> Iterator[int]:
    try:
        yield from dcp.read(path, list(contents.files), contents)
    except Damage as damage:
        contents.add_flaw(damage.slug, dcp.METADATA, str(damage))
    except OSError as error:
        name = os.path.relpath(error.filename, path) if error.filename else ""
        contents.add_flaw("unreadable", name, f"cannot be read ({error.strerror})")
