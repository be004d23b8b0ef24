"""What is checked out in a git repository: the commit, and the content of the source files.

Reads .git itself: `git status` takes seconds in a large repository, is missing in many containers, refuses other
users' folders, and runs commands from the repository's own configuration.
"""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from preflight.checks.env.software import git_index, imported_files
from preflight.checks.env.software.digests import DigestCache
from preflight.checks.env.software.git_index import IndexEntry
from preflight.checks.env.software.source_files import SETTINGS, SOURCES, Unreadable, blob, content_of

SUBMODULE, FILE_KINDS = 0o160000, (0o100000, 0o120000)
"""Regular files and links, not the folders of a sparse index."""
SHOWN = 12
"""Characters of a digest that are kept."""
CONVERTED = re.compile(r"^(?!\s*#)(\S+)[^\n]*\b(?:eol|text|crlf|ident|filter|working-tree-encoding)\b", re.MULTILINE)
"""A line of .gitattributes by which files are checked out differently from what git has stored."""
PLAIN_PATTERN = re.compile(r".*\.(\w+)$")


def git_folder(top: str) -> str:
    """The .git folder, or the folder that the .git file of a work tree or submodule points to."""
    path = os.path.join(top, ".git")
    return path if os.path.isdir(path) else os.path.join(top, _text(path).removeprefix("gitdir:").strip())


def _text(path: str) -> str:
    return content_of(path).decode(errors="replace").strip()


def _shared(git: str) -> str:
    """The folder of branches and configuration, which work trees share."""
    common = os.path.join(git, "commondir")
    return os.path.join(git, _text(common)) if os.path.exists(common) else git


def commit(git: str) -> str | None:
    """The commit id of HEAD; None if nothing was committed, or references are stored in an unknown format."""
    head = _text(os.path.join(git, "HEAD"))
    if head.startswith("ref:"):
        head = _reference(git, head.removeprefix("ref:").strip())
    return head if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", head) else None


def _reference(git: str, name: str) -> str:
    shared = _shared(git)
    for path in (os.path.join(git, name), os.path.join(shared, name)):
        if os.path.isfile(path):
            return _text(path)
    packed = os.path.join(shared, "packed-refs")
    found = re.search(rf"^([0-9a-f]+) {re.escape(name)}$", _text(packed), re.M) if os.path.exists(packed) else None
    return found[1] if found else ""


@dataclass
class CheckedOut:
    """Digests of source and settings files, by name."""

    files: dict[str, str] = field(default_factory=dict)
    """"deleted" for a file that is tracked and not there."""
    edited: list[str] = field(default_factory=list)
    """Files that differ from what was last added to git."""
    untracked: list[str] = field(default_factory=list)
    """Files that git does not track, and that tracked ones import."""


def checked_out(top: str, git: str, cache: DigestCache) -> CheckedOut:
    """In a checkout that git has made only changed files are read: 20,000 files take 0.2 s. In a copy of one all are,
    the first time: 20,000 take 1 to 2 s. Raises Unreadable, UnknownIndex, OSError, ValueError, and struct.error for a
    damaged index."""
    found = CheckedOut()
    _Reader(found, cache).take(top, git, "")
    found.edited = list(dict.fromkeys(found.edited))  # a conflict lists a file three times
    return found


class _Reader:
    def __init__(self, found: CheckedOut, cache: DigestCache) -> None:
        self._found, self._cache = found, cache
        self._reads_all = False

    def take(self, top: str, git: str, prefix: str) -> None:
        """Takes the files of a repository, and those of its submodules that are checked out."""
        self._cache.in_time()
        index = os.path.join(git, "index")
        about = os.stat(index)
        if not stat.S_ISREG(about.st_mode):
            raise Unreadable(f"{index} is not a file")
        algorithm = _algorithm(git)
        listed = git_index.entries(index, 32 if algorithm == "sha256" else 20)
        self._reads_all = _converts(top, git, listed)
        for entry in listed:
            if entry.kind == SUBMODULE and os.path.lexists(os.path.join(top, entry.name, ".git")):
                below = os.path.join(top, entry.name)
                _Reader(self._found, self._cache).take(below, git_folder(below), f"{prefix}{entry.name}/")
            elif entry.kind in FILE_KINDS and entry.name.endswith(SOURCES + SETTINGS):
                self._cache.in_time()
                self._take_file(entry, top, prefix, algorithm, about.st_mtime_ns)
        for name in imported_files.untracked(top, {entry.name for entry in listed}, self._cache.in_time):
            self._found.files[prefix + name] = self._digest(os.path.join(top, name), algorithm)
            self._found.untracked.append(prefix + name)

    def _take_file(self, entry: IndexEntry, top: str, prefix: str, algorithm: str, written_ns: int) -> None:
        """`written_ns`: when the index was written."""
        path, known = os.path.join(top, entry.name), entry.blob[:SHOWN]
        try:
            about = os.lstat(path)
            is_as_added = _is_as_added(entry, about, written_ns)
            digest = known if is_as_added and not self._reads_all else self._digest(path, algorithm)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            if entry.skip_worktree:
                return
            digest, is_as_added = "deleted", False
        self._found.files[prefix + entry.name] = digest
        self._found.edited += [prefix + entry.name] if digest != known and not is_as_added else []

    def _digest(self, path: str, algorithm: str) -> str:
        if os.path.islink(path):
            return blob(path, algorithm)[:SHOWN]
        return self._cache.digest(path, algorithm, lambda path: blob(path, algorithm, self._cache.in_time))[:SHOWN]


def _algorithm(git: str) -> str:
    path = os.path.join(_shared(git), "config")
    config = _text(path) if os.path.exists(path) else ""
    return "sha256" if re.search(r"^\s*objectformat\s*=\s*sha256\b", config, re.M | re.I) else "sha1"


def _is_as_added(entry: IndexEntry, about: os.stat_result, written_ns: int) -> bool:
    """Whether the file has not changed since it was added, as git decides it: by size, times and inode. One that was
    added as late as the index was written may have changed within the same tick of the clock. Git was told not to look
    at some files (skip-worktree): their entries may be old."""
    now = (about.st_mtime_ns, about.st_ctime_ns, about.st_ino & 0xFFFFFFFF, about.st_size & 0xFFFFFFFF)
    was = (entry.mtime, entry.ctime, entry.inode, entry.size)
    return now == was and max(entry.mtime, entry.ctime) < written_ns and not entry.skip_worktree


def _converts(top: str, git: str, listed: Iterable[IndexEntry]) -> bool:
    """Whether git checks out source files with other bytes than it has stored. Their ids in the index are not those of
    the files then, and all files are read: else a node on which a file was copied would differ."""
    config = os.path.join(_shared(git), "config")
    if os.path.exists(config) and re.search(r"^\s*autocrlf\s*=\s*true\b", _text(config), re.M | re.I):
        return True
    names = [entry.name for entry in listed if os.path.basename(entry.name) == ".gitattributes"]
    paths = [*(os.path.join(top, name) for name in names), os.path.join(_shared(git), "info", "attributes")]
    texts = [_text(path) for path in paths if os.path.exists(path)]
    return any(_may_be_code(pattern) for text in texts for pattern in CONVERTED.findall(text))


def _may_be_code(pattern: str) -> bool:
    """Whether a pattern of .gitattributes may match source files: "*.bin" does not."""
    ending = PLAIN_PATTERN.fullmatch(pattern)
    return ending is None or f".{ending[1]}" in SOURCES + SETTINGS
