"""Annotations of GitHub Actions."""

from preflight.results import annotations
from tests import made


def test_findings_become_annotations_worst_first() -> None:
    report = made.made_report(
        made.result(made.finding("warn", "it is slow"), made.finding("info", "it is known")),
        made.result(made.finding(message="50% lost:\nall", code="plugin.other.bad", node="node-1", rank=3)),
    )
    first, second = annotations.lines(report)
    assert first.startswith("::error title=plugin.other.bad::node-1, rank 3: 50%25 lost:%0Aall. ")
    assert second.startswith("::warning title=plugin.made.bad::it is slow. mend it")


def test_the_file_and_its_line_are_named() -> None:
    report = made.made_report(made.result(made.finding(file="a,b.py", line=7)))
    (line,) = annotations.lines(report)
    assert line.startswith("::error file=a%2Cb.py,line=7,title=plugin.made.bad::")


def test_github_shows_ten_of_a_kind_and_nothing_of_a_sound_run() -> None:
    many = [made.finding("fail", f"message {number}", rank=number, node="a") for number in range(12)]
    assert [*annotations.lines(made.made_report(made.result()))] == []
    assert len([*annotations.lines(made.made_report(made.result(*many)))]) <= annotations.MOST
