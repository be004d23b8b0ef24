"""The words of `preflight explain`: on the screen, and in Markdown."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from preflight import console, ranges
from preflight.report import Report, findings

QUOTED = 1000
"""Characters of a line that a report quotes."""
SHOWN = 3
"""Lines that the screen quotes of one finding; and UNREAD files that it names."""
UNREAD = 5
DECIDING, FURTHER = 4, 2
"""Widths of the deciding line, and of others: NCCL's words stand behind a long prefix."""
PROGRESS_BYTES = 64 << 20
"""From so many on a bar is shown."""


def lines(report: Report, width: int = console.WIDTH) -> list[str]:
    """What was read; the causes, the most probable one first; what was not read; the verdict."""
    about = report["explained"]
    told = [f"preflight explain: {read_words(about)}"]
    for finding in findings(report):
        told += ["", *_finding_lines(finding, width)]
    return [*told, "", *_unread(report), _verdict(report)]


def read_words(about: dict[str, Any]) -> str:
    """ "3 files, 1,204 lines"."""
    files = ranges.count(about["files"], "file")
    return f"{files}, {ranges.count(about['lines'], 'line')}" if about["lines"] or not about["files"] else files


def _finding_lines(finding: dict[str, Any], width: int) -> list[str]:
    quoted = [f"      > {one}" for one in quotes(finding)[:SHOWN]]
    if finding["severity"] == "info":  # a consequence: its sentence says who, and what to do stands above
        told = console.finding_lines({**finding, "noticed_by": ""}, width)
        return [*told[: _fix(told)], *(cut(one, width * FURTHER) for one in quoted[:1])]
    told = console.finding_lines(finding, width)
    sure = [f"      confidence: {finding['evidence']['confidence']}"] * (finding["severity"] != "error")
    shown = [cut(one, width * (FURTHER if number else DECIDING)) for number, one in enumerate(quoted)]
    return [*told[: _fix(told)], *sure, *shown, *told[_fix(told) :]]


def _fix(told: Sequence[str]) -> int:
    return next(number for number, line in enumerate(told) if line.startswith("      fix: "))


def quotes(finding: dict[str, Any]) -> list[str]:
    """ "job.log:12: RuntimeError: ..."."""
    evidence = finding["evidence"]
    told = [f"{one['file']}:{one['line']}: {one['text']}" for one in evidence.get("lines", ())]
    told += [f"{one['file']}: {one['text']}" for one in evidence.get("also", ())]
    return [console.plain(one).replace("\n", " ").replace("\t", " ") for one in told]


def cut(text: str, longest: int) -> str:
    """Of what is too long, the beginning and the end: what went wrong is said last."""
    end = longest // 3
    return text if len(text) <= longest else f"{text[: longest - end - 3]} … {text[-end:]}"


def _unread(report: Report) -> list[str]:
    unread = report["explained"]["unread"]
    if report["verdict"] == "error":  # the finding tells
        return []
    told = [console.plain(f"not read: {one['file']} {one['why']}") for one in unread[:UNREAD]]
    rest = len(unread) - UNREAD
    return [*told, f"not read: {ranges.count(rest, 'file')} more"] if rest > 0 else told


def _verdict(report: Report) -> str:
    found = next(findings(report), None)
    meaning = {
        "fail": f"most probably {found['code']}, confidence {found['evidence']['confidence']}" if found else "",
        "warn": _of_warning(found["code"]) if found else "",
        "pass": "nothing wrong found; what these logs do not hold is not known",
        "error": "it is not known whether something failed",
    }[report["verdict"]]
    word = report["verdict"].upper()
    return f"verdict: {word} ({meaning}), exit code {report['exit_code']}, {report['seconds']:.1f} s"


def _of_warning(code: str) -> str:
    slow = code == "explain.degraded_path"
    return "nothing failed, but it runs slower than it may" if slow else "something is wrong; no failure was found"


def markdown(report: Report) -> str:
    """For a ticket or a chat."""
    told = [f"# preflight explain: {report['verdict'].upper()}", "", f"{read_words(report['explained'])}.", ""]
    for finding in findings(report):
        who = _words(console.culprit(finding))
        told += [f"## {finding['severity']}: `{finding['code']}`{f', {who}' if who else ''}", ""]
        told += [_words(finding["message"]), ""]
        told += [f"Confidence: {finding['evidence']['confidence']}.", ""] * (
            finding["severity"] not in ("info", "error")
        )
        told += ["```text", *(one.replace("```", "'''") for one in quotes(finding)), "```", ""] * bool(quotes(finding))
        if finding["noticed_by"] and finding["severity"] != "info":
            told += [f"Noticed by ranks {finding['noticed_by']}, which are not to blame.", ""]
        told += [] if finding["severity"] == "info" else [f"Fix: {_words(finding['fix'])}", ""]
    return "\n".join([*told, *(_words(one) for one in _unread(report)), _verdict(report), ""])


def _words(text: str) -> str:
    """As they stand: "<module>" is no HTML."""
    return console.plain(text).replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, for large inputs, where somebody looks at it."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task("reading", total=None)

    def told(read: int, total: int) -> None:
        if total >= PROGRESS_BYTES:
            bar.start()
            bar.update(task, completed=read, total=total)

    try:
        yield told
    finally:
        bar.stop()
