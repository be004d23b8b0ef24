"""`preflight resume`: three trainings of the user's command, and the report."""

import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from preflight.core.job import Job
from preflight.core.secrets import Scrubber
from preflight.debug.job import CannotStart
from preflight.errors import UsageError
from preflight.explain import output
from preflight.explain.command import INTERRUPTED
from preflight.results import progress, report_files
from preflight.results.building import build
from preflight.results.cleaning import without_secrets, without_surrogates
from preflight.results.destinations import Output
from preflight.results.page import whole
from preflight.results.report import Report
from preflight.results.result import Result
from preflight.resume import console, control, judge, training
from preflight.resume.arguments import ResumeRequest
from preflight.resume.course import ResumedTrainings
from preflight.resume.training import TrainingEnd, TrainingInterrupted, TrainingPlan
from preflight.sdk import paths

CHECK = "preflight.resume"
TITLE = "A training that was stopped goes on as if it had not been"
LATEST_SAVE = 20
"""Without --at: a training that has saved nothing after this many steps is stopped here, since it may save on SIGTERM.
"""
NAMES = ("never-stopped", "stopped", "resumed")
LIVE_S = 1.0
"""Each training has at least so much of the deadline."""


def run(asked: ResumeRequest) -> int:
    """The command; returns its exit code. Raises UsageError."""
    places = f"--json {asked.json_path}" if asked.json_path else f"--report {asked.folder}"
    paths.ask(places, lambda: output.prepare(asked.json_path, None, asked.folder, command="resume"))
    folder = paths.ask("a folder for the trainings", lambda: _made_folder(asked.folder))
    began, shown = time.monotonic(), sys.stderr if asked.json_path == "-" else sys.stdout
    course = ResumedTrainings()
    try:
        progress.show(console.head(asked), shown)
        _follow(asked, folder, course, lambda lines: progress.show(lines, shown))
        report = _report(asked, course, time.monotonic() - began)
        _write(asked, report)
    except (KeyboardInterrupt, TrainingInterrupted):
        Output().complain("resume: interrupted, no report")
        return INTERRUPTED
    except CannotStart as why:
        raise UsageError(f"resume: {why}", everywhere=False) from None
    finally:
        if not asked.folder:
            shutil.rmtree(folder, ignore_errors=True)
    lines = [*console.ending(report), *Output(asked.json_path).places("report.json")]
    progress.show(lines, shown)
    if asked.json_path == "-":
        print(report_files.as_text(report), end="")
    return report.exit_code


def _write(asked: ResumeRequest, report: Report) -> None:
    """Raises UsageError."""
    places = f"--json {asked.json_path}" if asked.json_path else f"--report {asked.folder}"
    paths.ask(places, lambda: _write_files(asked, report))


def _write_files(asked: ResumeRequest, report: Report) -> None:
    output.write(report, asked.json_path)
    if asked.folder:
        for name, text in (("report.json", report_files.as_text(report)), ("report.html", whole.html(report))):
            report_files.write_asked("--report", os.path.join(asked.folder, name), text)


def _made_folder(asked: str | None) -> str:
    """Raises UsageError."""
    try:
        if asked is None:
            return tempfile.mkdtemp(prefix="preflight-resume-")
        os.makedirs(asked, exist_ok=True)
    except OSError as error:
        text = f"{f'--report {asked}' if asked else 'a folder for the trainings'}: cannot be written ({error.strerror})"
        raise UsageError(text, everywhere=False) from None
    if old := [name for name in NAMES if os.path.exists(os.path.join(asked, name))]:
        raise UsageError(f"--report {asked}: holds {old[0]} of an earlier test: name another folder", everywhere=False)
    return os.path.abspath(asked)


def _follow(asked: ResumeRequest, folder: str, course: ResumedTrainings, say: Callable[[list[str]], None]) -> None:
    """Runs the trainings, as far as there is something to compare."""
    end = time.monotonic() + asked.deadline_s

    def train(name: str, **details: object) -> TrainingEnd:
        place = "stopped" if name == "resumed" else name
        words = asked.command + (asked.resumed_with if name == "resumed" else ())
        plan = TrainingPlan(
            words,
            os.path.join(folder, name),
            os.path.join(folder, f"checkpoints-{place}"),
            **details,  # type: ignore[arg-type]
        )
        return training.run(plan, max(LIVE_S, end - time.monotonic()))

    more = asked.steps + 1
    last = (asked.stop_at or LATEST_SAVE) + more
    course.reference = train("never-stopped", seed=0, stop_at=last, after_save=asked.stop_at is None, more=1 + more)
    say(console.of_reference(course.reference))
    if _ends(course, "the training that never stopped", course.reference, last):
        return
    trace = course.reference.trace
    course.stop_at = asked.stop_at or trace.length - more
    course.stopped = train("stopped", seed=0, stop_at=course.stop_at, grace_s=asked.grace_s)
    say(console.of_stopped(course.stopped, course.stop_at))
    if _ends(course, "the training that is stopped", course.stopped, course.stop_at):
        return
    course.control = control.control(trace, course.stopped.trace, course.stop_at)
    if course.control.why_not:
        course.findings.append(judge.not_repeatable(course.control))
        return
    course.resumed = train("resumed", seed=1, stop_at=asked.steps)
    saved = course.stopped.trace.first_save
    judged = judge.resumed(trace, course.stop_at, saved, course.resumed, course.control)
    course.findings += judged.findings
    course.after = judged.after
    say(console.of_resumed(course.resumed, judged.after))


def _ends(course: ResumedTrainings, name: str, ended: TrainingEnd, expected: int) -> bool:
    if finding := judge.unfinished(name, ended, expected):
        course.findings.append(finding)
    return bool(course.findings)


def _report(asked: ResumeRequest, course: ResumedTrainings, seconds: float) -> Report:
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    result = Result(
        CHECK, TITLE, findings=course.findings, summary=console.summary(course), picture=console.table(course)
    )
    world = len(course.reference.trace.ranks) if course.reference else 0
    report = build(
        run_id=str(uuid.uuid4()),
        started=started,
        seconds=seconds,
        command=["resume", *asked.command],
        options={},
        job=Job("unknown", max(1, world), "unknown", ()),
        results=[result],
    )
    return without_surrogates(without_secrets(report, Scrubber(os.environ)))
