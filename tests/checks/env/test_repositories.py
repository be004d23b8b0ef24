"""Repositories of all kinds: in each an edit on one node is seen, and two that are alike are equal."""

import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from preflight.checks.env.software import code, git_index, source_files
from preflight.checks.env.software.digests import DigestCache
from tests.checks.env.test_code import git, of_repository

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="git makes the repositories")
PLAIN = ("init", "-q")


def made(folder: Path, *init: str) -> Path:
    (folder / "models").mkdir(parents=True)
    (folder / "train.py").write_text("from models import net\nprint(1)\n")
    (folder / "models" / "net.py").write_text("layers = 2\n")
    (folder / "models" / "network.py").write_text("layers = 3\n")
    git(folder, *(init or PLAIN))
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def plain(folder: Path) -> Path:
    return made(folder)


def version_4(folder: Path) -> Path:
    git(made(folder), "update-index", "--index-version", "4")
    return folder


def many_files(folder: Path) -> Path:
    """As `git config feature.manyFiles true` has it."""
    git(made(folder), "config", "feature.manyFiles", "true")
    git(folder, "update-index", "--index-version", "4", "--untracked-cache")
    return folder


def split(folder: Path) -> Path:
    git(made(folder), "update-index", "--split-index")
    return folder


def split_and_changed(folder: Path) -> Path:
    """Entries were added to, replaced in and deleted from the shared index."""
    split(folder)
    (folder / "models" / "net.py").write_text("layers = 4\n")
    (folder / "more.py").write_text("")
    (folder / "models" / "network.py").unlink()
    git(folder, "add", "-A")
    return folder


def split_version_4(folder: Path) -> Path:
    git(split_and_changed(folder), "update-index", "--index-version", "4")
    return folder


def sha256(folder: Path) -> Path:
    return made(folder, "init", "-q", "--object-format=sha256")


def split_sha256(folder: Path) -> Path:
    git(sha256(folder), "update-index", "--split-index")
    return folder


def sparse_index(folder: Path) -> Path:
    (made(folder) / "other").mkdir()
    (folder / "other" / "not_here.py").write_text("")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "second")
    git(folder, "sparse-checkout", "set", "--cone", "--sparse-index", "models")
    return folder


def with_a_table_of_offsets(folder: Path) -> Path:
    git(made(folder), "-c", "index.threads=2", "-c", "index.recordOffsetTable=true", "add", ".")
    return folder


def not_to_be_looked_at(folder: Path) -> Path:
    git(made(folder), "update-index", "--skip-worktree", "train.py")
    return folder


def assumed_unchanged(folder: Path) -> Path:
    git(made(folder), "update-index", "--assume-unchanged", "train.py")
    return folder


def of_20_001_files(folder: Path) -> Path:
    made(folder)
    (folder / "data").mkdir()
    for number in range(20_001):
        (folder / "data" / f"{number}.json").touch()
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "many")
    return folder


