from dataclasses import replace
from typing import Any

import pytest

from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.results import console
from preflight.results.result import Result
from tests import made


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (made.job(1), "preflight: 1 rank on 1 node (torchrun, gloo), full, at most 900 s"),
        (made.job(8, 8, backend="nccl"), "preflight: 16 ranks on 2 nodes (torchrun, nccl), full, at most 900 s"),
        (
            replace(made.job(2), launcher="own"),
            "preflight: 2 ranks on 1 node (its own ranks, gloo), full, at most 900 s",
        ),
        (made.job(*[8] * 1024), "preflight: 8,192 ranks on 1,024 nodes (torchrun, gloo), full, at most 900 s"),
    ],
)
def test_the_header_says_who_runs_what(job: Job, line: str) -> None:
    assert console.header(job, "full", 900.0) == line


def line_of(result: Result, **more: Any) -> str:
    return console.check_line(result.entry(made.job(2, 2)), **more)


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (made.result(summary="4 ranks in 0.3 s"), "PASS  plugin.made            1.0 s  4 ranks in 0.3 s"),
        (made.result(), "PASS  plugin.made            1.0 s  A made-up check."),
        (made.result(made.finding("info")), "PASS  plugin.made            1.0 s  A made-up check."),
        (made.result(skipped="no library"), "SKIP  plugin.made            1.0 s  skipped: no library"),
        (made.result(made.finding("warn")), "WARN  plugin.made            1.0 s  1 finding, see below"),
        (
            made.result(made.finding(), made.finding(rank=1)),
            "FAIL  plugin.made            1.0 s  2 findings, see below",
        ),
        (made.result(made.finding("error")), "ERROR plugin.made            1.0 s  1 finding, see below"),
    ],
)
def test_each_check_is_one_line(result: Result, line: str) -> None:
    assert line_of(Result(**{**vars(result), "outcomes": made.measured(0, 1)})) == line


def test_a_line_is_cut_to_the_width() -> None:
    line = line_of(made.result(summary="x" * 200), width=60)
    assert len(line) == 60 and line.endswith("x…")


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (made.finding(), ""),
        (made.finding(node="node-1", rank=3), "node-1, rank 3"),
        (made.finding(node="node-1", gpu=3, link=7), "node-1, gpu 3, link 7"),
        (made.finding(node="node-1", rank=3, variable="MASTER_ADDR"), "node-1, rank 3, variable MASTER_ADDR"),
        (made.finding(rank=3, peer_rank=1), "rank 3, peer rank 1"),
        (made.finding(file="model.py", line=12), "file model.py:12"),
        (made.finding(file="model.py"), "file model.py"),
        (replace(made.finding(), ranks="8-15", nodes=["node-1"]), "node-1, ranks 8-15"),
        (replace(made.finding(), ranks="0-3", nodes=["a", "b"]), "a, b, ranks 0-3"),
        (replace(made.finding(), ranks="0-31", nodes=["a", "b", "c", "d"]), "4 nodes, ranks 0-31"),
        (replace(made.finding(), nodes=["a", "b", "c", "d"]), "a, b, c, d"),
        (replace(made.finding(), ranks="1-2", nodes=[""]), "ranks 1-2"),
    ],
)
def test_the_culprit_is_named_in_words(finding: Reported, text: str) -> None:
    assert console.culprit(finding) == text


def test_a_finding_is_culprit_sentence_victims_and_fix() -> None:
    finding = made.finding(node="node-1", rank=3, noticed_by="0-2")
    assert console.finding_lines(finding) == [
        "FAIL  node-1, rank 3  [plugin.made.bad]",
        "      it is 1, expected 2",
        "      noticed by ranks 0-2, which are not to blame",
        "      fix: mend it",
    ]


def test_one_victim_is_not_to_blame() -> None:
    assert "      noticed by rank 2, which is not to blame" in console.finding_lines(made.finding(noticed_by="2"))


def test_without_a_culprit_the_code_comes_first() -> None:
    assert console.finding_lines(made.finding())[0] == "FAIL  [plugin.made.bad]"
    expected = "preflight: FAIL: it is 1, expected 2 [plugin.made.bad]"
    assert console.sentence(made.made_report(made.result(made.finding()))) == expected


def test_long_sentences_are_wrapped_and_commands_are_kept_whole() -> None:
    command = "nvidia-smi--with-a-very-long-option-that-is-wider-than-the-screen"
    lines = console.finding_lines(made.finding(message="word " * 50, fix=command), width=40)
    assert all(len(line) <= 40 for line in lines if command not in line)
    assert any(command in line for line in lines)


def ending(*results: Result, **more: Any) -> list[str]:
    return console.ending(made.made_report(*results, **more), ["report: out"])


def test_the_ending_lists_findings_worst_first() -> None:
    lines = ending(
        made.result(made.finding("info", "one"), made.finding("warn", "two")),
        made.result(made.finding("error", "three"), made.finding("fail", "four"), check="plugin.other"),
    )
    assert [line.strip() for line in lines if line.strip() in ("one", "two", "three", "four")] == [
        "four", "three", "two", "one",
    ]  # fmt: skip


