"""The report for people, and for tools that do not read JSON: Markdown, JUnit, and the page."""

from xml.etree import ElementTree

from preflight.core.finding import Reported
from preflight.results import console
from preflight.results.page import whole
from preflight.results.report import Report


def markdown(report: Report) -> str:
    """For a ticket or a chat."""
    lines = [f"# preflight: {report.verdict.upper()}", "", console.about(report), ""]
    lines += ["| status | check | seconds | |", "|---|---|---|---|"]
    for check in report.checks:
        note = check.skipped or check.summary or check.title
        lines.append(f"| {check.status} | {check.check} | {check.seconds.max:.1f} | {_cell(note)} |")
    lines += [line for drawn in [console.pictures(report)] if drawn for line in ("", "```text", *drawn, "```")]
    for finding in console.merged(report):
        lines += [
            "",
            f"## {_weight(finding)}: {_culprit(finding)}",
            "",
            f"`{finding.code}`: {console.plain(finding.message)}",
            "",
            f"Fix: {console.plain(console.fix(finding))}",
        ]
        if finding.noticed_by:
            lines += ["", f"Noticed by ranks {finding.noticed_by}, which are not to blame."]
    return "\n".join(lines) + "\n"


def _weight(finding: Reported) -> str:
    if finding.waived is None:
        return "not measured" if console.is_skip(finding) else finding.severity
    return f"{finding.severity}, waived until {finding.waived['until']} ({_cell(finding.waived['reason'])})"


def _culprit(finding: Reported) -> str:
    return console.plain(console.culprit(finding)) or "no known culprit"


def _cell(text: str) -> str:
    return console.plain(text).replace("|", "\\|").replace("\n", " ")


def junit(report: Report) -> str:
    """For CI systems: one test case per check; fail and error are failures, skip is skipped."""
    checks = report.checks
    failed = sum(check.status in ("fail", "error") for check in checks)
    suite = ElementTree.Element(
        "testsuite", name="preflight", tests=str(len(checks)), failures=str(failed),
        skipped=str(sum(check.status == "skip" for check in checks)), time=str(report.seconds),
        timestamp=report.started.rstrip("Z"),
    )  # fmt: skip
    for check in checks:
        family, _, name = check.check.partition(".")
        case = ElementTree.SubElement(suite, "testcase", classname=family, name=name, time=str(check.seconds.max))
        if check.status == "skip":
            ElementTree.SubElement(case, "skipped", message=console.plain(check.skipped or ""))
        elif check.status in ("fail", "error"):
            first = check.findings[0].message if check.findings else check.status
            failure = ElementTree.SubElement(case, "failure", message=console.plain(first))
            failure.text = "\n".join(line for finding in check.findings for line in console.finding_lines(finding))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


TEXTS = {"report.md": markdown, "report.html": whole.html, "junit.xml": junit}
"""Files of `--report` for people and other tools."""
