"""Identifies the code in a folder by content: its git repository's source files, or all source files below it.

Reads .git itself: `git status` takes seconds in a large repository, is missing in many containers, refuses other
users' folders, and runs commands from the repository's own configuration.
"""

import hashlib
import os
import re
import stat
import struct
import time
from collections.abc import Iterator
from typing import TypedDict

SOURCES = (".py", ".pyi", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".sh")
SCRIPTS = (".sh",)
"""Sources that may be personal, as in a home folder under git: a difference there is not surely a fault."""
SETTINGS = (".cfg", ".gin", ".ini", ".json", ".toml", ".yaml", ".yml")
NO_CODE = {"__pycache__", "build", "checkpoints", "dist", "logs", "node_modules", "outputs", "runs", "wandb"}
"""Folders of build output, and of what training writes on one node only."""
MOST_FILES, MOST_TRACKED = 5000, 20_000
MOST_BYTES = 64 * 1024 * 1024
"""Takes a tenth of a second to hash with SHA-1 on a slow core."""
FOLDER_S, REPOSITORY_S = 2.0, 0.2
"""Time limits for reading files. A folder is read only with --code; a repository in every quick run, which should
take half a second in all."""
NO_FOLDER, IS_FILE = "there is no such folder", "it is not a folder"
LISTED = 1000
"""How many files the facts list by name, in some 50 KB; if there are more, they have only the digest of all."""


class SourceCode(TypedDict):
    folder: str
    commit: str | None
    """The git commit; None without a repository, or with --code."""
    digest: str | None
    """Over the names and contents of all files; None if there are none or they could not be read."""
    files: list[str]
    """"18cddcd29cbb train.py" for each; empty if there are more than LISTED."""
    edited: list[str]
    """Files that differ from what was last added to git."""
    unknown: str
    """Why the files could not be read, or ""."""


class Unreadable(Exception):  # noqa: N818 -- says what is
    """The files cannot be compared; the text says why."""


def here() -> str:
    """The current folder; "/" if it was deleted: no code is looked for there."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def of_repository(folder: str) -> SourceCode:
    """The files checked out in the git repository around a folder; commit and digest are None without one."""
    top = next((path for path in _upwards(folder) if os.path.lexists(os.path.join(path, ".git"))), None)
    if top is None:
        return _code(folder, None, {})
    commit = None
    try:
        git = _git_folder(top)
        commit = _commit(git)
        return _code(folder, commit, *_tracked(top, os.path.join(git, "index")))
    except (Unreadable, OSError, ValueError, struct.error) as error:
        return _code(folder, commit, {}, unknown=str(error))


def of_folder(folder: str) -> SourceCode:
    """Every source and settings file below a folder."""
    try:
        files = {os.path.relpath(path, folder): _blob(path)[:12] for path in _source_files(folder)}
        return _code(folder, None, files, unknown="" if files else "it holds no source files")
    except (Unreadable, OSError) as error:
        return _code(folder, None, {}, unknown=str(error))


def _code(
    folder: str, commit: str | None, files: dict[str, str], edited: tuple[str, ...] = (), unknown: str = ""
) -> SourceCode:
    listed = sorted(files.items())
    whole = _sha1(repr(listed).encode())[:12] if listed else None
    named = [f"{digest} {name}" for name, digest in listed] if len(listed) <= LISTED else []
    return {
        "folder": folder, "commit": commit, "digest": whole, "files": named, "edited": list(edited[:LISTED]),
        "unknown": unknown,
    }  # fmt: skip


def _sha1(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def _upwards(folder: str) -> Iterator[str]:
    path = os.path.abspath(folder)
    while path != os.path.dirname(path):
        yield path
        path = os.path.dirname(path)


def _source_files(folder: str) -> Iterator[str]:
    if not os.path.isdir(folder):
        raise Unreadable(IS_FILE if os.path.lexists(folder) else NO_FOLDER)
    start, count, size = time.monotonic(), 0, 0
    for path, folders, names in os.walk(folder, onerror=_refused):
        folders[:] = [name for name in folders if _may_hold_code(path, name)]
        for file in (os.path.join(path, name) for name in names if name.endswith(SOURCES + SETTINGS)):
            count, size = count + 1, size + os.lstat(file).st_size
            if count > MOST_FILES or size > MOST_BYTES:
                raise Unreadable(f"it holds more than {MOST_FILES:,} source files, or {MOST_BYTES >> 20} MiB of them")
            if time.monotonic() - start > FOLDER_S:
                raise Unreadable(f"its files could not be read within {FOLDER_S:g} s")
            yield file


def _refused(error: OSError) -> None:
    raise Unreadable(f"{error.filename} cannot be read ({error.strerror})")


def _may_hold_code(parent: str, name: str) -> bool:
    is_venv = os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))
    return not (name.startswith(".") or name in NO_CODE or is_venv)


def _blob(path: str) -> str:
    """A file's git blob id."""
    content = os.fsencode(os.readlink(path)) if os.path.islink(path) else _read(path)
    return _sha1(b"blob %d\0" % len(content) + content)


