"""Judging: the facts of all ranks, to findings. Runs in a child of rank 0, forked with the facts in memory."""

import contextlib
import functools
import itertools
import json
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from preflight import registry
from preflight.check import BASELINE, Finding, Job, Run, Severity
from preflight.facts import Book
from preflight.outcome import Outcome
from preflight.registry import Check, Source


def deadline_s(ranks: int) -> float:
    """10 s, and what reading and judging 30 KB a rank takes on a slow core (see benchmarks/)."""
    return 10.0 + ranks / 200


EXTRA = 0.2
"""Of that, for the summary, and as much for the picture."""
TEXT_LIMIT = 2000
BROKEN_SUMMARY = "summarize() raised"
PICTURE_LINES, PICTURE_WIDTH = 100, 240
EVIDENCE_LIMIT = 64 * 1024
FINDINGS_LIMIT = 20_000
"""A check that finds more has lost its mind; the report must stay readable."""


def judge(
    source: Source, job: Job, outcomes: Mapping[int, Outcome], book: Book, settings: Mapping[str, str]
) -> dict[str, Any]:
    """{"findings": [...], "summary": "...", "picture": [...]} or {"error": "...", "stack": "..."}, as plain JSON."""
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
        )
        found = _findings(check, run, facts)
        json.dumps(found, allow_nan=False)
        return {"findings": found, "summary": _summary(check, run, facts), "picture": _picture(check, run, facts)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}{place_of(error)}", "stack": traceback.format_exc()}


def failure(source: Source, why: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The finding for a judge() that raised (`answer` has its error), or hung or crashed (`why`)."""
    first, _, left = why.partition("\n")
    slug = "timed_out" if "did not end" in first else "crashed" if first else "raised"
    stack = answer.get("stack") or left
    return {
        "severity": "error",
        "code": f"{source.id}.{slug}",
        "message": f"judge() raised {answer['error']}" if "error" in answer else f"judge() {first}",
        "where": {"file": source.target},
        "noticed_by": "",
        "evidence": {"stack": stack} if stack else {},
        "fix": "A fault of the check, not of the machine: report it to its author with this report's facts.",
    }


def _reader(check: Check, book: Book) -> Any:
    @functools.cache  # unpacking the facts of thousands of ranks takes a second
    def facts_of(id_: str) -> dict[int, Any]:
        if id_.removeprefix(BASELINE) not in (check.id, *check.plan.reads, *check.plan.uses):
            raise registry.BrokenCheck(f"judge() reads the facts of {id_}, which is not in PLAN.reads")
        return book.of(id_)

    return facts_of


def _findings(check: Check, run: Run, facts: dict[int, Any]) -> list[dict[str, Any]]:
    if not facts and not check.plan.reads and not check.plan.judges_failures:
        return []
    yielded = itertools.islice(check.module.judge(facts, run), FINDINGS_LIMIT + 1)
    found = [_as_json(check, finding) for finding in yielded]
    if len(found) > FINDINGS_LIMIT:
        raise registry.BrokenCheck(f"judge() yielded more than {FINDINGS_LIMIT:,} findings")
    return found


def _as_json(check: Check, finding: object) -> dict[str, Any]:
    if not isinstance(finding, Finding):
        raise registry.BrokenCheck(f"judge() yielded {type(finding).__name__}, not a Finding")
    if finding.severity is Severity.ERROR:
        raise registry.BrokenCheck("judge() yielded the severity error, which is the engine's own")
    return {
        "severity": str(finding.severity),
        "code": check.code_id(finding.code),
        "message": _text(finding.message, "message"),
        "where": {key: _culprit(key, value) for key, value in finding.where.items()},
        "noticed_by": finding.noticed_by,
        "evidence": _evidence(finding.evidence),
        "fix": _text(finding.fix, "fix"),
    }


def _text(text: object, name: str) -> str:
    if not isinstance(text, str) or not text:
        raise registry.BrokenCheck(f"judge() yielded a finding whose {name} is {text!r}, not a sentence")
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}... ({len(text):,} characters)"


def _culprit(key: str, value: object) -> int | str:
    """Ranks are numbers; everything else is a number or a short text."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if key.endswith("rank") and not whole:
        raise registry.BrokenCheck(f"judge() blamed {key} {value!r}, which is no rank")
    if not isinstance(value, int | str):
        raise registry.BrokenCheck(f"judge() blamed {key} {value!r}, which is neither a number nor a text")
    return value if isinstance(value, int) else value[:TEXT_LIMIT]


def _evidence(evidence: dict[str, Any]) -> dict[str, Any]:
    size = len(json.dumps(evidence, allow_nan=False))
    return evidence if size <= EVIDENCE_LIMIT else {"left_out": f"{size:,} bytes of evidence"}


def _summary(check: Check, run: Run, facts: dict[int, Any]) -> str:
    summarize = getattr(check.module, "summarize", None)
    try:
        with _ended_after(EXTRA * deadline_s(len(facts))):
            return str(summarize(facts, run))[:TEXT_LIMIT] if summarize and facts else ""
    except Exception as error:  # a line for the screen is not worth the findings
        return f"{BROKEN_SUMMARY} {type(error).__name__}: {error}{place_of(error)}"


def _picture(check: Check, run: Run, facts: dict[int, Any]) -> list[str]:
    """What draw() gives, cut to what a screen takes."""
    draw = getattr(check.module, "draw", None)
    try:
        with _ended_after(EXTRA * deadline_s(len(facts))):
            lines = itertools.islice(draw(facts, run), PICTURE_LINES) if draw and facts else ()
            return [str(line)[:PICTURE_WIDTH] for line in lines]
    except Exception as error:  # as for the summary
        return [f"draw() raised {type(error).__name__}: {error}{place_of(error)}"[:PICTURE_WIDTH]]


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in Python code that takes longer: summary and picture must not cost the findings."""
    if threading.current_thread() is not threading.main_thread():  # in a test of somebody's: no signals there
        yield
        return

    def give_up(_number: int, _frame: object) -> None:
        raise TimeoutError(f"it took more than {seconds:.1f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def place_of(error: BaseException) -> str:
    """ " (nvlink.py line 12)": where in the check it was raised."""
    everything = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in everything if "/torch/" not in frame.filename] or everything
    return f" ({os.path.basename(frames[-1].filename)} line {frames[-1].lineno})" if frames else ""
