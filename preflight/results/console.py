"""The text on the screen: one line per check, then the findings, then the verdict."""

import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from preflight.core import rank_ranges, words
from preflight.core.action import Action
from preflight.core.finding import RUN, Reported
from preflight.core.job import Job
from preflight.results import text_plots
from preflight.results.report import EXIT_CODES, STATUSES, CheckEntry, Explained, Report
from preflight.results.result import IN_PART, badness, merge

plain = words.plain
WIDTH = 100
"""Columns of wrapped text if there is no terminal."""
SHOWN_OF_A_CODE = 3
"""How many findings with one code are shown: a thousand nodes may have the same fault."""
_WORDS = {"fail": "FAIL", "error": "ERROR", "warn": "WARN", "skip": "SKIP", "pass": "PASS", "info": "INFO"}


class Detail(Enum):
    """How much the screen shows."""

    QUIET = "quiet"
    """What is no pass, and the verdict."""
    USUAL = "usual"
    VERBOSE = "verbose"
    """All findings of a kind, and all tables."""


def header(job: Job, level: str, deadline_s: float) -> str:
    """The first line: which job, at which level, how long at most."""
    ranks = rank_ranges.count(job.world_size, "rank")
    nodes = rank_ranges.count(len(job.nodes), "node")
    by = _started_by(job.launcher)
    return f"preflight: {ranks} on {nodes} ({by}, {job.backend}), {level}, at most {deadline_s:.0f} s"


def _started_by(launcher: str) -> str:
    """A launcher's name; ranks of our own say nothing about the job's launcher."""
    return {"env": "plain variables", "own": "its own ranks"}.get(launcher, launcher)


def waiting(world_size: int, present: Collection[int], left_s: float) -> str:
    """The line shown while ranks have not joined yet."""
    missing = set(range(world_size)) - set(present)
    here = f"{len(present)} of {rank_ranges.count(world_size, 'rank')} came"
    line = f"preflight: waiting for {rank_ranges.ranks(missing)} ({here}), at most {max(1.0, left_s):.0f} s more"
    return _cut(line, 200)


def check_line(entry: CheckEntry, width: int | None = None) -> str:
    """`PASS  comm.init  0.3 s  4 ranks in 0.31 s`, cut to the width of a terminal."""
    counted = entry.summary or entry.title
    if entry.status == "skip":
        is_in_part = (entry.skipped or "").startswith(IN_PART)
        counted = f"skipped in part, see below; {counted}" if is_in_part else f"skipped: {entry.skipped}"
    elif entry.status in ("fail", "error", "warn"):
        counted = rank_ranges.count(len(entry.findings), "finding") + ", see below"
    elif waived := _waived(entry):
        counted = f"{rank_ranges.count(waived, 'finding')} waived, see below"
    return status_line(_WORDS[entry.status], entry.check, entry.seconds.max, counted, width)


def folded_line(entries: Sequence[CheckEntry], width: int | None = None) -> str:
    """One line for checks that all passed: `PASS  comm  0.2 s  init, all_reduce; 16 MiB: busbw 1.2 GB/s`."""
    names = ", ".join(entry.check.partition(".")[2] for entry in entries)
    names += f"; {entries[-1].summary}" if entries[-1].summary else ""
    seconds = sum(entry.seconds.max for entry in entries)
    return status_line("PASS", entries[0].check.partition(".")[0], seconds, names, width)


def status_line(word: str, name: str, seconds: float, text: str, width: int | None = None) -> str:
    """A line in columns: a check, a family, or the running check."""
    line = f"{word:<5} {name:<20} {f'{seconds:.1f} s':>7}  {text}"
    return _cut(plain(line).replace("\n", " "), width)


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def finding_lines(finding: Reported, width: int = WIDTH) -> list[str]:
    """Severity, culprit and code; the message; who noticed it; the fix."""
    papers = _papers(finding)
    who = culprit(replace(finding, where={key: finding.where[key] for key in finding.where if key not in papers}))
    word = _WORDS["skip" if is_skip(finding) else finding.severity] if finding.counts else "WAIVED"
    first = f"{word:<5} {plain(who).replace(chr(10), ' ')}{'  ' if who else ''}[{finding.code}]"
    lines = [first, *indented(finding.message, width), *indented(waiver(finding), width)]
    lines += indented(", ".join(f"{key} {value}" for key, value in papers.items()), width)
    if finding.noticed_by:
        noticed = rank_ranges.from_text(finding.noticed_by)
        lines += indented(
            f"noticed by {rank_ranges.ranks(noticed)}, which {'is' if len(noticed) == 1 else 'are'} not to blame", width
        )
    return [*lines, *indented(f"fix: {fix(finding)}", width)]


def is_skip(finding: Reported) -> bool:
    """Whether it only says that a part of the check was not measured."""
    return finding.not_measured and finding.severity == "info"


