"""Where a run's output goes: the screen, `--json`, `--report`."""

import os
import select
import traceback
from dataclasses import dataclass
from typing import Any

from preflight.core.facts import FactsStore
from preflight.core.secrets import Scrubber
from preflight.errors import UsageError
from preflight.results import console, report_files
from preflight.results.report import Report

STALLED_S = 2.0
"""A terminal or pipe that accepts nothing for this long is not being read."""


@dataclass(frozen=True)
class Output:
    """The output of one rank."""

    json_path: str | None = None
    folder: str | None = None
    with_facts: bool = False

    @property
    def width(self) -> int | None:
        """Columns of the terminal to which `say` writes; None if it is not a terminal."""
        stream = 2 if self.json_path == "-" else 1
        return (os.get_terminal_size(stream).columns or None) if os.isatty(stream) else None

    def say(self, text: str) -> None:
        """Writes to the screen, which is stderr with `--json -`: then stdout is for the report_files."""
        _print(2 if self.json_path == "-" else 1, text)

    def complain(self, text: str) -> None:
        """One line on stderr: a name with a newline must not look like two."""
        line = for_terminal(text).replace("\n", " ")
        _print(2, f"preflight: {line}\n")

    def report_fault(self) -> None:
        """Prints the exception that is being handled, which is none that preflight expects."""
        text = f"a fault of preflight itself; please report it:\n{traceback.format_exc()}"
        _print(2, f"preflight: {for_terminal(text)}\n")

    def print_json(self, report: Report, book: FactsStore) -> str:
        """Prints the report for `--json -`. Returns why it could not be written, or ""."""
        if self.json_path != "-":
            return ""
        return _print(1, report_files.as_text(report_files.with_facts(report, book) if self.with_facts else report))

    def refusal(self, before: float) -> str:
        """Called before the run, in a child: why the report cannot be written, or "". See report_files.prepare."""
        try:
            report_files.prepare(self.json_path, self.folder, before)
        except UsageError as error:
            return str(error)
        return ""

    def names(self) -> str:
        given = (("--json", self.json_path), ("--report", self.folder))
        return " and ".join(f"{option} {path}" for option, path in given if path)

    def places(self, name: str) -> list[str]:
        """Where the report will be, for the screen."""
        paths = [self._json_target(name), os.path.join(self.folder, name) if self.folder else None]
        return [f"report: {path}" for path in paths if path and path != "-"]

    def _json_target(self, name: str) -> str | None:
        """The path for `--json`: a rank that speaks for a lost rank 0 must not overwrite another's file."""
        if not self.json_path or name == "report.json" or self.json_path == "-":
            return self.json_path
        return os.path.join(os.path.dirname(self.json_path), name)

    def write(self, report: Report, book: FactsStore, name: str) -> dict[str, Any]:
        """Runs in a child. Returns {"failed": why, or ""}."""
        try:
            if self.json_path and self.json_path != "-":
                self._write_json(report, book, name)
            if self.folder and name == "report.json":
                from preflight.results import formats  # not at the start of every command

                report_files.write_folder(self.folder, report, book, formats.TEXTS)
            elif self.folder:
                os.makedirs(self.folder, exist_ok=True)
                report_files.write(os.path.join(self.folder, name), report_files.as_text(report))
        except OSError as error:
            return {"failed": str(error)}
        return {"failed": ""}

    def _write_json(self, report: Report, book: FactsStore, name: str) -> None:
        if self.with_facts:
            report = report_files.with_facts(report, book)
        target = self._json_target(name) or ""
        report_files.write(target, report_files.as_text(report))
        if name == "report.json" and book.checks():
            report_files.write_facts(report_files.facts_path(target), report, book)


def for_terminal(text: str) -> str:
    """Without secrets and control characters: what a user has typed, or a file's or a host's name, may hold both."""
    return console.plain(Scrubber(os.environ).text(text))


_stalled: set[int] = set()
"""Descriptors that accepted nothing for STALLED_S: nothing more is written to them."""


def _print(descriptor: int, text: str) -> str:
    """Writes what the reader accepts: a reader that is gone does not end the run, and one that has stopped
    reading must not block it. Returns why the rest could not be written, or ""; also "" if the reader is gone."""
    data = text.encode(errors="replace")
    while data and descriptor not in _stalled:
        try:
            if select.select([], [descriptor], [], STALLED_S)[1]:
                data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]
            else:
                _stalled.add(descriptor)
        except BrokenPipeError:
            return ""
        except OSError as error:
            return error.strerror or str(error)
    return f"nothing reads it ({len(data):,} bytes are left)" if data else ""
