"""`preflight explain`: from paths to a report."""

import argparse
import io
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from preflight.core import rank_ranges, words
from preflight.core.action import Action
from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.core.secrets import Scrubber
from preflight.errors import UsageError
from preflight.explain import console, diagnosis, output
from preflight.explain.artifacts import (
    desync_messages,
    dumps,
    error_files,
    first_failure,
    hang_stacks,
    ras,
    reports,
    wait_places,
)
from preflight.explain.artifacts.processes import RankProcess, read_debug_server, read_processes
from preflight.explain.attempts import SLUG, Attempts, Replay
from preflight.explain.candidates import Candidate
from preflight.explain.causes.last_words import LastWords
from preflight.explain.inputs import Input, Unread, find
from preflight.explain.logs.ends import ends_some, shows_progress
from preflight.explain.read.copies import REQUESTED, SETTLED
from preflight.explain.read.reader import FORGETS, Reader
from preflight.explain.timeline import Timeline
from preflight.failure_book.book import Book, book, stand_alone
from preflight.failure_book.line import Line
from preflight.results import progress, report_files
from preflight.results.building import build
from preflight.results.cleaning import without_secrets, without_surrogates
from preflight.results.console import read_words
from preflight.results.destinations import Output
from preflight.results.report import Explained, Report, UnreadFile
from preflight.results.result import Result

CHECK = "preflight.explain"
TITLE = "The job did not fail"
FIX_NOTHING_READ = "Give the job's own output (stdout and stderr of all ranks), or the folder that holds it."
FIX_NOT_ALL_READ = "Check that they are complete and readable, and run explain again; or name the files that matter."
OnProgress = Callable[[int, int], None]
"""Bytes read, and bytes in all."""
INTERRUPTED = 130
"""A shell's exit code after Ctrl-C."""


