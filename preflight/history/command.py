"""The commands `preflight diff`, `preflight history` and `preflight profile`."""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from preflight.core.facts import FactsStore
from preflight.errors import UsageError
from preflight.history import archive, diff, lines, profile, questions, telling
from preflight.history.entry import entry
from preflight.history.run_entry import RunEntry
from preflight.planning.registry import Source
from preflight.results import progress, report_files
from preflight.results.report import Report


def run_diff(options: argparse.Namespace, sources: Mapping[str, Source]) -> int:
    """The exit code. Raises UsageError."""
    (old, old_report), (new, new_report) = (_read(path, sources) for path in (options.old, options.new))
    found = diff.difference(old, new, (old_report, new_report))
    listed = telling.lines(found, options.old, options.new)
    if options.html:
        from preflight.history import diff_page

        report_files.write_asked("--html", options.html, diff_page.html(found, options.old, options.new))
    text = _json(found.to_json())
    _print(listed, text, options.json)
    return int(found.is_worse)


def run_history(options: argparse.Namespace) -> int:
    """The exit code. Raises UsageError."""
    with archive.reading(options.history) as database:
        found = questions.answers(database)
        listed, text = lines.lines(found, options.history), _json(found.to_json())
        if options.html:
            from preflight.history import history_page

            courses = [*questions.courses(database, questions.recent_runs(database))]
            report_files.write_asked("--html", options.html, history_page.html(found, courses, options.history))
    _print(listed, text, options.json)
    return 0


def run_profile(options: argparse.Namespace, sources: Mapping[str, Source]) -> int:
    """Returns the exit code. Raises UsageError for a report that shows no good node."""
    kept, report = _read(options.report, sources)
    if report.verdict not in ("pass", "warn"):
        raise UsageError(f"{options.report}: its verdict is {report.verdict}, expected a run without a failure")
    if not kept.traits:
        why = "; ".join(f"{name}: {text}" for name, text in kept.left_out.items()) or "it has no facts"
        raise UsageError(f"{options.report}: nothing that a node has is in it: {why}")
    print(profile.text(profile.kinds(kept), report.run, report.started), end="")
    return 0


def _json(found: Mapping[str, Any]) -> str:
    """Raises ValueError."""
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


def _print(listed: list[str], text: str, json_path: str | None) -> None:
    """`--json`, then the screen: no verdict is on it where the file cannot be written. Raises UsageError."""
    if json_path and json_path != "-":
        report_files.write_asked("--json", json_path, text)
    progress.show(listed, sys.stderr if json_path == "-" else sys.stdout)
    if json_path == "-":
        print(text, end="")


def _read(path: str, sources: Mapping[str, Source]) -> tuple[RunEntry, Report]:
    """(what is compared, the report). Without facts beside it only its findings are compared. Raises UsageError."""
    read, file = report_files.load(path)
    try:
        book, why = report_files.facts_beside(file), ""
    except UsageError as error:
        if any(os.path.exists(os.path.join(os.path.dirname(file), name)) for name in report_files.facts_names(file)):
            raise
        book, why = FactsStore(), str(error).removeprefix(f"{file}: ")
    kept = entry(read, book, sources)
    if why:
        kept = replace(kept, left_out={**kept.left_out, f"facts of {path}": why})
    return kept, read
