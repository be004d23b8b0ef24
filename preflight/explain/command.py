"""`preflight explain`: from paths to a report."""

import argparse
import io
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from preflight import __version__, ranges, report, result, screen
from preflight.explain import console, dumps, error_files, reports, roots, stacks, written
from preflight.explain.hint import Hint
from preflight.explain.line import Line
from preflight.explain.ranks_seen import RanksSeen
from preflight.explain.reading import Input, Reader, Unread, find
from preflight.explain.roots import Explained
from preflight.explain.signatures import Book, book
from preflight.explain.story import Story
from preflight.registry import UsageError
from preflight.result import Result
from preflight.scrub import Scrubber
from preflight.writers import Output

CHECK = "preflight.explain"
TITLE = "The job did not fail"
Told = Callable[[int, int], None]
"""Bytes read, and bytes in all."""
INTERRUPTED = 130
"""As a shell says of what Ctrl-C has ended."""


def run(options: argparse.Namespace) -> int:
    """The command; returns its exit code. Raises UsageError."""
    try:
        return _run(options)
    except UsageError as error:  # of whatever rank's shell it is asked in, it is said
        raise UsageError(str(error), everywhere=False) from None
    except KeyboardInterrupt:
        Output().complain("explain: interrupted, nothing is told")
        return INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    places = (options.json, options.markdown, options.report)
    written.prepare(*places)
    with console.progress() as told:
        made = explain_paths(options.paths, told)
    written.write(made, *places)
    lines = [*console.lines(made), *Output(options.json, options.report).places("report.json")]
    try:
        _print(made, lines, options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        raise UsageError(f"stdout: cannot be written ({error.strerror})") from None
    return int(made["exit_code"])


def _print(made: report.Report, lines: Sequence[str], options: argparse.Namespace) -> None:
    """stdout is for the report alone where it goes there."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # of whatever coding
            stream.reconfigure(errors="replace")
    if "-" in (options.json, options.markdown):
        screen.show(lines, sys.stderr)
        print(report.as_text(made) if options.json == "-" else console.markdown(made), end="", flush=True)
    else:
        screen.show(lines, sys.stdout)
        sys.stdout.flush()


def explain_paths(paths: Sequence[str], told: Told = lambda *_: None, known: Book | None = None) -> report.Report:
    """A report (design.md §5) with one check, `preflight.explain`. Raises UsageError for a path that is not there."""
    began, known = time.monotonic(), known or book()
    inputs, unread = find(paths)
    story, seen = Story(), RanksSeen()
    reader = Reader([one for one in inputs if one.kind == "log"], known.words, told, known.rarely)
    for line in _lines(reader, inputs):
        matches = known.matches(line)
        seen.add(line, matches)
        if wanted := story.add(line, matches):
            reader.more(wanted)
    hints, more = _hints(inputs, known)
    unread = [*unread, *reader.unread, *more]
    found = roots.explain(story, hints, known)
    about = {
        "files": reader.files + sum(one.kind != "log" for one in inputs) - len(more),
        "lines": reader.lines,
        "bytes": reader.bytes,
        "unread": [{"file": one.shown, "why": one.why} for one in unread],
    }
    findings = [_finding(one) for one in found]
    if not about["files"] and not findings:
        findings = [_nothing_read(unread)]
    elif not any(one["severity"] == "fail" for one in findings):
        findings = [*_not_all_read([one for one in unread if one.broken]), *findings]
    return _report(findings, about, seen, list(paths), time.monotonic() - began)


def _lines(reader: Reader, inputs: Sequence[Input]) -> Iterator[Line]:
    for one in inputs:
        if one.kind == "error_file":
            yield from error_files.lines(one.path, one.shown)
    yield from reader


def _hints(inputs: Sequence[Input], known: Book) -> tuple[list[Hint], list[Unread]]:
    """Named as the inputs are."""
    of_kind = {kind: [one.path for one in inputs if one.kind == kind] for kind in ("dump", "report", "record", "stack")}
    shown = {one.path: one.shown for one in inputs}
    hints, unread = dumps.hints(of_kind["dump"])
    for path in of_kind["report"]:
        try:
            hints += reports.hints(path, known.causes)
        except UsageError as error:
            unread.append(Unread(path, str(error).removeprefix(f"{path}: "), broken=True))
    hints += stacks.hints(of_kind["record"], of_kind["stack"])
    named = [replace(one, file=shown.get(one.file, one.file)) for one in hints]
    return named, [replace(one, shown=shown.get(one.shown, one.shown)) for one in unread]


def _report(
    findings: list[dict[str, Any]], about: dict[str, Any], seen: RanksSeen, command: list[str], seconds: float
) -> report.Report:
    summary = console.read_words(about) + ": nothing wrong found" * (not findings)
    results = [Result(CHECK, TITLE, findings=findings, summary=summary)]
    word = result.verdict(results)
    made = {
        "schema": report.SCHEMA,
        "preflight": __version__,
        "run": str(uuid.uuid4()),
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(seconds, 2),
        "verdict": word,
        "exit_code": result.exit_code(word, results, strict=False),
        "command": ["explain", *command],
        "options": {},
        "policy": {"severities": {}, "waivers": [], "strict": False},
        "job": {**seen.job().to_json(), "missing_ranks": ""},
        "checks": [one.to_json(seen.job()) for one in results],
        "explained": about,
    }
    return _sound(report.without_secrets(made, Scrubber(os.environ)))


def _sound(made: report.Report) -> report.Report:
    """Without halves of characters, which names of files and others' JSON may hold, and strict readers refuse."""
    text = json.dumps(made, ensure_ascii=False, allow_nan=False)
    cleaned: report.Report = json.loads(text.encode("utf-8", "replace"))
    return cleaned


def _finding(one: Explained) -> dict[str, Any]:
    return {
        "severity": one.severity,
        "code": one.code or f"explain.{one.slug}",
        "message": one.message,
        "where": {key: value for key, value in one.where.items() if value not in (None, "")},
        "noticed_by": ranges.to_text(one.noticed_by),
        "evidence": {
            "confidence": one.confidence,
            "lines": [_quoted(line) for line in one.evidence],
            "also": [{"file": hint.file, "text": hint.quote or hint.message} for hint in one.hints],
        },
        "fix": one.fix,
    }


def _quoted(line: Line) -> dict[str, Any]:
    return {"file": line.file, "line": line.number, "text": console.cut(line.raw.strip(), console.QUOTED)}


def _nothing_read(unread: Sequence[Unread]) -> dict[str, Any]:
    why = _named(unread) or "the folders hold no log"
    text = f"nothing could be read, expected a log, a dump or a report: {why}"
    fix = "Give the job's own output (stdout and stderr of all ranks), or the folder that holds it."
    return _unreadable(text, fix)


def _not_all_read(broken: Sequence[Unread]) -> list[dict[str, Any]]:
    """What was not read may hold the cause: a job is not called healthy for the rest."""
    text = f"no failure is seen, but what may tell of one was not read: {_named(broken)}"
    fix = "See that it is whole and may be read, and explain it again; or name the files that matter."
    return [_unreadable(text, fix)] if broken else []


def _named(unread: Sequence[Unread]) -> str:
    told = [f"{one.shown} {one.why}" for one in unread[: console.UNREAD]]
    rest = len(unread) - len(told)
    return "; ".join([*told, *([f"and {rest:,} more"] if rest else [])])


def _unreadable(text: str, fix: str) -> dict[str, Any]:
    return {
        "severity": "error", "code": reports.UNREADABLE, "message": text, "where": {}, "noticed_by": "",
        "evidence": {"confidence": "high", "lines": [], "also": []}, "fix": fix,
    }  # fmt: skip
