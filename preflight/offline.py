"""`preflight show --judge`: the facts of a saved report, judged anew, with other settings or a newer preflight."""

from collections.abc import Mapping
from dataclasses import replace

from preflight import blame, judging, ranges, registry, result
from preflight.facts import Book
from preflight.job import Job
from preflight.outcome import Outcome
from preflight.policy import Policy
from preflight.registry import Source, UsageError
from preflight.report import Report
from preflight.result import RUN, Result


def judge_again(
    report: Report,
    book: Book,
    sources: Mapping[str, Source],
    settings: Mapping[str, str],
    policy: Policy | None = None,
) -> Report:
    """A new report over the same facts and outcomes; without a `policy` by the report's own. Raises UsageError for
    a check that is not here."""
    job = Job.from_json(report["job"])
    kept = report.get("policy", {**Policy().to_json(), "strict": "--strict" in report["command"]})
    policy, strict = policy or Policy.from_json(kept), kept["strict"]
    settings = {**report["options"], **settings}
    results: list[Result] = []
    checks = []
    for old in report["checks"]:
        one = _again(old, job, book, sources, settings)
        one = replace(one, findings=policy.applied(one.findings, job))
        results.append(one)
        fresh = one.to_json(job)
        checks.append({**old, **{key: fresh[key] for key in ("status", "findings", "summary")}})
    word = result.verdict(results)
    return {
        **report,
        "checks": checks,
        "verdict": word,
        "exit_code": result.exit_code(word, results, strict=strict),
        "options": settings,
        "policy": {**policy.to_json(), "strict": strict},
    }


def _again(
    old: dict[str, object], job: Job, book: Book, sources: Mapping[str, Source], settings: Mapping[str, str]
) -> Result:
    id_, title = str(old["check"]), str(old["title"])
    skipped = None if old["skipped"] is None else str(old["skipped"])
    outcomes = outcomes_of(old, book)
    if id_ == RUN or not outcomes:
        return Result(id_, title, findings=list(old["findings"]), skipped=skipped)  # type: ignore[call-overload]
    if id_ not in sources:
        raise UsageError(f"{id_}: this report's check is not here; name its plugin with --plugin")
    check = registry.load(sources[id_])
    found = blame.findings(id_, check.plan.scope, outcomes, job)
    answer = judging.judge(sources[id_], job, outcomes, book, settings)
    if "error" in answer:
        answer = {"findings": [judging.failure(sources[id_], "", answer)], "summary": "", "picture": []}
    version = int(str(old["facts_version"]))
    said = answer["summary"], skipped, answer["picture"], bool(old.get("aside"))
    found = blame.with_judged(found, answer["findings"], judges_failures=check.plan.judges_failures)
    return Result(id_, title, version, found, outcomes, *said)


def outcomes_of(check: Mapping[str, object], book: Book) -> dict[int, Outcome]:
    """A report lists only what was not measured; the rest is known by its facts."""
    outcomes = {rank: Outcome("measured") for rank in book.ranks(str(check["check"]))}
    for entry in check["outcomes"]:  # type: ignore[attr-defined]
        for rank in ranges.from_text(entry["ranks"]):
            outcomes[rank] = Outcome.from_json({**entry, "facts": None})
    return outcomes