KINDS = [
    plain, version_4, many_files, split, split_and_changed, split_version_4, sha256, split_sha256, sparse_index,
    with_a_table_of_offsets, not_to_be_looked_at, assumed_unchanged, of_20_001_files,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_is_seen_in_every_kind_of_repository(kind: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = kind(tmp_path / "one")
    before = of_repository(str(folder))
    assert before["digest"] and (before["edited"], before["unknown"]) == ([], "")
    listed = git(folder, "ls-files", "--", "*.py", ":!other").splitlines()
    assert not before["files"] or [file.split(" ", 1)[1] for file in before["files"]] == listed
    copied = tmp_path / "two"
    shutil.copytree(folder, copied, copy_function=shutil.copyfile)  # of another inode, and at another time
    assert of_repository(str(copied))["digest"] == before["digest"]
    with open(folder / "train.py", "a") as file:
        file.write("# edited\n")
    after = of_repository(str(folder))
    assert (after["edited"], after["commit"], after["unknown"]) == (["train.py"], before["commit"], "")
    assert after["digest"] != before["digest"]


def outer(folder: Path) -> Path:
    """A repository with a submodule in a folder below it."""
    inner = made(folder / "inner")
    top = made(folder / "outer")
    git(top, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "third_party/inner")
    git(top, "commit", "-qm", "with a submodule")
    return top


def test_an_edit_in_a_submodule_is_seen(tmp_path: Path) -> None:
    top = outer(tmp_path)
    before = of_repository(str(top))
    assert "third_party/inner/models/net.py" in {file.split(" ", 1)[1] for file in before["files"]}
    (top / "third_party" / "inner" / "train.py").write_text("print(3)\n")
    after = of_repository(str(top))
    assert after["edited"] == ["third_party/inner/train.py"] and after["digest"] != before["digest"]


def test_a_submodule_that_is_not_checked_out_is_another_content(tmp_path: Path) -> None:
    top = outer(tmp_path)
    before = of_repository(str(top))
    git(top, "submodule", "--quiet", "deinit", "--force", "--all")
    without = of_repository(str(top))
    assert without["unknown"] == "" and len(without["files"]) == len(before["files"]) - 3


def test_an_edit_within_the_tick_in_which_it_was_added_is_seen(tmp_path: Path) -> None:
    """Same size, times and inode: git compares the content of what is as new as the index."""
    folder = made(tmp_path / "one")
    index, file = folder / ".git" / "index", folder / "train.py"
    before = of_repository(str(folder))
    known = file.stat()
    data = bytearray(index.read_bytes())
    file.write_text(file.read_text().replace("1", "2"))
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))
    now = file.stat()
    at = data.index(struct.pack(">II", *divmod(known.st_ctime_ns, 10**9)), data.rindex(b"models/network.py"))
    data[at : at + 8] = struct.pack(">II", *divmod(now.st_ctime_ns, 10**9))
    index.write_bytes(data)
    os.utime(index, ns=(now.st_ctime_ns, now.st_ctime_ns))
    assert of_repository(str(folder))["digest"] != before["digest"]
    os.utime(index, ns=(now.st_ctime_ns + 1, now.st_ctime_ns + 1))  # what git itself would not see either
    assert of_repository(str(folder))["digest"] == before["digest"]


def test_files_that_git_converts_are_equal_on_all_nodes(tmp_path: Path) -> None:
    """In a clone they are as git has checked them out; in a copy without its times all are read."""
    folder = made(tmp_path / "one")
    (folder / ".gitattributes").write_text("*.py text eol=crlf\n*.bin filter=lfs\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "with line ends")
    git(tmp_path, "clone", "-q", "one", "clone")
    assert b"\r\n" in (tmp_path / "clone" / "train.py").read_bytes()
    shutil.copytree(tmp_path / "clone", tmp_path / "copy", copy_function=shutil.copyfile)
    assert of_repository(str(tmp_path / "clone"))["digest"] == of_repository(str(tmp_path / "copy"))["digest"]


# Files that git does not know


def names(folder: Path) -> set[str]:
    read = of_repository(str(folder))
    assert read["unknown"] == ""
    return {file.split(" ", 1)[1] for file in read["files"]} - {"train.py", "models/net.py", "models/network.py"}


@pytest.mark.parametrize(
    ("imports", "files", "expected"),
    [
        ("import patched\n", ["patched.py"], {"patched.py"}),
        ("from patched import fast\n", ["patched.py"], {"patched.py"}),
        ("from models import (  # all\n    net,\n    own,\n)\n", ["models/own.py"], {"models/own.py"}),
        ("from models import \\\n    own\n", ["models/own.py"], {"models/own.py"}),
        ("if True:\n    from own.layers import Layer\n", ["own/__init__.py", "own/layers.py", "own/deep/x.py"],
         {"own/__init__.py", "own/layers.py"}),
        ("import patched\n", ["patched.py=import deeper", "deeper.py", "scratch.py"], {"patched.py", "deeper.py"}),
        ("print(2)\n", ["patched.py", "own/x.py"], set()),
        ("# import patched\nx = 'import patched'\n", ["patched.py"], set()),
        ("import patched\n", [".venv/patched.py", "wandb/patched.py", "build/patched.py"], set()),
        ("import json\n", ["data/1.json", "metrics.json"], set()),
    ],
    ids=["module", "from", "in brackets", "continued", "package", "by another", "not imported", "in words", "no code",
         "data"],
)  # fmt: skip
def test_an_untracked_file_counts_where_it_is_imported(
    imports: str, files: list[str], expected: set[str], tmp_path: Path
) -> None:
    folder = made(tmp_path / "one")
    (folder / "train.py").write_text(imports)
    git(folder, "commit", "-qam", "second")
    for name, _, text in (file.partition("=") for file in files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert names(folder) == expected
    assert set(of_repository(str(folder)).get("untracked", [])) == expected


# What cannot be read is said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"DIRC" + struct.pack(">II", 5, 0) + bytes(20), "git's index has version 5; 2 to 4 are known"),
        (b"DIRC" + struct.pack(">II", 2, 9000) + bytes(100), git_index.UNKNOWN_FORMAT),
        (b"CRID" + bytes(60), git_index.UNKNOWN_FORMAT),
    ],
)
def test_an_index_of_the_future_is_said_to_be_unknown(text: bytes, says: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "one")
    (folder / ".git" / "index").write_bytes(text)
    read = of_repository(str(folder))
    assert (read["digest"], read["unknown"]) == (None, says) and read["commit"]


