"""Where a report is written. Only an earlier report of this command is ever overwritten: with a wrong argument, the log
that shows why a job failed would be lost."""

import os
import stat
from collections.abc import Iterator

from preflight.errors import UsageError
from preflight.explain import console
from preflight.results import formats, report

NAMES = ("report.json", "report.md", "report.html")
"""Files in `--report DIR`."""
_FIRST = (b'{\n "schema"', b"# preflight explain", b"<!doctype html>")
LARGEST = 1 << 26
"""Bytes: no report is longer."""


def prepare(json_path: str | None, markdown_path: str | None, folder: str | None) -> None:
    """Before the logs are read: can all this be written? Raises UsageError."""
    if json_path and json_path == markdown_path:
        raise UsageError(f"--json {json_path} and --markdown {json_path}: both cannot go to one place")
    for option, path, target in _targets(json_path, markdown_path, folder):
        try:
            if option == "--report":
                os.makedirs(path, exist_ok=True)
            if not _is_free(target):
                raise UsageError(
                    f"{option} {path}: {target} exists and is not a report of explain: choose another place"
                )
            report.write(f"{target}.probe", "")
            os.unlink(f"{target}.probe")
        except OSError as error:
            raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from None


def _targets(*given: str | None) -> Iterator[tuple[str, str, str]]:
    """Option, its value, and a file that will be written."""
    for option, path in zip(("--json", "--markdown", "--report"), given, strict=True):
        if path and path != "-":
            yield from ((option, path, file) for file in ([path] if option != "--report" else _in(path)))


def _in(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in NAMES]


def _is_free(path: str) -> bool:
    """Whether nothing is there, or a report of this command."""
    if not os.path.lexists(path):
        return True
    about = os.lstat(path)
    if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST:
        return False
    with open(path, "rb") as file:
        head = file.read(64)
    if head.startswith(_FIRST[0]):
        try:
            return "explained" in report.load(path)[0]
        except (UsageError, RecursionError):
            return False
    return not head or head.lower().startswith(_FIRST[1:])


def write(made: report.Report, json_path: str | None, markdown_path: str | None, folder: str | None) -> None:
    """To all requested files; stdout ("-") is the caller's. Raises UsageError."""
    for option, path in (("--json", json_path), ("--markdown", markdown_path), ("--report", folder)):
        if not path or path == "-":
            continue
        try:
            if option == "--report":
                write_folder(path, made)
            else:
                report.write(path, report.as_text(made) if option == "--json" else console.markdown(made))
        except OSError as error:
            raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from None


def write_folder(folder: str, made: report.Report) -> None:
    """report.json, and its forms for people. Lists of nodes and a JUnit file make no sense for a job that is over.
    Raises OSError."""
    texts = (report.as_text(made), console.markdown(made), formats.html(made))
    os.makedirs(folder, exist_ok=True)
    for path, text in zip(_in(folder), texts, strict=True):
        report.write(path, text)
