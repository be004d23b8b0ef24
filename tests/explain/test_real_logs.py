"""Real logs, where they lie beside the project: each named, the healthy ones in silence."""

from pathlib import Path

import pytest

from preflight.explain.command import explain_paths
from tests import explained_logs
from tests.explained_logs import Judged
from tests.made import assert_valid

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


PREFIXES = (
    "ERROR:    ", "INFO:     127.0.0.1 - ", "(worker_7) : ", "2026-11-01 10:00:0{} - name - ERROR - ", "3: ",
    "10:00:0{} | ERROR | train | ", "2026-11-01 10:00:0{},123 ERROR train.py:5{} ", "[1,3]<stderr>: ", "[default3]:",
    "(RayTrainWorker pid=417, ip=10.0.0.2) ", "(Worker_TP3 pid=41) ERROR 11-01 10:00:0{} [multiproc_executor.py:54{}] ",
    "2026-11-01T10:00:0{}.123Z ", "| worker 3 | ", "stderr: ",
)  # fmt: skip
"""With a digit that differs from line to line. (A label of a rank changes verdicts: all lines are that rank's.)"""


@pytest.mark.more
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_that_each_line_has_changes_nothing(logs: list[Judged], prefix: str, tmp_path: Path) -> None:
    """Of loggers, launchers, Ray, vLLM and containers."""
    log, changed = tmp_path / "job.log", {}
    for judged in logs:
        lines = (explained_logs.LOGS / f"{judged.label['id']}.log").read_text().splitlines()
        log.write_text("".join(f"{prefix.replace('{}', str(at % 10))}{line}\n" for at, line in enumerate(lines)))
        found = next(iter(explain_paths([str(log)]).findings), None)
        slug = found.code.partition(".")[2] if found else "healthy"
        if slug != judged.slug:
            changed[judged.label["id"]] = (judged.slug, slug)
    assert changed == {}


def test_every_report_keeps_its_contract(logs: list[Judged]) -> None:
    for log in logs:
        assert_valid(log.report)
        for finding in log.report.findings:
            assert "{" not in finding.message and finding.fix, finding
            assert finding.evidence["lines"], finding


def test_the_page_tells_todays_accuracy(logs: list[Judged]) -> None:
    assert explained_logs.table(logs) in explained_logs.PAGE.read_text(), "run python -m tests.explained_logs"


def test_each_confidence_means_what_it_says(logs: list[Judged]) -> None:
    """Also where the logs of any one source are left out."""
    for level, goal in explained_logs.GOALS.items():
        those = [log for log in logs if log.confidence == level]
        assert explained_logs._least(those) >= goal, level
