"""Made-up jobs, findings, outcomes and reports for tests of several rooms."""

import json
from collections.abc import Mapping
from typing import Any

import jsonschema

from preflight.core.finding import Reported
from preflight.core.job import Job, Node
from preflight.core.outcome import Outcome
from preflight.results import report
from preflight.results.report import Report
from preflight.results.result import Result
from tests.sizes import ROOT

SCHEMA = json.loads((ROOT / "preflight" / "results" / "report.schema.json").read_text())
_BY_SCHEMA = jsonschema.Draft202012Validator(SCHEMA)
"""Made once: jsonschema.validate looks at the schema itself each time, which takes 60 ms of CPU; a report takes 2."""


def assert_valid(report: object) -> None:
    """By the schema. Raises jsonschema.ValidationError."""
    _BY_SCHEMA.validate(report)


def job(*sizes: int, backend: str = "gloo", world_size: int | None = None) -> Job:
    """A node for each size: `job(2, 3)` has ranks 0-1 on node-0 and 2-4 on node-1."""
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    nodes = tuple(
        Node(f"node-{number}", number, tuple(range(first, first + size)), (f"10.0.0.{number + 1}",))
        for number, (first, size) in enumerate(zip(firsts, sizes, strict=True))
    )
    return Job("torchrun", sum(sizes) if world_size is None else world_size, backend, nodes)


def finding(
    severity: str = "fail",
    message: str = "it is 1, expected 2",
    *,
    code: str = "plugin.made.bad",
    noticed_by: str = "",
    evidence: Mapping[str, Any] | None = None,
    fix: str = "mend it",
    action: str = "",
    not_measured: bool = False,
    **where: Any,
) -> Reported:
    return Reported(
        severity=severity, code=code, message=message, where=where, noticed_by=noticed_by,
        evidence=dict(evidence or {}), fix=fix, action=action, not_measured=not_measured,
    )  # fmt: skip


def result(*findings: Reported, check: str = "plugin.made", **more: Any) -> Result:
    return Result(check, more.pop("title", "A made-up check."), findings=list(findings), **more)


def measured(*ranks: int, seconds: float = 1.0) -> dict[int, Outcome]:
    return {rank: Outcome("measured", seconds) for rank in ranks}


def made_report(
    *results: Result, on: Job | None = None, strict: bool = False, options: Mapping[str, str] | None = None
) -> Report:
    """By the real `report.build`, and valid by the schema."""
    built = report.build(
        run_id="0123456789ab",
        started="2026-01-31T12:00:00Z",
        seconds=1.25,
        command=["--all", "--strict"] if strict else ["--all"],
        options=options or {},
        job=on or job(2, 2),
        results=list(results),
        strict=strict,
    )
    assert_valid(built)
    return built