def test_the_ending_merges_what_is_equal() -> None:
    job = made.job(8, 8)
    lines = ending(made.result(*(made.finding(**job.where(rank)) for rank in range(8, 16))), on=job)
    assert "FAIL  node-1, ranks 8-15  [plugin.made.bad]" in lines
    assert sum("[plugin.made.bad]" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("results", "last"),
    [
        ([made.result()], "verdict: PASS (nothing stands against this job), exit code 0, 1.2 s"),
        ([made.result(made.finding("warn"))], "verdict: WARN (it can run; see the warnings), exit code 0, 1.2 s"),
        ([made.result(made.finding())], "verdict: FAIL (do not start this job), exit code 1, 1.2 s"),
        ([made.result(made.finding("error"))],
         "verdict: ERROR (preflight could not finish its own work: this is no clean bill), exit code 3, 1.2 s"),
        ([made.result(skipped="no library")], "verdict: ERROR (nothing was measured), exit code 3, 1.2 s"),
        ([], "verdict: ERROR (nothing was measured), exit code 3, 1.2 s"),
    ],
    ids=["pass", "warn", "fail", "error", "all skipped", "nothing"],
)  # fmt: skip
def test_the_verdict_is_the_last_line(results: list[Result], last: str) -> None:
    lines = ending(*results)
    assert lines[-1] == last
    assert lines[-2] == "report: out"


def test_strict_says_why_a_pass_is_a_failure() -> None:
    strict = made.made_report(made.result(), made.result(check="plugin.c", skipped="no library"), strict=True)
    assert console.ending(strict, [])[-1] == (
        "verdict: PASS (nothing stands against this job; 1 check skipped, so not known; a failure by --strict), "
        "exit code 1, 1.2 s"
    )


def test_checks_are_counted_and_skips_explained() -> None:
    lines = ending(
        made.result(), made.result(check="plugin.b"), made.result(check="plugin.c", skipped="no library"),
    )  # fmt: skip
    assert "3 checks: 1 skip, 2 pass" in lines
    assert "      skipped plugin.c: no library" in lines


def test_quiet_is_what_is_no_pass_and_the_verdict_and_verbose_is_all() -> None:
    many = [made.finding("warn", f"message {rank}", rank=rank, node=f"node-{rank}") for rank in range(6)]
    report = made.made_report(made.result(*many, made.finding("info", "known"), picture=["a line of it"]))
    usual, quiet, verbose = (
        "\n".join(console.ending(report, ["report: out"], detail=detail))
        for detail in (console.Detail.USUAL, console.Detail.QUIET, console.Detail.VERBOSE)
    )
    assert "message 5" not in usual and "3 more [plugin.made.bad]" in usual and "a line of it" in usual
    assert "message 0" in quiet and "verdict: WARN" in quiet
    assert all(text not in quiet for text in ("known", "a line of it", "1 check:"))
    assert "message 5" in verbose and "more [" not in verbose


def test_checks_that_passed_do_not_stand_alone_above_a_failure() -> None:
    lines = ending(made.result(), made.result(made.finding(), check="preflight.run"))
    assert "1 check: 1 pass, and the run itself: fail" in lines and "verdict: FAIL" in lines[-1]


@pytest.mark.parametrize(
    ("aside", "severity", "shown"), [(False, "info", True), (True, "info", False), (True, "warn", True)]
)
def test_a_picture_that_stands_aside_is_on_the_screen_only_where_the_check_did_not_pass(
    aside: bool, severity: str, shown: bool
) -> None:
    report = made.made_report(made.result(made.finding(severity), picture=["a line of it"], aside=aside))
    assert ("    │ a line of it" in console.ending(report, [])) is shown
    assert "    │ a line of it" in console.pictures(report)


def test_the_sentence_is_the_worst_finding() -> None:
    results = [made.result(made.finding("warn", "slow"), made.finding(message="dead", node="node-1", rank=3))]
    expected = "preflight: FAIL: node-1, rank 3: dead [plugin.made.bad] (and 1 more)"
    assert console.sentence(made.made_report(*results)) == expected


def test_without_findings_the_sentence_is_the_verdict() -> None:
    assert console.sentence(made.made_report(made.result())) == "preflight: PASS"


def test_while_ranks_are_missing_it_says_which() -> None:
    assert console.waiting(4, [0, 3], 12.4) == "preflight: waiting for ranks 1-2 (2 of 4 ranks came), at most 12 s more"
    scattered = console.waiting(8192, range(0, 8192, 2), 0.2)
    assert len(scattered) == 200 and scattered.endswith("…")


def test_one_sentence_tells_what_counts_before_what_is_waived() -> None:
    waived = replace(made.finding("fail", "waived"), waived={"until": "2026-07-01", "reason": "ticket 7"})
    report = made.made_report(made.result(waived, made.finding("warn", "counts", code="plugin.made.other")))
    assert console.sentence(report) == "preflight: WARN: counts [plugin.made.other] (and 1 more)"


@pytest.mark.parametrize(("count", "whole"), [(3, 3), (4, 4), (5, 3)])
def test_of_a_kind_three_are_shown_or_all_where_there_is_one_more(count: int, whole: int) -> None:
    lines = list(console.found_lines([made.finding(node=f"node-{number}") for number in range(count)]))
    assert sum(line.startswith("FAIL") for line in lines) == whole
    assert any(line.strip().startswith(f"{count - whole} more") for line in lines) is (whole < count)
