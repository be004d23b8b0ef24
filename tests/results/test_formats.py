from xml.etree import ElementTree

import pytest

from preflight.results import formats
from preflight.results.page import whole
from preflight.results.report import Report
from tests import made

NASTY = """<script>alert("1")</script> & a|b 'c' {d} ]]> -->"""


def nasty() -> Report:
    return made.made_report(
        made.result(made.finding(message=NASTY, fix=NASTY, variable=NASTY, noticed_by="0-2"), summary=NASTY),
        made.result(made.finding("error"), check="plugin.error"),
        made.result(made.finding("warn"), check="plugin.warn"),
        made.result(check="plugin.skip", skipped=NASTY),
        made.result(check="site.weka.deep", outcomes=made.measured(0, seconds=2.5)),
    )


EMPTY = made.made_report()


# JUnit


def test_junit_is_xml_with_a_case_for_each_check() -> None:
    suite = ElementTree.fromstring(formats.junit(nasty()))
    assert suite.tag == "testsuite"
    counted = {name: suite.get(name) for name in ("name", "tests", "failures", "skipped", "time", "timestamp")}
    assert counted == {
        "name": "preflight", "tests": "5", "failures": "2", "skipped": "1", "time": "1.25",
        "timestamp": "2026-01-31T12:00:00",
    }  # fmt: skip
    cases = [(case.get("classname"), case.get("name"), [child.tag for child in case]) for case in suite]
    assert cases == [
        ("plugin", "made", ["failure"]),
        ("plugin", "error", ["failure"]),
        ("plugin", "warn", []),
        ("plugin", "skip", ["skipped"]),
        ("site", "weka.deep", []),
    ]
    assert suite[4].get("time") == "2.5"


def test_junit_keeps_every_character_of_a_message() -> None:
    suite = ElementTree.fromstring(formats.junit(nasty()))
    failure, skipped = suite[0][0], suite[3][0]
    assert failure.get("message") == NASTY
    assert skipped.get("message") == NASTY
    assert "noticed by ranks 0-2" in (failure.text or "")


def test_junit_of_nothing_is_an_empty_suite() -> None:
    suite = ElementTree.fromstring(formats.junit(EMPTY))
    assert suite.get("tests") == "0" and not list(suite)


# Markdown


def test_markdown_is_a_table_of_checks() -> None:
    lines = formats.markdown(nasty()).splitlines()
    assert lines[0] == "# preflight: FAIL"
    rows = [line for line in lines if line.startswith("|")][2:]
    assert [row.split(" | ")[1] for row in rows] == [
        "plugin.made", "plugin.error", "plugin.warn", "plugin.skip", "site.weka.deep",
    ]  # fmt: skip
    assert rows[-1] == "| pass | site.weka.deep | 2.5 | A made-up check. |"


def test_markdown_escapes_pipes_and_line_breaks_in_cells() -> None:
    made_report = made.made_report(made.result(summary="a|b\nc"))
    assert "| pass | plugin.made | 0.0 | a\\|b c |" in formats.markdown(made_report).splitlines()


def test_markdown_tells_each_finding_with_its_fix_and_its_victims() -> None:
    text = formats.markdown(made.made_report(made.result(made.finding(node="node-1", rank=3, noticed_by="0-2"))))
    assert "## fail: node-1, rank 3\n\n`plugin.made.bad`: it is 1, expected 2\n\nFix: mend it\n" in text
    assert "Noticed by ranks 0-2, which are not to blame." in text


@pytest.mark.parametrize("reader", [formats.markdown, whole.html, formats.junit])
def test_readers_merge_what_is_equal(reader: object) -> None:
    job = made.job(8, 8)
    made_report = made.made_report(made.result(*(made.finding(**job.where(rank)) for rank in range(16))), on=job)
    assert callable(reader)
    text = reader(made_report)
    assert text.count("ranks 0-15") == {formats.markdown: 1, whole.html: 2}.get(reader, 0)


def test_markdown_of_nothing_is_a_page() -> None:
    assert formats.markdown(EMPTY).startswith("# preflight: ERROR")
