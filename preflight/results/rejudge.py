"""`preflight show --judge`: judges the facts of a saved report again, with new settings or a newer preflight."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from preflight.core import rank_ranges
from preflight.core.answer import Returned
from preflight.core.facts import FactsStore
from preflight.core.finding import RUN
from preflight.core.groups import Group
from preflight.core.job import Job
from preflight.core.outcome import Outcome
from preflight.core.secrets import HIDDEN, Scrubber
from preflight.errors import UsageError
from preflight.planning import registry
from preflight.planning.policy import Policy
from preflight.planning.registry import Source, Spec
from preflight.results import already_measured, judging, result
from preflight.results.cleaning import without_secrets
from preflight.results.report import CheckEntry, Report
from preflight.results.result import Result

Judging = Callable[..., dict[str, Any]]
"""As `judging.call_judge`."""


def judge_again(
    report: Report,
    book: FactsStore,
    sources: Mapping[str, Source],
    settings: Mapping[str, str],
    policy: Policy | None = None,
    judge: Judging = judging.call_judge,
) -> Report:
    """A new report from the same facts and outcomes; without a `policy` by the report's own. Raises UsageError for
    a check that does not exist here. `judge`: what judges a check; history.compare has one that knows the past."""
    job, policy = report.job, policy or report.policy
    hidden = withheld(report, settings)
    known = {name: text for name, text in report.options.items() if name not in hidden} | {**settings}
    results: list[Result] = []
    for old in report.checks:
        results.append(_again(old, job, book, sources, known, policy, result.groups_of(results), judge))
    results = already_measured.resolved(results, job)
    groups, verdict = result.groups_of(results), result.verdict(results)
    again = replace(
        report,
        checks=[_judged(old, new.entry(job, groups)) for old, new in zip(report.checks, results, strict=True)],
        verdict=verdict,
        exit_code=result.exit_code(verdict, results, strict=report.strict),
        options={**report.options, **settings},
        policy=policy,
    )
    return without_secrets(again, Scrubber({**os.environ, **settings}))


def _judged(old: CheckEntry, new: CheckEntry) -> CheckEntry:
    """What was measured, of the old entry, with what the new one says of it."""
    return replace(
        old, status=new.status, findings=new.findings, summary=new.summary, skipped=new.skipped,
        picture=new.picture or old.picture, aside=old.aside, plots=new.plots or old.plots,
    )  # fmt: skip


def withheld(report: Report, settings: Mapping[str, str]) -> list[str]:
    """The options whose value the report withholds as a secret and that `settings` do not give."""
    return [name for name, text in report.options.items() if HIDDEN in text and name not in settings]


def _again(
    old: CheckEntry,
    job: Job,
    book: FactsStore,
    sources: Mapping[str, Source],
    settings: Mapping[str, str],
    policy: Policy,
    groups: Iterable[Group],
    judge: Judging,
) -> Result:
    id_, outcomes = old.check, outcomes_of(old, book)
    if id_ == RUN or not outcomes:
        return Result(id_, old.title, findings=policy.applied(old.findings, job), skipped=old.skipped)
    if id_ not in sources:
        raise UsageError(f"{id_}: this report's check is not here; name its plugin with --plugin")
    try:
        check = registry.load(sources[id_])
    except Exception as error:
        raise UsageError(f"{id_}: cannot be loaded: {registry.load_error(sources[id_], error)}") from None
    answer = Returned(judge(check.source, job, outcomes, book, settings, groups))
    again = judging.result_of(Spec(check.source, check.title, check.plan), outcomes, job, answer, policy)
    was_asked_for = any(plot.get("screen") == "always" for plot in old.plots)
    return again.asked_for() if was_asked_for else again


def outcomes_of(entry: CheckEntry, book: FactsStore) -> dict[int, Outcome]:
    """The outcomes of all ranks: a report lists only those that did not measure; the others have facts."""
    outcomes = {rank: Outcome("measured") for rank in book.ranks(entry.check)}
    for alike in entry.outcomes:
        outcomes |= dict.fromkeys(rank_ranges.from_text(alike.ranks), alike.outcome)
    return outcomes
