"""The commands `preflight diff`, `preflight history` and `preflight profile`."""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from preflight.core.exceptions import in_one_line
from preflight.core.facts import FactsStore
from preflight.errors import UsageError
from preflight.history import archive, diff, lines, profile, questions, telling
from preflight.history.entry import entry
from preflight.planning.registry import Source
from preflight.results import progress, report

BROKEN = (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError)
"""What reading a report raises if it was edited."""


def run_diff(options: argparse.Namespace, sources: Mapping[str, Source]) -> int:
    """The exit code. Raises UsageError."""
    (old, old_report), (new, new_report) = (_read(path, sources) for path in (options.old, options.new))
    try:
        found = diff.difference(old, new, (old_report, new_report))
        told = telling.lines(found, options.old, options.new)
        if options.html:
            from preflight.history import diff_page

            report.write_asked("--html", options.html, diff_page.html(found, options.old, options.new))
    except BROKEN as error:
        raise UsageError(f"{options.old}, {options.new}: no complete reports ({in_one_line(error)})") from None
    _print(told, found, options.json)
    return int(found["worse"])


def run_history(options: argparse.Namespace) -> int:
    """The exit code. Raises UsageError."""
    with archive.reading(options.history) as database:
        found = questions.answers(database)
        if options.html:
            from preflight.history import history_page

            courses = [*questions.courses(database, questions.recent_runs(database))]
            report.write_asked("--html", options.html, history_page.html(found, courses, options.history))
    _print(lines.lines(found, options.history), found, options.json)
    return 0


def run_profile(options: argparse.Namespace, sources: Mapping[str, Source]) -> int:
    """Returns the exit code. Raises UsageError for a report that shows no good node."""
    kept, made = _read(options.report, sources)
    if made["verdict"] not in ("pass", "warn"):
        raise UsageError(f"{options.report}: its verdict is {made['verdict']}, expected a run without a failure")
    if not kept["traits"]:
        why = "; ".join(f"{name}: {text}" for name, text in kept["left_out"].items()) or "it has no facts"
        raise UsageError(f"{options.report}: it does not say what any node has: {why}")
    try:
        text = profile.text(profile.kinds(kept), made["run"], made["started"])
    except BROKEN as error:
        raise UsageError(f"{options.report}: is not a complete report ({in_one_line(error)})") from None
    print(text, end="")
    return 0


def _print(told: list[str], found: Mapping[str, Any], json_path: str | None) -> None:
    """Prints to the screen and to `--json`. Raises UsageError if that cannot be written."""
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    progress.show(told, sys.stderr if json_path == "-" else sys.stdout)
    if json_path == "-":
        print(text, end="")
    elif json_path:
        report.write_asked("--json", json_path, text)


def _read(path: str, sources: Mapping[str, Source]) -> tuple[dict[str, Any], report.Report]:
    """(what is compared, the report). Without facts beside it only its findings are compared. Raises UsageError."""
    read, file = report.load(path)
    try:
        book, why = report.facts_beside(file), ""
    except UsageError as error:
        if any(os.path.exists(os.path.join(os.path.dirname(file), name)) for name in report.facts_names(file)):
            raise
        book, why = FactsStore(), str(error).removeprefix(f"{file}: ")
    try:
        made = entry(read, book, sources)
    except BROKEN as error:
        raise UsageError(f"{path}: is not a complete report ({in_one_line(error)})") from None
    if why:
        made["left_out"][f"facts of {path}"] = why
    return made, read
