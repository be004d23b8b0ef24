"""What is read out of real repositories and folders."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from preflight.checks.env.software import code, source_files
from preflight.checks.env.software.digests import DigestCache

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="git makes the repositories")


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def of_repository(folder: str, cache: DigestCache | None = None) -> code.SourceCode:
    """With nothing kept of earlier runs."""
    return code.of_repository(folder, cache or DigestCache(60.0, os.devnull))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "models").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "models" / "net.py").write_text("layers = 2\n")
    (folder / "config.yaml").write_text("lr: 1\n")
    (folder / "README.md").write_text("# Training\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def test_commit_and_files_of_a_repository(repository: Path) -> None:
    read = of_repository(str(repository))
    assert read["commit"] == git(repository, "rev-parse", "HEAD")
    blobs = [line.split() for line in git(repository, "ls-files", "-s").splitlines()]
    known = {f"{blob[:12]} {name}" for _, blob, _, name in blobs if name != "README.md"}
    assert set(read["files"]) == known and len(known) == 3
    assert (read["edited"], read["unknown"]) == ([], "")


def test_it_is_found_from_a_folder_below(repository: Path) -> None:
    below = of_repository(str(repository / "models"))
    assert {**below, "folder": str(repository)} == of_repository(str(repository))


def test_a_folder_without_a_repository_has_no_code(tmp_path: Path) -> None:
    read = of_repository(str(tmp_path))
    assert (read["commit"], read["digest"], read["unknown"]) == (None, None, "")


def test_a_current_folder_that_was_deleted_has_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert of_repository(code.current_folder())["commit"] is None


def edit(repository: Path) -> None:
    (repository / "train.py").write_text("print(2)\n")


def edit_at_the_same_length(repository: Path) -> None:
    about = (repository / "train.py").stat()
    edit(repository)
    os.utime(repository / "train.py", ns=(about.st_atime_ns, about.st_mtime_ns + 1))


def edit_within_the_same_time(repository: Path) -> None:
    about = (repository / "train.py").stat()
    (repository / "train.py").write_text("print(10)\n")
    os.utime(repository / "train.py", ns=(about.st_atime_ns, about.st_mtime_ns))


def delete(repository: Path) -> None:
    (repository / "train.py").unlink()


def make_it_a_folder(repository: Path) -> None:
    (repository / "models" / "net.py").unlink()
    (repository / "models").rmdir()
    (repository / "models").write_text("")


def stage(repository: Path) -> None:
    edit(repository)
    git(repository, "add", ".")


def commit(repository: Path) -> None:
    edit(repository)
    git(repository, "commit", "-qam", "second")


@pytest.mark.parametrize(
    ("change", "edited"),
    [
        (edit, ["train.py"]),
        (edit_at_the_same_length, ["train.py"]),
        (edit_within_the_same_time, ["train.py"]),
        (delete, ["train.py"]),
        (make_it_a_folder, ["models/net.py"]),
        (stage, []),
        (commit, []),
    ],
)
def test_other_content_is_seen(change: Callable[[Path], None], edited: list[str], repository: Path) -> None:
    before = of_repository(str(repository))
    change(repository)
    after = of_repository(str(repository))
    assert after["digest"] != before["digest"] and after["edited"] == edited
    assert (after["commit"] == before["commit"]) is (change is not commit)


def touch(repository: Path) -> None:
    os.utime(repository / "train.py", (1, 1))


def edit_the_readme(repository: Path) -> None:
    (repository / "README.md").write_text("# More\n")


def add_a_file_that_git_does_not_know(repository: Path) -> None:
    (repository / "notes.py").write_text("")


def commit_nothing(repository: Path) -> None:
    git(repository, "commit", "-q", "--allow-empty", "-m", "nothing")


@pytest.mark.parametrize("change", [touch, edit_the_readme, add_a_file_that_git_does_not_know, commit_nothing])
def test_the_same_content_has_the_same_digest(change: Callable[[Path], None], repository: Path) -> None:
    before = of_repository(str(repository))
    change(repository)
    after = of_repository(str(repository))
    assert (after["digest"], after["edited"]) == (before["digest"], [])


def test_a_copy_without_its_times_is_equal(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository, tmp_path / "copy", copy_function=shutil.copyfile)
    copy = of_repository(str(tmp_path / "copy"))
    assert {**copy, "folder": str(repository)} == of_repository(str(repository))


def packed(repository: Path) -> Path:
    git(repository, "pack-refs", "--all")
    return repository


def detached(repository: Path) -> Path:
    git(repository, "checkout", "-q", "--detach")
    return repository


def work_tree(repository: Path) -> Path:
    git(repository, "worktree", "add", "-q", str(repository.parent / "tree"))
    return repository.parent / "tree"


def packed_work_tree(repository: Path) -> Path:
    tree = work_tree(repository)
    git(repository, "pack-refs", "--all")
    return tree


def submodule(repository: Path) -> Path:
    outer = repository.parent / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repository), "inner")
    return outer / "inner"


def with_more_flags(repository: Path) -> Path:
    """An index of version 3."""
    (repository / "later.py").write_text("")
    git(repository, "add", "--intent-to-add", "later.py")
    git(repository, "update-index", "--index-version", "3")
    return repository


@pytest.mark.parametrize("place", [packed, detached, work_tree, packed_work_tree, submodule, with_more_flags])
def test_every_kind_of_repository(place: Callable[[Path], Path], repository: Path) -> None:
    folder = place(repository)
    read = of_repository(str(folder))
    assert read["commit"] == git(folder, "rev-parse", "HEAD")
    assert "train.py" in str(read["files"]) and read["unknown"] == ""


def test_a_file_that_is_not_checked_out_is_not_looked_for(repository: Path) -> None:
    git(repository, "sparse-checkout", "set", "--no-cone", "/train.py")
    read = of_repository(str(repository))
    assert [file.split()[1] for file in read["files"]] == ["train.py"] and read["edited"] == []


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    read = of_repository(str(tmp_path))
    assert (read["commit"], read["digest"], read["unknown"]) == (None, None, "")


@pytest.mark.parametrize("text", [b"", b"DIRC", b"DIRC\0\0\0\2\0\0\0\7", b"x" * 200])
def test_a_broken_index_is_unknown(text: bytes, repository: Path) -> None:
    (repository / ".git" / "index").write_bytes(text)
    read = of_repository(str(repository))
    assert read["digest"] is None and read["unknown"] and read["commit"]


@pytest.mark.parametrize("name", ["HEAD", "index"])
def test_a_pipe_is_not_waited_for(name: str, repository: Path) -> None:
    (repository / ".git" / name).unlink()
    os.mkfifo(repository / ".git" / name)
    assert "is not a file" in of_repository(str(repository))["unknown"]


def test_no_time_is_no_digest(repository: Path) -> None:
    read = of_repository(str(repository), DigestCache(-1.0, os.devnull))
    assert (read["digest"], read["unknown"]) == (None, "the files could not be read within -1 s") and read["commit"]


def test_of_many_files_the_names_are_left_out(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of_repository(str(repository))
    monkeypatch.setattr(code, "LISTED", 2)
    read = of_repository(str(repository))
    assert read["files"] == [] and read["digest"] == before["digest"]


# A folder


def test_source_and_settings_files_of_a_folder(repository: Path) -> None:
    for name in (".git/hook.py", "wandb/run.py", "models/__pycache__/net.py", "env/lib.py", "big.bin", ".hidden.py"):
        path = repository / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    (repository / "env" / "pyvenv.cfg").write_text("")
    read = code.of_folder(str(repository))
    names = [file.split()[1] for file in read["files"]]
    assert names == [".hidden.py", "config.yaml", "models/net.py", "train.py"]
    assert read["commit"] is None and read["digest"] and read["unknown"] == ""


def test_a_folder_is_known_by_its_content(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository, tmp_path / "copy", copy_function=shutil.copyfile)
    copy = code.of_folder(str(tmp_path / "copy"))
    assert copy["digest"] == code.of_folder(str(repository))["digest"]
    (tmp_path / "copy" / "train.py").rename(tmp_path / "copy" / "trian.py")
    assert code.of_folder(str(tmp_path / "copy"))["digest"] != copy["digest"]


def test_a_link_to_a_folder_is_no_loop(repository: Path) -> None:
    (repository / "models" / "again").symlink_to(repository)
    (repository / "models" / "other.py").symlink_to("../train.py")
    read = code.of_folder(str(repository))
    assert len(read["files"]) == 4 and read["unknown"] == ""


@pytest.mark.parametrize(
    ("name", "limit", "says"),
    [
        ("MOST_FILES", 2, "it holds more than 2 source files, or 64 MiB of them"),
        ("FOLDER_S", -1.0, "its files could not be read within -1 s"),
    ],
)
def test_too_much_is_unknown(
    name: str, limit: float, says: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, name, limit)
    read = code.of_folder(str(repository))
    assert (read["digest"], read["unknown"]) == (None, says)


@pytest.mark.parametrize(
    ("name", "says"),
    [("nowhere", source_files.NO_FOLDER), ("train.py", source_files.IS_FILE), ("empty", "it holds no source files")],
)
def test_a_folder_that_is_none(name: str, says: str, repository: Path) -> None:
    (repository / "empty").mkdir()
    read = code.of_folder(str(repository / name))
    assert (read["digest"], read["unknown"]) == (None, says)


def test_a_folder_that_may_not_be_read_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read all, so the refusal is made here."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "train.py").write_text("1")
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    known = code.of_folder(str(tmp_path))
    assert known["digest"] is None and "secret cannot be read (Permission denied)" in known["unknown"]
