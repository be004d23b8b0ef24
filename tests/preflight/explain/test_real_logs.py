"""Real logs, where they lie beside the project: each named, the healthy ones in silence."""

import jsonschema
import pytest

from preflight import report
from tests import explained_logs
from tests.explained_logs import Judged

pytestmark = pytest.mark.skipif(not explained_logs.LOGS.is_dir(), reason="no real logs lie in ../shared/nccl_logs")
FEWEST = 0.95
"""Of the logs that are there to learn from; others are harder."""


@pytest.fixture(scope="module")
def logs() -> list[Judged]:
    return list(explained_logs.judged())


def test_the_right_cause_comes_first(logs: list[Judged]) -> None:
    wrong = {one.label["id"]: (one.label["category"], one.slug) for one in logs if not one.fair}
    assert len(wrong) <= (1 - FEWEST) * len(logs), wrong


def test_a_healthy_log_has_no_finding(logs: list[Judged]) -> None:
    """Where slower paths are a fair answer they may be told of."""
    healthy = [one for one in logs if one.label["category"] == "healthy"]
    assert {one.label["id"]: one.slug for one in healthy if not one.fair} == {}


def test_every_report_keeps_its_contract(logs: list[Judged]) -> None:
    for one in logs:
        jsonschema.validate(one.report, report.schema())
        for finding in report.findings(one.report):
            assert "{" not in finding["message"] and finding["fix"], finding
            assert finding["evidence"]["lines"], finding


def test_the_page_tells_todays_accuracy(logs: list[Judged]) -> None:
    assert explained_logs.table(logs) in explained_logs.PAGE.read_text(), "run python -m tests.explained_logs"