def fix(finding: Reported) -> str:
    """What the reader does next, followed by the action if it is about a node or the job, not a setting."""
    action = "" if finding.action in ("", Action.NONE, Action.FIX_CONFIG) else f" (action: {finding.action})"
    return f"{finding.fix}{action}"


def _papers(finding: Reported) -> dict[str, object]:
    """UUID and serial number of a GPU that also has an index: for the ticket, below the message."""
    where = finding.where
    return {key: where[key] for key in ("uuid", "serial") if key in where} if "gpu" in where else {}


def _waived(entry: CheckEntry) -> int:
    return sum(not finding.counts for finding in entry.findings)


def waiver(finding: Reported) -> str:
    if finding.waived is not None:
        return f"waived until {finding.waived['until']}: {finding.waived['reason']}"
    if finding.waiver_ended is not None:
        return f"its waiver ended on {finding.waiver_ended['until']}: {finding.waiver_ended['reason']}"
    if finding.severity_was:
        return f"{finding.severity} by --config; the check says {finding.severity_was}"
    return ""


def indented(text: str, width: int) -> list[str]:
    """Wraps a sentence below the line that it belongs to."""
    return textwrap.wrap(
        plain(text), width, initial_indent="      ", subsequent_indent="      ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def culprit(finding: Reported) -> str:
    """ "node-1, ranks 8-15, gpu 3", or a text that there is no culprit."""
    where = dict(finding.where)
    parts: list[str] = []
    if group := where.pop("group", None):
        parts.append(
            f"{group} ({rank_ranges.count(len(finding.nodes or ()), 'node')})" if finding.nodes else str(group)
        )
    elif node := where.pop("node", None):
        parts.append(str(node))
    elif nodes := [name for name in finding.nodes or () if name]:  # of ranks that never came, it may be unknown
        are_named = not finding.ranks or len(nodes) <= 3
        parts.append(words.some(nodes, 3, last=", ") if are_named else rank_ranges.count(len(nodes), "node"))
    if finding.ranks:
        parts.append(rank_ranges.ranks(rank_ranges.from_text(finding.ranks)))
    if "file" in where and "line" in where:
        where["file"] = f"{where['file']}:{where.pop('line')}"
    parts += [f"{key.replace('_', ' ')} {value}" for key, value in where.items()]
    return ", ".join(parts)


def ending(report: Report, places: list[str], width: int = WIDTH, detail: Detail = Detail.USUAL) -> list[str]:
    """All findings, worst first, then skips, counts, where the report is, and the verdict."""
    found = sorted(merged(report), key=order)
    if detail is Detail.QUIET:
        return [*found_lines([each for each in found if each.severity != "info"], width), "", *places, _verdict(report)]
    whole = detail is Detail.VERBOSE
    return [
        *pictures(report, width, screen=not whole),
        *found_lines(found, width, len(found) if whole else SHOWN_OF_A_CODE),
        "",
        *_counts(report, width),
        *places,
        _verdict(report),
    ]


def merged(report: Report) -> list[Reported]:
    """The findings check by check; equal ones about several ranks or nodes are merged."""
    return [finding for check in report.checks for finding in merge(check.findings, report.job, more_than=1)]


PICTURE = "    │ "
"""Before every line that a check has drawn."""


def pictures(report: Report, width: int = WIDTH, *, screen: bool = False, page: bool = False) -> list[str]:
    """What the checks have drawn, each under its name; for the screen without what is quiet while its check passes,
    for a page without what it draws itself."""
    drawn = {check.check: [*_drawn(check, width - len(PICTURE), screen)] for check in report.checks}
    if page:
        drawn = {check.check: [*check.picture] for check in report.checks}
    return [
        line
        for check, texts in drawn.items()
        for line in (("", f"{check}:", *(f"{PICTURE}{plain(text)}".rstrip() for text in texts)) if texts else ())
    ]


def _drawn(check: CheckEntry, width: int, screen: bool) -> Iterator[str]:
    if not (screen and check.aside and check.status == "pass"):
        yield from check.picture
    for plot in check.plots:
        if text_plots.is_on_screen(plot, check.status if screen else ""):
            yield from text_plots.lines(plot, width)


def found_lines(found: list[Reported], width: int = WIDTH, most: int = SHOWN_OF_A_CODE) -> Iterator[str]:
    """At most so many findings of each kind: the screen is for a person, and the report has them all."""
    kinds = Counter(_kind(finding) for finding in found)
    shown: Counter[tuple[object, ...]] = Counter()
    for finding in found:
        kind = _kind(finding)
        shown[kind] += 1
        if shown[kind] <= most or kinds[kind] == most + 1:
            yield from ("", *finding_lines(finding, width))
        elif shown[kind] == kinds[kind]:
            rest = [other for other in found if _kind(other) == kind][most:]
            yield from ("", *indented(f"{len(rest)} more [{finding.code}]: {_culprits(rest)}", width))


def _kind(finding: Reported) -> tuple[object, ...]:
    return finding.severity, finding.code, finding.counts


def _culprits(found: list[Reported], most: int = 8) -> str:
    who = list(dict.fromkeys(culprit(finding) for finding in found))
    more = f" and {len(who) - most} others; the report (--report DIR) has them all" if len(who) > most else ""
    return "; ".join(who[:most]) + more


def sentence(report: Report) -> str:
    """The verdict and its first reason in one line: for the launcher's error file, and for other ranks."""
    found = sorted(report.findings, key=order)
    if not found or not found[0].counts:
        return f"preflight: {report.verdict.upper()}"
    first, more = found[0], f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    who = culprit(first)
    message = first.message[:500]
    sentence = f"{who}: {message}" if who else message
    return f"preflight: {report.verdict.upper()}: {sentence} [{first.code}]{more}"


def order(finding: Reported) -> tuple[bool, int]:
    """Sort key: worst first, waived last."""
    return not finding.counts, badness(finding)


def _counts(report: Report, width: int) -> list[str]:
    statuses = [check.status for check in report.checks if check.check != RUN]
    counts = [f"{statuses.count(word)} {word}" for word in STATUSES if word in statuses]
    waived = sum(_waived(check) for check in report.checks)
    counts += [f"{rank_ranges.count(waived, 'finding')} waived"] if waived else []
    run_itself = next((check.status for check in report.checks if check.check == RUN), "pass")
    counts += [f"and the run itself: {run_itself}"] if run_itself not in ("pass", "skip") else []
    lines = [f"{rank_ranges.count(len(statuses), 'check')}: {', '.join(counts) or 'none'}"]
    skipped: dict[str, list[str]] = {}
    for check in report.checks:
        if check.skipped is not None:
            skipped.setdefault(check.skipped, []).append(check.check)
    return lines + [
        line for why, ids in skipped.items() for line in indented(f"skipped {', '.join(ids)}: {why}", width)
    ]


def meaning(report: Report) -> str:
    """What the verdict means for the reader."""
    if report.explained and report.verdict in ("fail", "warn"):
        return "why the job failed" if report.verdict == "fail" else "nothing failed, but see the warnings"
    sentence = {
        "pass": "nothing stands against this job",
        "warn": "it can run; see the warnings",
        "fail": "do not start this job",
        "error": "preflight could not finish its own work: this is no clean bill",
    }[report.verdict]
    skipped = sum(check.status == "skip" for check in report.checks)
    if skipped == len(report.checks) and report.verdict == "error":
        sentence = "nothing was measured"
    elif skipped and report.verdict in ("pass", "warn"):
        sentence += f"; {rank_ranges.count(skipped, 'check')} skipped, so not known"
    if report.exit_code != EXIT_CODES[report.verdict]:
        sentence += "; a failure by --strict"
    return sentence


def _verdict(report: Report) -> str:
    word, seconds = report.verdict.upper(), f"{report.seconds:.1f} s"
    return f"verdict: {word} ({meaning(report)}), exit code {report.exit_code}, {seconds}"


def about(report: Report) -> str:
    """The job and the run in one line."""
    job = report.job
    size = f"{rank_ranges.count(job.world_size, 'rank')} on {rank_ranges.count(len(job.nodes), 'node')}"
    size += f" ({_started_by(job.launcher)}, {job.backend})"
    size = read_words(report.explained) if report.explained else size
    run = f"{report.started}, {report.seconds} s, run {report.run}, preflight {report.preflight}"
    return f"{size}, {run}"


# Reports of `preflight explain`


def read_words(explained: Explained) -> str:
    """ "3 files, 1,204 lines"."""
    files = rank_ranges.count(explained.files, "file")
    has_lines = explained.lines or not explained.files
    return f"{files}, {rank_ranges.count(explained.lines, 'line')}" if has_lines else files


def quotes(finding: Reported) -> list[str]:
    """ "job.log:12: RuntimeError: ..."."""
    quoted = [f"{line['file']}:{line['line']}: {line['text']}" for line in _quoted(finding, "lines", "line")]
    quoted += [f"{line['file']}: {line['text']}" for line in _quoted(finding, "also")]
    return [plain(line).replace("\n", " ").replace("\t", " ") for line in quoted]


def _quoted(finding: Reported, name: str, *more: str) -> list[Mapping[str, Any]]:
    """Evidence may be any JSON: what is no quote is left out."""
    lines = finding.evidence.get(name)
    lines = lines if isinstance(lines, list) else []
    return [line for line in lines if isinstance(line, dict) and line.keys() >= {"file", "text", *more}]


def confidence(finding: Reported) -> str:
    """high, medium, low or none, of a cause that `preflight explain` has found."""
    return str(finding.evidence.get("confidence", "none"))