def _read(path: str) -> bytes:
    """The content of a regular file. Opening a pipe or device in its place could block."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise Unreadable(f"{path} is not a file")
    with open(path, "rb") as file:
        return file.read(MOST_BYTES)


# Git's own formats: gitrepository-layout and gitformat-index


def _git_folder(top: str) -> str:
    """The .git folder, or the folder that the .git file of a work tree or submodule points to."""
    path = os.path.join(top, ".git")
    return path if os.path.isdir(path) else os.path.join(top, _text(path).removeprefix("gitdir:").strip())


def _text(path: str) -> str:
    return _read(path).decode(errors="replace").strip()


def _commit(git: str) -> str | None:
    """The commit id of HEAD; None if nothing was committed, or references are stored in an unknown format."""
    head = _text(os.path.join(git, "HEAD"))
    if head.startswith("ref:"):
        head = _reference(git, head.removeprefix("ref:").strip())
    return head if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", head) else None


def _reference(git: str, name: str) -> str:
    common = os.path.join(git, "commondir")  # a work tree shares the branches of its repository
    shared = os.path.join(git, _text(common)) if os.path.exists(common) else git
    for path in (os.path.join(git, name), os.path.join(shared, name)):
        if os.path.exists(path):
            return _text(path)
    packed = os.path.join(shared, "packed-refs")
    found = re.search(rf"^([0-9a-f]+) {re.escape(name)}$", _text(packed), re.M) if os.path.exists(packed) else None
    return found[1] if found else ""


def _tracked(top: str, index: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """(digest by name, names of edited files) for all source files that git tracks. Like git, it takes a file as
    unchanged if the index has its size and time, and reads only the others."""
    files: dict[str, str] = {}
    edited: list[str] = []
    start, size = time.monotonic(), 0
    for name, known, *times_and_size in _entries(_read(index)):
        if size > MOST_BYTES or time.monotonic() - start > REPOSITORY_S:
            raise Unreadable(f"the files that git tracks could not be read within {REPOSITORY_S:g} s")
        path, files[name] = os.path.join(top, name), known[:12]
        try:
            about = os.lstat(path)
            if [*divmod(about.st_mtime_ns, 10**9), about.st_size & 0xFFFFFFFF] != times_and_size:
                size += about.st_size
                files[name] = _blob(path)[:12]
        except (FileNotFoundError, NotADirectoryError):
            files[name] = "deleted"
        edited += [name] if files[name] != known[:12] else []
    return files, tuple(edited)


ENTRY = struct.Struct(">10I20sH")
EXTENDED, SKIP_WORKTREE, NAME_LENGTH = 0x4000, 0x4000, 0x0FFF
FILE_KINDS = (0o100000, 0o120000)
"""Regular files and links, not submodules or folders."""


def _entries(data: bytes) -> Iterator[tuple[str, str, int, int, int]]:
    """(name, blob, mtime in s and ns, size) of each source file that is checked out."""
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in (2, 3):
        raise Unreadable(f"git's index has version {version}; only 2 and 3 are supported")
    if count > MOST_TRACKED:
        raise Unreadable(f"git tracks {count:,} files; at most {MOST_TRACKED:,} are compared")
    at = 12
    for _ in range(count):
        _, _, seconds, nanoseconds, _, _, mode, _, _, size, blob, flags = ENTRY.unpack_from(data, at)
        begin = at + ENTRY.size + (2 if flags & EXTENDED else 0)
        more = struct.unpack_from(">H", data, begin - 2)[0] if flags & EXTENDED else 0
        end = data.index(b"\0", begin)
        if flags & NAME_LENGTH != min(end - begin, NAME_LENGTH):  # so the repository uses SHA-256
            raise Unreadable("git's index has an unknown format")
        name = os.fsdecode(data[begin:end])
        if mode & 0o170000 in FILE_KINDS and not more & SKIP_WORKTREE and name.endswith(SOURCES + SETTINGS):
            yield name, blob.hex(), seconds, nanoseconds, size
        at += (end - at) // 8 * 8 + 8
    if data[at : at + 4] == b"link":
        raise Unreadable("git's index is split into two files")
