from typing import Any

import pytest

from preflight.check import Severity
from preflight.core.finding import Reported
from preflight.planning.policy import Policy, Waiver
from preflight.results import console, formats
from preflight.results.page import whole
from preflight.results.report_nodes import bad_nodes, good_nodes
from preflight.results.result import Result
from tests import made

JOB = made.job(2, 2)
CODE = "plugin.made.bad"
TODAY = "2026-06-30"


def policy(*waivers: Waiver, own: str = "") -> Policy:
    return Policy({CODE: own} if own else {}, waivers, TODAY)


def waiver(until: str = "2026-07-01", node: str = "") -> Waiver:
    return Waiver(CODE, until, "ticket 7", node)


def applied(rules: Policy, *findings: Reported) -> Result:
    return made.result(*rules.applied(findings, JOB), outcomes=made.measured(0, 1))


@pytest.mark.parametrize("severity", [Severity.INFO, Severity.WARN, Severity.FAIL])
def test_a_severity_of_ones_own(severity: Severity) -> None:
    result = applied(policy(own=severity), made.finding("warn"))
    assert result.findings[0].severity == severity
    assert result.status == ("pass" if severity is Severity.INFO else severity)
    shown = "      info by --config; the check says warn" in console.ending(made.made_report(result, on=JOB), [])
    assert shown is (severity is Severity.INFO)


def test_a_waiver_takes_the_finding_out_of_the_count_and_leaves_it_to_be_seen() -> None:
    result = applied(policy(waiver()), made.finding(**JOB.where(3)))
    assert result.status == "pass"
    assert result.findings[0].waived == {"until": "2026-07-01", "reason": "ticket 7"}


@pytest.mark.parametrize(("until", "status"), [("2026-06-30", "pass"), ("2026-06-29", "fail")])
def test_it_holds_on_its_last_day_and_no_longer(until: str, status: str) -> None:
    result = applied(policy(waiver(until)), made.finding())
    assert result.status == status
    assert (result.findings[0].waiver_ended is not None) is (status == "fail")


@pytest.mark.parametrize(
    ("where", "status"),
    [({"node": "node-1"}, "pass"), ({"rank": 3}, "pass"), ({"node": "node-0"}, "fail"), ({"rank": 0}, "fail"),
     ({}, "fail")],
)  # fmt: skip
def test_of_one_node_only(where: dict[str, Any], status: str) -> None:
    assert applied(policy(waiver(node="node-1")), made.finding(**where)).status == status


def test_another_code_is_not_waived() -> None:
    assert applied(policy(waiver()), made.finding(code="plugin.made.other")).status == "fail"


def test_what_was_not_measured_cannot_be_waived_or_made_less() -> None:
    result = applied(policy(waiver(), own="info"), made.finding("error"))
    assert result.status == "error" and result.findings[0].counts


def test_a_node_under_a_waiver_is_good() -> None:
    found = made.finding(node="node-1")
    bare = made.made_report(made.result(found), on=JOB)
    eased = made.made_report(applied(policy(waiver()), found), on=JOB)
    assert (bad_nodes(bare), good_nodes(bare)) == (["node-1"], ["node-0"])
    assert (bad_nodes(eased), good_nodes(eased)) == ([], ["node-0", "node-1"])


def test_every_reader_shows_it() -> None:
    eased = made.made_report(applied(policy(waiver()), made.finding(node="node-1")), on=JOB)
    lines = console.ending(eased, [])
    assert "WAIVED node-1  [plugin.made.bad]" in lines
    assert "      waived until 2026-07-01: ticket 7" in lines
    assert "1 check: 1 pass, 1 finding waived" in lines
    assert "1 finding waived" in console.check_line(eased.checks[0])
    assert console.sentence(eased) == "preflight: PASS"
    assert "waived until 2026-07-01 (ticket 7)" in formats.markdown(eased)
    assert "waived until 2026-07-01: ticket 7" in whole.html(eased)
    assert 'failures="0"' in formats.junit(eased)


def test_it_comes_back_from_the_report() -> None:
    rules = policy(waiver(), own="warn")
    again = Policy.from_json(rules.to_json())
    assert (again.severities, again.waivers) == (rules.severities, rules.waivers)
