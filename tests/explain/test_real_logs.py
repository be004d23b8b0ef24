"""Real logs, where they lie beside the project: each named, the healthy ones in silence."""

import jsonschema
import pytest

from preflight.results import report
from tests import explained_logs
from tests.explained_logs import Judged
from tests.made import SCHEMA

pytestmark = pytest.mark.skipif(not explained_logs.LOGS.is_dir(), reason="no real logs lie in ../shared/nccl_logs")
FEWEST = 0.95
"""Of the logs that are there to learn from; others are harder."""


@pytest.fixture(scope="module")
def logs() -> list[Judged]:
    return list(explained_logs.judged())


def test_the_right_cause_comes_first(logs: list[Judged]) -> None:
    wrong = {log.label["id"]: (log.label["category"], log.slug) for log in logs if not log.fair}
    assert len(wrong) <= (1 - FEWEST) * len(logs), wrong


def test_a_healthy_log_has_no_finding(logs: list[Judged]) -> None:
    """Where slower paths are a fair answer they may be told of."""
    healthy = [log for log in logs if log.label["category"] == "healthy"]
    assert {log.label["id"]: log.slug for log in healthy if not log.fair} == {}


def test_every_report_keeps_its_contract(logs: list[Judged]) -> None:
    for log in logs:
        jsonschema.validate(log.report, SCHEMA)
        for finding in report.findings(log.report):
            assert "{" not in finding.message and finding.fix, finding
            assert finding.evidence["lines"], finding


def test_the_page_tells_todays_accuracy(logs: list[Judged]) -> None:
    assert explained_logs.table(logs) in explained_logs.PAGE.read_text(), "run python -m tests.explained_logs"
