"""What `preflight explain` prints on the screen, and its Markdown."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from preflight.core import rank_ranges
from preflight.core.finding import Reported
from preflight.results import console
from preflight.results.report import Explained, Report

QUOTED = 1000
"""Characters of a line that a report quotes."""
SHOWN = 3
"""Lines that the screen quotes per finding; and UNREAD files that it names."""
UNREAD = 5
DECIDING, FURTHER = 4, 2
"""Screen widths for the deciding line, and for others: NCCL's messages follow a long prefix."""
PROGRESS_BYTES = 64 << 20
"""From this size a progress bar is shown."""


def lines(report: Report, width: int = console.WIDTH) -> list[str]:
    """What was read; the causes, the most probable one first; what was not read; the verdict."""
    text_lines = [f"preflight explain: {console.read_words(_explained(report))}"]
    for finding in report.findings:
        text_lines += ["", *_finding_lines(finding, width)]
    return [*text_lines, "", *_unread(report), _verdict(report)]


def _explained(report: Report) -> Explained:
    assert report.explained is not None, "a report of preflight explain"
    return report.explained


def _finding_lines(finding: Reported, width: int) -> list[str]:
    quoted = [f"      > {quote}" for quote in console.quotes(finding)[:SHOWN]]
    if finding.severity == "info":  # a consequence: its sentence says who, and the fix is above
        text_lines = console.finding_lines(replace(finding, noticed_by=""), width)
        return [*text_lines[: _fix(text_lines)], *(cut(quote, width * FURTHER) for quote in quoted[:1])]
    text_lines = console.finding_lines(finding, width)
    sure = [f"      confidence: {console.confidence(finding)}"] * (finding.severity != "error")
    shown = [cut(quote, width * (FURTHER if number else DECIDING)) for number, quote in enumerate(quoted)]
    return [*text_lines[: _fix(text_lines)], *sure, *shown, *text_lines[_fix(text_lines) :]]


def _fix(text_lines: Sequence[str]) -> int:
    return next(number for number, line in enumerate(text_lines) if line.startswith("      fix:"))


def cut(text: str, longest: int) -> str:
    """The beginning and the end of a long text: what went wrong is at the end."""
    end = longest // 3
    return text if len(text) <= longest else f"{text[: longest - end - 3]} … {text[-end:]}"


def _unread(report: Report) -> list[str]:
    unread = _explained(report).unread
    if report.verdict == "error":  # the finding says it
        return []
    text_lines = [console.plain(f"not read: {skipped.file} {skipped.why}") for skipped in unread[:UNREAD]]
    rest = len(unread) - UNREAD
    return [*text_lines, f"not read: {rank_ranges.count(rest, 'file')} more"] if rest > 0 else text_lines


def _verdict(report: Report) -> str:
    first = next(iter(report.findings), None)
    slow = first is not None and first.code == "explain.degraded_path"
    sure = console.confidence(first) if first else ""
    named = f"most probably {first.code}, confidence {sure}" if first else ""
    meaning = {
        "fail": "something failed, and these logs do not show why" if sure == "none" else named,
        "warn": "nothing failed, but it runs slower than it could" if slow else "worth a look; no failure was found",
        "pass": "it failed and was started again; its last attempt shows no failure"
        if first is not None and first.code == "explain.attempt"
        else "nothing wrong found in these logs",
        "error": "it is unknown whether something failed",
    }[report.verdict]
    word = report.verdict.upper()
    return f"verdict: {word} ({meaning}), exit code {report.exit_code}, {report.seconds:.1f} s"


def markdown(report: Report) -> str:
    text_lines = [
        f"# preflight explain: {report.verdict.upper()}",
        "",
        f"{console.read_words(_explained(report))}.",
        "",
    ]
    for finding in report.findings:
        who = _words(console.culprit(finding))
        text_lines += [f"## {finding.severity}: `{finding.code}`{f', {who}' if who else ''}", ""]
        text_lines += [_words(finding.message), ""]
        text_lines += [f"Confidence: {console.confidence(finding)}.", ""] * (finding.severity not in ("info", "error"))
        quoted = [console.plain(line).replace("```", "'''") for line in console.quotes(finding)]
        text_lines += ["```text", *quoted, "```", ""] * bool(quoted)
        if finding.noticed_by and finding.severity != "info":
            text_lines += [f"Noticed by ranks {finding.noticed_by}, which are not to blame.", ""]
        text_lines += [] if finding.severity == "info" else [f"Fix: {_words(finding.fix)}", ""]
    return "\n".join([*text_lines, *(_words(skipped) for skipped in _unread(report)), _verdict(report), ""])


def _words(text: str) -> str:
    """The text with HTML escaped: "<module>" is not a tag."""
    return console.plain(text).replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, for large inputs, if it is a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task("reading", total=None)

    def update(read: int, total: int) -> None:
        if total >= PROGRESS_BYTES:
            bar.start()
            bar.update(task, completed=read, total=total)

    try:
        yield update
    finally:
        bar.stop()