def run(options: argparse.Namespace) -> int:
    """The command; returns its exit code. Raises UsageError."""
    try:
        return _run(options)
    except UsageError as error:  # it is printed in any rank's shell
        raise UsageError(str(error), everywhere=False) from None
    except KeyboardInterrupt:
        Output().complain("explain: interrupted, no report")
        return INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    places = (options.json, options.markdown, options.report, options.html)
    output.prepare(*places)
    with console.progress() as on_progress:
        report = explain_paths(options.paths, on_progress)
    output.write(report, *places)
    lines = [*console.lines(report), *Output(options.json, options.report).places("report.json")]
    try:
        _print(report, lines, options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        raise UsageError(f"stdout: cannot be written ({error.strerror})") from None
    return report.exit_code


def _print(report: Report, lines: Sequence[str], options: argparse.Namespace) -> None:
    """If the report goes to stdout, nothing else does."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever its encoding
            stream.reconfigure(errors="replace")
    if "-" in (options.json, options.markdown):
        progress.show(lines, sys.stderr)
        print(report_files.as_text(report) if options.json == "-" else console.markdown(report), end="", flush=True)
    else:
        progress.show(lines, sys.stdout)
        sys.stdout.flush()


def explain_paths(paths: Sequence[str], on_progress: OnProgress = lambda *_: None, known: Book | None = None) -> Report:
    """A report with one check, `preflight.explain`. Raises UsageError for a path that does not exist."""
    began, known = time.monotonic(), known or book()
    inputs, unread = find(paths)
    timeline, ends = Timeline(), LastWords(known)
    replay = Replay(timeline)
    reader = _gather(inputs, known, replay, on_progress, ends)
    ranks = _processes(inputs)
    artifacts, more = _from_artifacts(inputs, known, ranks)
    unread = [*unread, *reader.unread, *more]
    causes = _causes(replay, artifacts, inputs, known)
    if not any(cause.severity == "fail" or cause.slug == SLUG for cause in causes):
        causes = [*ends.find_candidates(), *causes]
    stood = ranks or read_debug_server(file.path for file in inputs if file.kind == "server_stacks")
    causes = [*(wait_places.add_places(cause, stood) for cause in causes[:1]), *causes[1:]]
    explained = Explained(
        files=reader.files + sum(file.kind != "log" for file in inputs) - len(more),
        lines=reader.lines,
        bytes=reader.bytes,
        unread=[UnreadFile(skipped.shown, skipped.why) for skipped in unread],
        ranks=timeline.times_of_ranks(),
    )
    scrub = Scrubber(os.environ)
    findings = [_finding(cause, scrub) for cause in causes]
    broken = [skipped for skipped in unread if skipped.broken]
    if not explained.files and not findings:
        findings = [_unreadable("nothing could be read, expected a log, a dump or a report", unread, FIX_NOTHING_READ)]
    elif broken and not any(finding.severity == "fail" for finding in findings):  # the cause may be there
        text = "no failure was found, but files that may show one could not be read"
        findings = [_unreadable(text, broken, FIX_NOT_ALL_READ), *findings]
    return _report(findings, explained, timeline.job(), list(paths), time.monotonic() - began)


def _gather(
    inputs: Sequence[Input], known: Book, kept: Replay | Attempts, on_progress: OnProgress, ends: LastWords
) -> Reader:
    """Reads all logs."""
    logs = [file for file in inputs if file.kind == "log"]
    reader = Reader(logs, known.words, on_progress, known.rarely, ends.add)
    for line in _lines(reader, inputs):
        matches = known.matches(line)
        if wanted := kept.add(line, matches):
            reader.request_lines(wanted)
        if ends_some(matches):  # a copy after it is of another attempt
            reader.forget_copies()
            reader.skip_copies(FORGETS)
        elif kept.has_enough(line, matches):
            reader.skip_copies(REQUESTED)
        elif stand_alone(matches):
            reader.skip_copies()
        elif not shows_progress(matches):
            reader.skip_copies(SETTLED)
    return reader


def _causes(replay: Replay, artifacts: Sequence[Candidate], inputs: Sequence[Input], known: Book) -> list[Candidate]:
    """Of logs of several attempts, each attempt is looked at by itself, too."""
    causes = diagnosis.explain(replay.timeline, artifacts)
    again = [file for file in inputs if file.kind == "error_file" or (file.kind == "log" and os.path.isfile(file.path))]
    attempts = Attempts(replay.timeline.ends, [file.shown for file in again])
    if attempts.count < 2:
        return causes
    if replay.lines:
        for line, matches in replay.lines:
            attempts.add(line, matches)
    else:
        _gather(again, known, attempts, lambda *_: None, LastWords(known))
    return attempts.explain(causes, artifacts)


def _lines(reader: Reader, inputs: Sequence[Input]) -> Iterator[Line]:
    for file in inputs:
        if file.kind == "error_file":
            yield from error_files.lines(file.path, file.shown)
    yield from reader


def _processes(inputs: Sequence[Input]) -> list[RankProcess]:
    """Of `preflight debug`'s records and stacks."""
    records, stacks = ([file.path for file in inputs if file.kind == kind] for kind in ("record", "stack"))
    return read_processes(records, stacks)


def _from_artifacts(
    inputs: Sequence[Input], known: Book, ranks: Sequence[RankProcess]
) -> tuple[list[Candidate], list[Unread]]:
    """What files that are not logs say, with their names as shown."""
    of_kind = {kind: [file.path for file in inputs if file.kind == kind] for kind in ("dump", "ras", "report")}
    shown = {file.path: file.shown for file in inputs}
    job, unread = dumps.read(of_kind["dump"])
    candidates = list(desync_messages.find_candidates(job))
    unfinished = job.unfinished()
    for process in ranks:
        process.unfinished = unfinished.get(process.rank)
    from_ras, broken = ras.find_candidates(of_kind["ras"])
    candidates, unread = [*candidates, *from_ras], [*unread, *broken]
    for path in of_kind["report"]:
        try:
            candidates += reports.find_candidates(path, known.causes)
        except UsageError as error:
            unread.append(Unread(path, str(error).removeprefix(f"{path}: "), broken=True))
    candidates += first_failure.find_candidates(ranks) or hang_stacks.find_candidates(ranks)
    named = [replace(c, quotes=tuple((shown.get(file, file), text) for file, text in c.quotes)) for c in candidates]
    return named, [replace(skipped, shown=shown.get(skipped.shown, skipped.shown)) for skipped in unread]


def _report(findings: list[Reported], explained: Explained, job: Job, command: list[str], seconds: float) -> Report:
    summary = read_words(explained) + ": nothing wrong found" * (not findings)
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    report = build(
        run_id=str(uuid.uuid4()), started=started, seconds=seconds, command=["explain", *command], options={}, job=job,
        results=[Result(CHECK, TITLE, findings=findings, summary=summary)],
    )  # fmt: skip
    return without_surrogates(without_secrets(replace(report, explained=explained), Scrubber(os.environ)))


def _quote(line: Line, scrub: Scrubber) -> str:
    """It is cleaned before it is cut: a cut may part a secret from its name."""
    return console.cut(scrub.text(line.raw.strip()), console.QUOTED)


def _finding(cause: Candidate, scrub: Scrubber) -> Reported:
    return Reported(
        severity=cause.severity,
        code=cause.slug if "." in cause.slug else f"{reports.FAMILY}{cause.slug}",
        message=cause.message,
        where={key: value for key, value in cause.where.items() if value not in (None, "")},
        noticed_by=rank_ranges.to_text(cause.ranks),
        evidence={
            "confidence": cause.confidence,
            **({"seen_at": dict(cause.seen_at)} if cause.seen_at else {}),
            "lines": [{"file": line.file, "line": line.number, "text": _quote(line, scrub)} for line in cause.lines],
            "also": [{"file": file, "text": text} for file, text in cause.quotes],
        },
        fix=cause.fix,
        action=cause.action,
    )


def _unreadable(text: str, unread: Sequence[Unread], fix: str) -> Reported:
    files = words.clauses((f"{skipped.shown} {skipped.why}" for skipped in unread), console.UNREAD)
    message = f"{text}: {files or 'the folders hold no log'}"
    evidence = {"confidence": "high", "lines": [], "also": []}
    return Reported(
        severity="error", code=reports.UNREADABLE, message=message, evidence=evidence, fix=fix, action=Action.NONE
    )
