from typing import Any

import pytest

from preflight.core.finding import Reported
from preflight.core.outcome import Outcome
from preflight.planning.policy import Policy, Waiver
from preflight.results import result
from preflight.results.report import RankSeconds
from preflight.results.result import Result
from tests import made


def of(*severities: str, skipped: str | None = None, check: str = "plugin.made") -> Result:
    return made.result(*(made.finding(severity) for severity in severities), check=check, skipped=skipped)


@pytest.mark.parametrize(
    ("severities", "skipped", "status"),
    [
        ((), None, "pass"),
        (("info",), None, "pass"),
        (("warn", "info"), None, "warn"),
        (("warn", "error"), None, "error"),
        (("error", "warn", "fail"), None, "fail"),
        ((), "no library", "skip"),
        (("info",), "no library", "skip"),
        (("warn",), "no library", "warn"),
        (("fail",), "no library", "fail"),
    ],
)
def test_the_status_is_the_worst_that_applies(severities: tuple[str, ...], skipped: str | None, status: str) -> None:
    assert of(*severities, skipped=skipped).status == status


@pytest.mark.parametrize(
    ("results", "verdict", "code", "strict_code"),
    [
        ([], "error", 3, 3),
        ([of(skipped="no library")], "error", 3, 3),
        ([of()], "pass", 0, 0),
        ([of("info")], "pass", 0, 0),
        ([of(), of(skipped="no library")], "pass", 0, 1),
        ([of("warn")], "warn", 0, 1),
        ([of("error"), of("warn")], "error", 3, 3),
        ([of("error"), of("fail")], "fail", 1, 1),
        ([of("fail"), of()], "fail", 1, 1),
    ],
)
def test_the_verdict_is_the_worst_of_all(results: list[Result], verdict: str, code: int, strict_code: int) -> None:
    assert result.verdict(results) == verdict
    assert result.exit_code(verdict, results, strict=False) == code
    assert result.exit_code(verdict, results, strict=True) == strict_code


# Parts that were not measured

PART = made.finding("info", "variant b was not run: there was no time", not_measured=True)


@pytest.mark.parametrize(
    ("others", "skipped", "status", "why"),
    [
        ((), None, "skip", f"in part: {PART.message}"),
        (("info",), None, "skip", f"in part: {PART.message}"),
        (("warn",), None, "warn", f"in part: {PART.message}"),
        (("fail",), None, "fail", f"in part: {PART.message}"),
        ((), "rank 1: no library", "skip", f"rank 1: no library; in part: {PART.message}"),
    ],
)
def test_a_part_that_was_not_measured_is_no_pass(
    others: tuple[str, ...], skipped: str | None, status: str, why: str
) -> None:
    only = made.result(PART, *(made.finding(severity) for severity in others), skipped=skipped)
    assert (only.status, only.entry(MANY).skipped) == (status, why)
    assert result.exit_code(result.verdict([only, of()]), [only, of()], strict=True) == 1


def test_a_check_that_has_measured_the_rest_is_something() -> None:
    only = made.result(PART)
    assert result.verdict([only]) == "pass" and result.exit_code("pass", [only], strict=False) == 0
    assert result.verdict([made.result(PART, skipped="no library")]) == "error"


def test_no_policy_makes_a_pass_of_what_was_not_measured() -> None:
    waived = Policy(waivers=(Waiver(PART.code, "2999-12-31", "known"),)).applied([PART], MANY)
    assert made.result(*waived).status == "skip"
    louder = Policy(severities={PART.code: "fail"}).applied([PART], MANY)
    assert made.result(*louder).status == "fail"
    milder = Policy(severities={PART.code: "info"}).applied([PART], MANY)
    assert made.result(*milder).status == "skip"


def test_parts_are_told_once_and_a_few_of_them() -> None:
    parts = [made.finding("info", f"part {number}", not_measured=True) for number in (0, 0, 1, 2, 3)]
    assert made.result(*parts).why_skipped == "in part: part 0; part 1; and 2 more"


# Culprits


@pytest.mark.parametrize(
    ("findings", "ranks"),
    [
        ([], set()),
        ([made.finding(rank=3, node="node-1")], {3}),
        ([made.finding(node="node-1")], {2, 3}),
        ([made.finding(rank=0), made.finding("error", node="node-1")], {0, 2, 3}),
        ([made.finding(rank=0), made.finding("warn", rank=1)], {0}),
        ([made.finding(rank=0), made.finding()], set()),
        ([made.finding(node="elsewhere")], set()),
    ],
    ids=["none", "a rank", "a node", "both", "a warning", "one without a culprit", "an unknown node"],
)
def test_the_culprits_are_ranks(findings: list[Reported], ranks: set[int]) -> None:
    assert made.result(*findings).culprits(made.job(2, 2)) == ranks


# Merging

MANY = made.job(8, 8)


def on_ranks(*ranks: int, **more: Any) -> list[Reported]:
    return [made.finding(**MANY.where(rank), **more) for rank in ranks]


