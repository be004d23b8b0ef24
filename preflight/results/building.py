"""From the results of a run's checks to its report."""

from collections.abc import Mapping

from preflight._version import VERSION
from preflight.core.job import Job
from preflight.planning.policy import Policy
from preflight.results import already_measured, result
from preflight.results.report import Report
from preflight.results.result import Result


def build(
    *,
    run_id: str,
    started: str,
    seconds: float,
    command: list[str],
    options: Mapping[str, str],
    job: Job,
    results: list[Result],
    strict: bool = False,
    policy: Policy | None = None,
) -> Report:
    results = already_measured.resolved(results, job)
    verdict, groups = result.verdict(results), result.groups_of(results)
    return Report(
        preflight=VERSION,
        run=run_id,
        started=started,
        seconds=round(seconds, 2),
        verdict=verdict,
        exit_code=result.exit_code(verdict, results, strict=strict),
        command=command,
        options=dict(options),
        policy=policy or Policy(),
        strict=strict,
        job=job,
        checks=[result.entry(job, groups) for result in results],
    )
