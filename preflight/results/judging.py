"""Judging: turns the facts of all ranks into findings. Runs in a child of rank 0, forked with the facts in memory."""

import contextlib
import functools
import itertools
import json
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from types import GeneratorType
from typing import Any

from preflight import errors
from preflight.check import After, Figure, Finding, Job, Plan, Run, Severity
from preflight.core import plots, rank_ranges
from preflight.core.action import Action
from preflight.core.answer import Failure, Returned
from preflight.core.exceptions import in_one_line, innermost_line, place_of
from preflight.core.facts import FactsStore
from preflight.core.finding import Reported
from preflight.core.groups import Group
from preflight.core.outcome import Outcome
from preflight.core.record import BASELINE
from preflight.hangs import blame
from preflight.planning import registry
from preflight.planning.policy import Policy
from preflight.planning.registry import Check, Source, Spec
from preflight.results import fields, plot_fields
from preflight.results.result import Result
from preflight.sdk.files import core_wait_s


def deadline_s(ranks: int) -> float:
    """10 s, plus the time to read and judge 30 KB per rank on a slow core (see benchmarks/)."""
    return 10.0 + ranks / 200


EXTRA = 0.2
"""The share of that time for the summary; the picture and the plots get the same share each."""
TEXT_LIMIT = 2000
BROKEN_SUMMARY = "summarize() raised"
PICTURE_LINES, PICTURE_WIDTH = 100, 240
MOST_PLOTS, PLOTS_LIMIT = 16, 2 << 20
"""The most plots of a check, and their bytes together."""
EVIDENCE_LIMIT = 64 * 1024
FINDINGS_LIMIT = 20_000
"""More than this is a bug in the check, and the report must stay readable."""


NOTHING: dict[str, Any] = {"findings": []}
"""The answer for a check that is not judged."""


class _AtYield(Exception):  # noqa: N818 -- a place
    """A finding is invalid: the cause says why, the text says where judge() yielded it."""


def is_judged(plan: Plan, outcomes: Mapping[int, Outcome], has_facts: bool) -> bool:
    """Whether `judge` is called: where no rank has facts, only if it reads something else. What to check may also exist
    nowhere (`NotApplicable`): then nothing was measured, whatever other checks have."""
    exists = not outcomes or any(outcome.slug != "not_applicable" for outcome in outcomes.values())
    return has_facts or plan.judges_failures or (bool(plan.ids(After.READS)) and exists)


def call_judge(
    source: Source, job: Job, outcomes: Mapping[int, Outcome], book: FactsStore, settings: Mapping[str, str],
    groups: Iterable[Group] = (),
) -> dict[str, Any]:  # fmt: skip
    """Calls a check's judge(). Returns {"findings": [...], "summary": "...", "picture": [...], "plots": [...],
    "groups": [...]} or {"error": "...", "stack": "..."}, as plain JSON."""
    try:
        check = registry.load(source)
        facts_of = _reader(check, book)
        facts = facts_of(check.id)
        run = Run(
            job=job,
            members=tuple(sorted(outcomes)),
            outcomes=outcomes,
            options=check.values(settings),
            facts_of=facts_of,
            groups=tuple(groups),
            earlier=_earlier(check.id, book),
        )
        found = _findings(check, run, facts)
        json.dumps(found, allow_nan=False)
        summary = "".join(_optional(check, "summarize", run, facts))[:TEXT_LIMIT]
        picture = [line[:PICTURE_WIDTH] for line in _optional(check, "draw", run, facts)]
        plotted = _plots(check, run, facts)
        groups = [vars(group) for group in check.module.groups(facts, run)] if hasattr(check.module, "groups") else []
        return {
            "findings": found,
            "summary": summary,
            "picture": picture,
            "plots": plotted,
            "groups": groups,
            "aside": bool(check.module.PLAN.old.get("aside")),
        }
    except Exception as error:
        where = str(error) if isinstance(error, _AtYield) else place_of(error, registry.own_path(source))
        cause = error.__cause__ or error if isinstance(error, _AtYield) else error
        return {"error": f"{in_one_line(cause)}{where}", "stack": traceback.format_exc()}


def baseline(book: FactsStore) -> list[list[Any]]:
    """The figures of the run of `--baseline REPORT`, as JSON (history/run_entry.py)."""
    stored: list[list[Any]] = book.of(BASELINE)[0]["figures"] if BASELINE in book.checks() else []
    return stored


