"""Identifies the code in a folder by content: its git repository's source files, or all source files below it."""

import os
import struct
from collections.abc import Iterator
from typing import NotRequired, TypedDict

from preflight.checks.env.software import digests, git_repository, source_files
from preflight.checks.env.software.digests import DigestCache
from preflight.checks.env.software.git_index import UnknownIndex
from preflight.checks.env.software.git_repository import CheckedOut
from preflight.checks.env.software.source_files import Unreadable

LISTED = 1000
"""How many files the facts list by name, in some 50 KB; if there are more, they have only the digest of all."""
NO_REPOSITORY = "it is in no git repository"


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
    untracked: NotRequired[list[str]]
    """Files that git does not track, though tracked ones import them."""
    unknown: str
    """Why the files could not be read, or ""."""


def current_folder() -> str:
    """The current folder; "/" if it was deleted: no code is looked for there."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def of_repository(folder: str, cache: DigestCache) -> SourceCode:
    """The files checked out in the git repository around a folder; commit and digest are None without one."""
    top = next((path for path in _upwards(folder) if os.path.lexists(os.path.join(path, ".git"))), None)
    if top is None:
        return _code(folder, None, {})
    commit = None
    try:
        git = git_repository.git_folder(top)
        commit = git_repository.commit(git)
        if commit is None and not os.path.lexists(os.path.join(git, "index")):  # nothing was ever added
            return _code(folder, None, {})
        found = git_repository.checked_out(top, git, cache)
        return _code(folder, commit, found.files, found=found)
    except (Unreadable, UnknownIndex, OSError, ValueError, struct.error) as error:
        return _code(folder, commit, {}, unknown=str(error) or type(error).__name__)


def of_folder(folder: str) -> SourceCode:
    """Every source and settings file below a folder."""
    try:
        paths = source_files.below(folder)
        files = {os.path.relpath(path, folder): source_files.blob(path)[: git_repository.SHOWN] for path in paths}
        return _code(folder, None, files, unknown="" if files else "it holds no source files")
    except (Unreadable, OSError) as error:
        return _code(folder, None, {}, unknown=str(error))


def _code(
    folder: str, commit: str | None, files: dict[str, str], found: CheckedOut | None = None, unknown: str = ""
) -> SourceCode:
    listed = sorted(files.items())
    whole = digests.sha1(repr(listed).encode())[: git_repository.SHOWN] if listed else None
    named = [f"{digest} {name}" for name, digest in listed] if len(listed) <= LISTED else []
    return {
        "folder": folder,
        "commit": commit,
        "digest": whole,
        "files": named,
        "edited": found.edited[:LISTED] if found else [],
        "untracked": found.untracked[:LISTED] if found else [],
        "unknown": unknown,
    }


def _upwards(folder: str) -> Iterator[str]:
    path = os.path.abspath(folder)
    while path != os.path.dirname(path):
        yield path
        path = os.path.dirname(path)
