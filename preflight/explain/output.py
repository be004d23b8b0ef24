"""Where a report is written. Only an earlier report of this command is ever overwritten: with a wrong argument, the log
that shows why a job failed would be lost."""

import os
import stat
from collections.abc import Callable, Iterator

from preflight.errors import UsageError
from preflight.explain import console
from preflight.results import report_files
from preflight.results.report import Report


def _html(report: Report) -> str:
    from preflight.results.page import whole  # a run that writes no page needs no templates

    return whole.html(report)


TEXTS: dict[str, Callable[[Report], str]] = {
    "report.json": report_files.as_text,
    "report.md": console.markdown,
    "report.html": _html,
}
"""Files in `--report DIR`. Lists of nodes and a JUnit file make no sense for a job that is over."""
_FIRST = (b'{\n "schema"', b"# preflight explain", b"<!doctype html>")
LARGEST = 1 << 26
"""Bytes: no report is longer."""


KEYS = {"explain": "explained", "checkpoint": "checkpoint"}
"""What only the reports of a command have; the others have its check."""


def prepare(
    json_path: str | None,
    markdown_path: str | None,
    folder: str | None,
    html_path: str | None = None,
    command: str = "explain",
) -> None:
    """Checks, before anything is read, that all files can be written. Raises UsageError."""
    if json_path and json_path == markdown_path:
        raise UsageError(f"--json {json_path} and --markdown {json_path}: both cannot go to one place")
    for option, path, target, _ in _targets(json_path, markdown_path, folder, html_path):
        try:
            if option == "--report":
                os.makedirs(path, exist_ok=True)
            if not _is_free(target, command):
                text = f"{target} exists and is not a report of {command}: choose another place"
                raise UsageError(f"{option} {path}: {text}")
            report_files.write(f"{target}.probe", "")
            os.unlink(f"{target}.probe")
        except OSError as error:
            raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from None


def _targets(
    json_path: str | None, markdown_path: str | None, folder: str | None, html_path: str | None
) -> Iterator[tuple[str, str, str, str]]:
    """Yields option, its value, a file to write, and which of TEXTS; the caller writes stdout ("-")."""
    files = {"--json": json_path, "--markdown": markdown_path, "--html": html_path}
    for (option, path), name in zip(files.items(), TEXTS, strict=True):
        if path and path != "-":
            yield option, path, path, name
    if folder:
        yield from (("--report", folder, os.path.join(folder, name), name) for name in TEXTS)


def _is_free(path: str, command: str) -> bool:
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
            return _is_of(command, report_files.load(path)[0])
        except (UsageError, RecursionError):
            return False
    return not head or head.lower().startswith(_FIRST[1:])


def _is_of(command: str, report: Report) -> bool:
    if command in KEYS:
        return getattr(report, KEYS[command]) is not None
    return any(check.check == f"preflight.{command}" for check in report.checks)


def write(
    report: Report,
    json_path: str | None = None,
    markdown_path: str | None = None,
    folder: str | None = None,
    html_path: str | None = None,
) -> None:
    """Writes all requested files. Raises UsageError."""
    for option, path, target, name in _targets(json_path, markdown_path, folder, html_path):
        try:
            report_files.write(target, TEXTS[name](report))
        except OSError as error:
            raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from None