def _earlier(check: str, book: FactsStore) -> tuple[Figure, ...]:
    rows = [row for row in baseline(book) if row[0] == check]
    return tuple(
        Figure(name, figure["value"], measure, labels=figure["labels"], less_is_better=figure["less_is_better"])
        for _, name, measure, figure in rows
    )


def result_of(
    spec: Spec, outcomes: Mapping[int, Outcome], job: Job, answer: Returned | Failure, policy: Policy
) -> Result:
    """The result with the findings of the engine and of the check's judge(). `answer`: what `call_judge` returned, in
    this process or another."""
    returned = answer.value_or({})
    found = blame.findings(spec.id, spec.plan.scope, outcomes, job)
    if isinstance(answer, Failure):
        found.append(_failure(spec.source, str(answer.kind), answer.text, answer.stack))
    elif "error" in returned:
        found.append(_failure(spec.source, "raised", f"raised {returned['error']}", returned["stack"]))
    else:
        own = [Reported.from_json(finding) for finding in returned["findings"]]
        found = blame.with_judged(found, own, judges_failures=spec.plan.judges_failures)
    return Result(
        spec.id,
        spec.title,
        spec.plan.facts_version,
        policy.applied(found, job),
        outcomes,
        returned.get("summary", ""),
        skipped=_skip_reason(outcomes),
        picture=returned.get("picture", []),
        plots=returned.get("plots", []),
        aside=returned.get("aside", False),
        groups=tuple(Group(group["name"], tuple(group["nodes"])) for group in returned.get("groups", ())),
    )


def _skip_reason(outcomes: Mapping[int, Outcome]) -> str | None:
    by_reason: dict[str, list[int]] = {}
    for rank, outcome in outcomes.items():
        if outcome.kind == "skipped":
            by_reason.setdefault(outcome.reason or "", []).append(rank)
    if not by_reason:
        return None
    if len(by_reason) == 1 and len(next(iter(by_reason.values()))) == len(outcomes):
        return next(iter(by_reason))
    return "; ".join(f"{rank_ranges.ranks(ranks)}: {reason}" for reason, ranks in by_reason.items())


def _failure(source: Source, slug: str, why: str, stack: str) -> Reported:
    """The finding for a judge() that raised, hung or crashed."""
    return Reported(
        severity=Severity.ERROR,
        code=f"{source.id}.{slug}",
        message=f"judge() {why}",
        where={"file": source.target},
        evidence={"stack": stack} if stack else {},
        fix=f"A bug in the check, not a problem of the machine: {_to_do(source)}.",
        action=Action.NONE,
    )


def _to_do(source: Source) -> str:
    if registry.with_plugin(source):  # the user who names a file can fix it
        return f"fix it, then preflight show DIR --judge{registry.with_plugin(source)} (DIR is what --report wrote)"
    return "report it to its author with this report's facts"


def _reader(check: Check, book: FactsStore) -> Any:
    @functools.cache  # unpacking the facts of thousands of ranks takes a second
    def facts_of(id_: str) -> dict[int, Any]:
        if id_ not in (check.id, *check.plan.ids(After.READS | After.USES)):
            raise errors.BrokenCheck(f"judge() reads the facts of {id_}, which PLAN.after does not read")
        return book.of(id_)

    return facts_of


def _findings(check: Check, run: Run, facts: dict[int, Any]) -> list[dict[str, Any]]:
    if not is_judged(check.plan, run.outcomes, bool(facts)):
        return []
    judged = check.module.judge(facts, run)
    if not isinstance(judged, Iterable):
        raise errors.BrokenCheck(f"judge() returned {judged!r}, expected findings: yield them")
    found = [_checked(check, finding, judged) for finding in itertools.islice(judged, FINDINGS_LIMIT + 1)]
    if len(found) > FINDINGS_LIMIT:
        raise errors.BrokenCheck(f"judge() yielded more than {FINDINGS_LIMIT:,} findings")
    return found


def _checked(check: Check, finding: object, judged: object) -> dict[str, object]:
    try:
        return as_json(check, finding)
    except (errors.BrokenCheck, TypeError, ValueError) as error:
        raise _AtYield(_yielded_at(judged, registry.own_path(check.source))) from error