def test_equal_findings_become_one_with_their_ranks() -> None:
    (merged,) = result.merge(on_ranks(*range(16), variable="MASTER_ADDR"), MANY, more_than=1)
    assert merged.where == {"variable": "MASTER_ADDR"}
    assert merged.ranks == "0-15"
    assert merged.nodes == ["node-0", "node-1"]


def test_merged_findings_of_one_node_keep_it() -> None:
    (merged,) = result.merge(on_ranks(8, 9, 11), MANY, more_than=1)
    assert (merged.where, merged.ranks, merged.nodes) == ({"node": "node-1"}, "8-9,11", ["node-1"])


@pytest.mark.parametrize(
    "other",
    [
        made.finding(message="it is 3, expected 2", **MANY.where(1)),
        made.finding("warn", **MANY.where(1)),
        made.finding(code="plugin.made.worse", **MANY.where(1)),
        made.finding(fix="replace it", **MANY.where(1)),
        made.finding(noticed_by="2", **MANY.where(1)),
        made.finding(evidence={"a": 1}, **MANY.where(1)),
        made.finding(gpu=3, **MANY.where(1)),
    ],
    ids=["message", "severity", "code", "fix", "victims", "evidence", "gpu"],
)
def test_findings_that_differ_stay_apart(other: Reported) -> None:
    first = made.finding(**MANY.where(0))
    assert result.merge([first, other], MANY, more_than=1) == [first, other]


def test_few_equal_findings_stay_as_they_are() -> None:
    findings = on_ranks(*range(16))
    assert result.merge(findings, MANY, more_than=16) == findings


def test_a_report_of_many_ranks_stays_small() -> None:
    job = made.job(*[8] * 1024)
    everybody = made.result(*(made.finding(**job.where(rank)) for rank in range(8192)))
    (only,) = everybody.entry(job).findings
    assert only.ranks == "0-8191" and len(only.nodes or ()) == 1024


# As the report shows it


def test_findings_are_listed_worst_first() -> None:
    listed = of("info", "warn", "fail", "error").entry(MANY).findings
    assert [finding.severity for finding in listed] == ["fail", "error", "warn", "info"]


def test_seconds_are_the_median_and_the_slowest_ranks() -> None:
    outcomes = {rank: Outcome("measured", seconds) for rank, seconds in enumerate((1.0, 9.0, 2.0))}
    assert made.result(outcomes=outcomes).entry(MANY).seconds == RankSeconds(2.0, 9.0, 1)
    assert made.result().entry(MANY).seconds == RankSeconds(0.0, 0.0, None)


def test_only_outcomes_that_were_not_measured_are_listed() -> None:
    outcomes = {**made.measured(0, 1), 2: Outcome("skipped", reason="no library")}
    (entry,) = made.result(outcomes=outcomes, skipped="rank 2: no library").entry(MANY).outcomes
    assert (entry.ranks, entry.outcome.kind, entry.outcome.reason) == ("2", "skipped", "no library")


def test_equal_outcomes_of_one_node_are_one_entry() -> None:
    outcomes = {rank: Outcome("skipped", float(rank), reason="no library") for rank in range(16)}
    listed = made.result(outcomes=outcomes).entry(MANY).outcomes
    assert [(entry.ranks, entry.node, entry.outcome.seconds) for entry in listed] == [
        ("0-7", "node-0", 7.0),
        ("8-15", "node-1", 15.0),
    ]


@pytest.mark.parametrize(
    "other",
    [
        Outcome("raised", reason="no library"),
        Outcome("skipped", reason="no device"),
        Outcome("skipped", reason="no library", doing="looking"),
        Outcome("skipped", reason="no library", state="T"),
        Outcome("skipped", reason="no library", aborted=True),
        Outcome("skipped", reason="no library", in_collective=True),
    ],
    ids=["kind", "reason", "doing", "state", "aborted", "in collective"],
)
def test_outcomes_that_differ_stay_apart(other: Outcome) -> None:
    outcomes = {0: Outcome("skipped", reason="no library"), 1: other}
    assert [entry.ranks for entry in made.result(outcomes=outcomes).entry(MANY).outcomes] == ["0", "1"]


def test_equal_findings_of_nodes_are_one() -> None:
    job = made.job(2, 2, 2)
    found = [made.finding(node=node.node) for node in job.nodes]
    (merged,) = result.merge([*found], job, more_than=1)
    assert (merged.where, merged.nodes) == ({}, ["node-0", "node-1", "node-2"]) and not merged.ranks
    assert result.merge([*found, made.finding()], job, more_than=1) == [*found, made.finding()], "one names nobody"


def test_a_check_applies_unless_every_rank_says_that_there_is_nothing_to_check() -> None:
    nothing = Outcome("skipped", reason="no GPU", slug="not_applicable")
    failed = Outcome("skipped", reason="no library")
    assert not made.result(outcomes={0: nothing, 1: nothing}).applies
    assert made.result(outcomes={0: nothing, 1: failed}).applies
    assert made.result(made.finding(), outcomes={0: nothing}).applies
    assert made.result().applies
