"""The report for people and tools that do not read JSON: Markdown, HTML, JUnit."""

import html as escape_html
from typing import Any
from xml.etree import ElementTree

from preflight.core import rank_ranges
from preflight.core.finding import Reported
from preflight.results import console
from preflight.results.report import Report, findings_of


def markdown(report: Report) -> str:
    """For a ticket or a chat."""
    lines = [f"# preflight: {report['verdict'].upper()}", "", _about(report), ""]
    lines += ["| status | check | seconds | |", "|---|---|---|---|"]
    for check in report["checks"]:
        note = check["skipped"] or check["summary"] or check["title"]
        lines.append(f"| {check['status']} | {check['check']} | {check['seconds']['max']:.1f} | {_cell(note)} |")
    lines += [line for drawn in [console.pictures(report)] if drawn for line in ("", "```text", *drawn, "```")]
    for finding in console.merged(report):
        lines += [
            "",
            f"## {_weight(finding)}: {_culprit(finding)}",
            "",
            f"`{finding.code}`: {console.plain(finding.message)}",
            "",
            f"Fix: {console.plain(finding.fix)}",
        ]
        if finding.noticed_by:
            lines += ["", f"Noticed by ranks {finding.noticed_by}, which are not to blame."]
    return "\n".join(lines) + "\n"


def _weight(finding: Reported) -> str:
    if finding.waived is None:
        return finding.severity
    return f"{finding.severity}, waived until {finding.waived['until']} ({_cell(finding.waived['reason'])})"


def _culprit(finding: Reported) -> str:
    return console.plain(console.culprit(finding)) or "no culprit is seen"


def _cell(text: str) -> str:
    return console.plain(text).replace("|", "\\|").replace("\n", " ")


def _about(report: Report) -> str:
    job = report["job"]
    size = f"{rank_ranges.count(job['world_size'], 'rank')} on {rank_ranges.count(len(job['nodes']), 'node')}"
    size += f" ({job['launcher']}, {job['backend']})"
    size = console.read_words(report["explained"]) if "explained" in report else size
    run = f"{report['started']}, {report['seconds']} s, run {report['run']}, preflight {report['preflight']}"
    return f"{size}, {run}"


def html(report: Report) -> str:
    """One page without scripts or anything from elsewhere."""
    rows = "".join(_row(check) for check in report["checks"])
    quotes = console.quotes if "explained" in report else lambda _: []
    found = "".join(_section(finding, quotes(finding)) for finding in console.merged(report))
    if drawn := console.pictures(report):
        found = f"<pre>{_safe(chr(10).join(drawn))}</pre>\n{found}"
    return _PAGE.format(verdict=report["verdict"], about=_safe(_about(report)), rows=rows, found=found)


def _row(check: dict[str, Any]) -> str:
    note = _safe(check["skipped"] or check["summary"] or check["title"])
    seconds = f"{check['seconds']['max']:.1f} s"
    return f"<tr class={check['status']}><td>{check['status']}<td>{_safe(check['check'])}<td>{seconds}<td>{note}</tr>\n"


def _section(finding: Reported, quotes: list[str]) -> str:
    """`quotes`: lines of a job's log."""
    head = f"<h2>{_safe(_weight(finding))}: {_safe(_culprit(finding))}</h2><p>{_safe(finding.message)}</p>"
    foot = f"<p><b>Fix:</b> {_safe(finding.fix)}</p><code>{_safe(finding.code)}</code>"
    head += f"<pre>{_safe(chr(10).join(quotes))}</pre>" if quotes else ""
    kind = finding.severity if finding.counts else "info"
    return f"<section class={kind}>{head}{foot}</section>\n"


def _safe(text: str) -> str:
    return escape_html.escape(console.plain(text))


_PAGE = """<!doctype html>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>preflight: {verdict}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }}
td {{ padding: .1rem .8rem .1rem 0; vertical-align: top }} td:first-child, h1 {{ text-transform: uppercase }}
.fail td:first-child, .error td:first-child {{ color: #d33; font-weight: bold }}
.warn td:first-child {{ color: #b80 }} .pass td:first-child {{ color: #2a2 }}
section {{ border-left: 4px solid #888; padding-left: 1rem; margin: 1.5rem 0 }}
section.fail, section.error {{ border-color: #d33 }} section.warn {{ border-color: #b80 }} h2 {{ font-size: 1.1rem }}
pre {{ overflow-x: auto }}
</style>
<h1>{verdict}</h1><p>{about}</p>
<table>
{rows}</table>
{found}"""


def junit(report: Report) -> str:
    """For CI systems: a test case a check; fail and error are failures, skip is skipped."""
    checks = report["checks"]
    failed = sum(check["status"] in ("fail", "error") for check in checks)
    suite = ElementTree.Element(
        "testsuite", name="preflight", tests=str(len(checks)), failures=str(failed),
        skipped=str(sum(check["status"] == "skip" for check in checks)), time=str(report["seconds"]),
        timestamp=report["started"].rstrip("Z"),
    )  # fmt: skip
    for check in checks:
        family, _, name = check["check"].partition(".")
        case = ElementTree.SubElement(suite, "testcase", classname=family, name=name, time=str(check["seconds"]["max"]))
        if check["status"] == "skip":
            ElementTree.SubElement(case, "skipped", message=console.plain(check["skipped"]))
        elif check["status"] in ("fail", "error"):
            first = check["findings"][0]["message"] if check["findings"] else check["status"]
            failure = ElementTree.SubElement(case, "failure", message=console.plain(first))
            failure.text = "\n".join(line for finding in findings_of(check) for line in console.finding_lines(finding))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