@pytest.mark.process
@pytest.mark.parametrize("kind", [split, split_sha256])
def test_a_split_index_without_its_other_file_is_unknown(kind: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = kind(tmp_path / "one")
    for shared in (folder / ".git").glob("sharedindex.*"):
        shared.unlink()
    read = of_repository(str(folder))
    assert read["digest"] is None and "No such file" in read["unknown"]


@pytest.mark.process
@pytest.mark.parametrize("kind", [version_4, split_and_changed, sha256])
def test_an_index_that_is_cut_or_turned_raises_nothing_else(kind: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = kind(tmp_path / "one")
    whole = (folder / ".git" / "index").read_bytes()
    for place in range(0, len(whole), 7):
        for data in (whole[:place], whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]):
            (folder / ".git" / "index").write_bytes(data)
            of_repository(str(folder))


# Digests that are kept


def test_a_digest_is_kept_until_the_file_changes(tmp_path: Path) -> None:
    file, reads = tmp_path / "lib.so", list[str]()
    file.write_text("1")

    def read(path: str) -> str:
        reads.append(path)
        return source_files.blob(path)

    def asked(now: float) -> str:
        cache = DigestCache(60.0, str(tmp_path / "cache"))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(time, "time", lambda: now)
            digest = cache.digest(str(file), "sha1", read)
        cache.save()
        return digest

    later = file.stat().st_ctime + 100
    first = asked(file.stat().st_ctime + 0.5)  # too new to be kept
    assert [asked(later), asked(later)] == [first, first] and len(reads) == 2
    about = file.stat()
    file.write_text("2")
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))  # same size and time of modification
    assert asked(later) != first and len(reads) == 3


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', "[" * 10_000, "\0"])
def test_a_damaged_cache_is_no_cache(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    (folder / "digests.json").write_text(text)
    file = tmp_path / "a.py"
    file.write_text("1")
    assert DigestCache(60.0, str(folder)).digest(str(file), "sha1", source_files.blob) == source_files.blob(str(file))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_the_cache_of_another_user_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("1")
    os.utime(file, (1, 1))
    (tmp_path / "cache").mkdir(mode=0o700)
    os.chown(tmp_path / "cache", 12345, 12345)
    cache = DigestCache(60.0, str(tmp_path / "cache"))
    cache.digest(str(file), "sha1", source_files.blob)
    cache.save()
    assert os.listdir(tmp_path / "cache") == []


def test_what_is_no_repository_is_not_unknown(tmp_path: Path) -> None:
    assert code.of_repository(str(tmp_path), DigestCache(60.0, os.devnull))["unknown"] == ""