def as_json(check: Check, finding: object) -> dict[str, object]:
    """As the report holds it. Raises BrokenCheck for what is no finding of this check."""
    if not isinstance(finding, Finding):
        raise errors.BrokenCheck(f"judge() yielded {type(finding).__name__}, not a Finding")
    if finding.severity is Severity.ERROR:
        raise errors.BrokenCheck("judge() yielded the severity error, which is the engine's own")
    reported = Reported(
        severity=finding.severity,
        code=check.code_id(finding.code),
        message=_text(finding.message, "message"),
        where={key: _culprit(key, value) for key, value in finding.where.items()},
        noticed_by=finding.noticed_by,
        evidence=_evidence(finding.evidence),
        fix=_text(finding.fix, "fix"),
        action=finding.action,
        not_measured=finding.not_measured,
        see=[*finding.code.see] or None,
        cleared=finding.cleared,
    )
    return reported.to_json()


def _text(text: object, name: str) -> str:
    if not isinstance(text, str) or not text:
        raise errors.BrokenCheck(f"judge() yielded a finding with {name} {text!r}, expected a sentence")
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}... ({len(text):,} characters)"


def _culprit(key: str, value: object) -> int | str:
    """Checks a culprit: ranks are numbers; everything else is a number or a short text."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if key.endswith("rank") and not whole:
        raise errors.BrokenCheck(f"judge() blamed {key} {value!r}, which is not a rank")
    if not isinstance(value, int | str):
        raise errors.BrokenCheck(f"judge() blamed {key} {value!r}, which is neither a number nor a text")
    return value if isinstance(value, int) else value[:TEXT_LIMIT]


def _evidence(evidence: dict[str, object]) -> dict[str, object]:
    size = len(json.dumps(evidence, allow_nan=False))
    return evidence if size <= EVIDENCE_LIMIT else {"left_out": f"{size:,} bytes of evidence"}


def _optional(check: Check, name: str, run: Run, facts: dict[int, Any]) -> list[str]:
    """The lines of summarize() or draw(), cut to what fits on a screen. If it raises, its error instead: the findings
    must not be lost for that."""
    function = getattr(check.module, name, None)
    if function is None or not facts:
        return []
    try:
        with _ended_after(EXTRA * deadline_s(len(facts))):
            text = function(facts, run)
            return [str(text)] if name == "summarize" else list(map(str, itertools.islice(text, PICTURE_LINES)))
    except Exception as error:
        return [f"{name}() raised {in_one_line(error)}{place_of(error, registry.own_path(check.source))}"]


def _plots(check: Check, run: Run, facts: dict[int, Any]) -> list[dict[str, object]]:
    """What plot() yields, as JSON; if it raises, its error in a table."""
    function = getattr(check.module, "plot", None)
    if function is None or not facts:
        return []
    try:
        with _ended_after(EXTRA * deadline_s(len(facts))):
            plotted = [plot.to_json() for plot in itertools.islice(function(facts, run), MOST_PLOTS)]
        text = json.dumps(plotted, allow_nan=False)
        if len(text) > PLOTS_LIMIT:
            raise errors.BrokenCheck(f"its plots take {len(text):,} bytes, expected at most {PLOTS_LIMIT:,}")
        _refuse_undrawable(json.loads(text))
        return plotted
    except Exception as error:
        why = f"plot() raised {in_one_line(error)}{place_of(error, registry.own_path(check.source))}"
        return [plots.Table(why, (), ()).to_json()]


def _refuse_undrawable(plotted: object) -> None:
    """The supervisor draws them on the screen, and must not meet what cannot be drawn. Raises BrokenCheck."""
    try:
        fields.items(plotted, "plots", plot_fields.plot)
    except fields.MalformedReport as flaw:
        raise errors.BrokenCheck(str(flaw)) from None


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in Python code that takes longer: summary and picture must not cost the findings. Time
    spent waiting for a core does not count."""
    if threading.current_thread() is not threading.main_thread():  # in a plugin author's test: no signals there
        yield
        return
    end = time.monotonic() - core_wait_s() + seconds

    def give_up(_number: int, _frame: object) -> None:
        left = end - (time.monotonic() - core_wait_s())
        if left <= 0:
            raise TimeoutError(f"it took more than {seconds:.1f} s")
        signal.setitimer(signal.ITIMER_REAL, max(left, 0.01))

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _yielded_at(found: object, own: str) -> str:
    """ " (nvlink.py line 12)": the line at which judge(), or a generator that it yields from, has yielded."""
    lines: list[tuple[str, int]] = []
    while isinstance(found, GeneratorType) and found.gi_frame is not None:
        lines.append((found.gi_frame.f_code.co_filename, found.gi_frame.f_lineno))
        found = found.gi_yieldfrom
    return innermost_line(lines[::-1], own)
