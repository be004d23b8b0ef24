"""Source files that git does not track, though tracked ones import them: they are part of the code all the same."""

import errno
import os
import re
from collections.abc import Callable, Iterator, Set

from preflight.checks.env.software.source_files import content_of, may_hold_code

IMPORT = re.compile(rb"^[ \t]*(?:from|import)[ \t]+((?:[^\n#(\\]|\\\n)*(?:\([^)]*\))?)", re.MULTILINE)
"""An import statement, with the lines in which its list goes on."""
WORD = re.compile(rb"\w+")
MOST, MOST_ENTRIES = 2000, 20_000
"""The most untracked files, and entries of a folder, that are looked at: more are data."""
FEW = 50
"""Words that are sooner looked for in a file than its import statements."""


def untracked(top: str, tracked: Set[str], in_time: Callable[[], None]) -> list[str]:
    """The names of imported files that are not among the `tracked` ones, in order. Only folders that hold tracked
    Python files are searched, and folders directly within these. `in_time` raises when the time is over. Raises
    OSError."""
    modules = [name for name in tracked if name.endswith(".py")]
    candidates = dict(_candidates(top, tracked, {os.path.dirname(name) for name in modules}, in_time))
    if not candidates:
        return []
    wanted, words = set(candidates.values()), set[bytes]()
    for name in modules:
        in_time()
        words |= _imported(os.path.join(top, name), wanted)
    found = dict[str, None]()
    while more := [name for name, word in candidates.items() if name not in found and word in words]:
        for name in more:  # which may import others
            in_time()
            found[name] = None
            words |= _imported(os.path.join(top, name), wanted)
    return sorted(found)


def _candidates(
    top: str, tracked: Set[str], folders: Set[str], in_time: Callable[[], None]
) -> Iterator[tuple[str, bytes]]:
    """(name, the word by which it is imported) of untracked Python files; a package by its folder's name."""
    count = 0
    for folder in sorted(folders):
        in_time()
        for entry in _scanned(os.path.join(top, folder)):
            name = os.path.join(folder, entry.name)
            if entry.name.endswith(".py") and name not in tracked and entry.is_file():
                yield name, os.fsencode(entry.name[:-3])
            elif name not in folders and entry.is_dir() and _may_be_package(top, folder, entry):
                inside = [each for each in _scanned(os.path.join(top, name)) if each.name.endswith(".py")]
                files = [
                    each.name for each in inside if each.is_file() and os.path.join(name, each.name) not in tracked
                ]
                count += len(files)
                if count > MOST:
                    return
                yield from ((os.path.join(name, file), os.fsencode(entry.name)) for file in files)


def _may_be_package(top: str, folder: str, entry: "os.DirEntry[str]") -> bool:
    path = os.path.join(top, folder)
    return entry.name.isidentifier() and may_hold_code(path, entry.name) and not os.path.lexists(f"{entry.path}/.git")


def _scanned(path: str) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)[:MOST_ENTRIES]  # the same ones on all nodes
    except (FileNotFoundError, NotADirectoryError):  # tracked, and deleted here
        return []


def _imported(path: str, wanted: Set[bytes]) -> set[bytes]:
    """All words in a file's import statements: modules, packages, and names in them that may be modules. None where a
    few are wanted, and are nowhere in the file."""
    try:
        text = content_of(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return set()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return set()
        raise
    if len(wanted) <= FEW and not any(word in text for word in wanted):
        return set()
    return {word for line in IMPORT.findall(text) for word in WORD.findall(line)}
