"""What `preflight resume` prints: the three trainings, their steps side by side, the findings, the verdict."""

from collections.abc import Sequence

from preflight.core import words
from preflight.core.rank_ranges import count
from preflight.results import console
from preflight.results.report import Report
from preflight.resume.arguments import ResumeRequest
from preflight.resume.course import ResumedTrainings
from preflight.resume.steps import RecordedStep, StepTrace
from preflight.resume.training import TrainingEnd

ROWS = 12
"""Steps that the table shows at most."""
LOSSES = 2
"""Of a step."""


def head(asked: ResumeRequest) -> list[str]:
    command = words.some(asked.command, 12, " ", " ")
    return [console.plain(f"preflight resume: {command} (three trainings, at most {words.duration(asked.deadline_s)})")]


def of_reference(ended: TrainingEnd) -> list[str]:
    trace = ended.trace
    saved = f", first checkpoint after step {trace.first_save}" if trace.first_save else ""
    return [_line("never stopped", ended, f"{_steps(trace)}{saved}")]


def of_stopped(ended: TrainingEnd, at: int) -> list[str]:
    how = f"ended {words.duration(ended.stop_s)} after SIGTERM" if ended.held else "not stopped"
    return [_line("stopped", ended, f"after step {at}, {how}")]


def of_resumed(ended: TrainingEnd, after: int | None) -> list[str]:
    if after is None:
        return [_line("resumed", ended, _steps(ended.trace) if ended.trace.length else "no step")]
    return [_line("resumed", ended, f"after step {after}, {_steps(ended.trace)}")]


def _line(name: str, ended: TrainingEnd, text: str) -> str:
    return f"  {name:<14} {words.duration(ended.seconds):>7}  {text}"


def _steps(trace: StepTrace) -> str:
    return f"{count(trace.length, 'step')} on {count(len(trace.ranks), 'rank')}"


def summary(course: ResumedTrainings) -> str:
    """What was compared."""
    if course.after is None or course.resumed is None:
        return ""
    trace = course.resumed.trace
    exact = "to the last bit" if course.control.is_exact else "within its own rounding"
    return f"{_steps(trace)} after step {course.after} compared; without a stop the training repeats itself {exact}"


def table(course: ResumedTrainings) -> list[str]:
    """The steps after the resume on the first rank: learning rate and loss, of the training that never stopped and of
    the resumed one."""
    if course.after is None or not course.resumed or not course.reference or not course.resumed.trace.length:
        return []
    rank = min(course.resumed.trace.ranks)
    ours, theirs = course.reference.trace.ranks.get(rank, ()), course.resumed.trace.ranks[rank]
    rows: list[tuple[str, ...]] = [("step", "learning rate", "resumed", "loss", "resumed", "batch")]
    places = range(course.after, min(len(ours), course.after + len(theirs)))[:ROWS]
    rows += [_row(at + 1, ours[at], theirs[at - course.after]) for at in places]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=True)) for row in rows]


def _row(number: int, ours: RecordedStep, theirs: RecordedStep) -> tuple[str, ...]:
    batch = "-" if not ours.batches else "same" if ours.batches == theirs.batches else "other"
    return (
        str(number),
        _numbers(ours.rates),
        _numbers(theirs.rates),
        _numbers(ours.losses),
        _numbers(theirs.losses),
        batch,
    )


def _numbers(numbers: Sequence[float]) -> str:
    listed = [f"{number:.6g}" for number in dict.fromkeys(numbers)]
    return ", ".join(listed[:LOSSES]) + ", .." * (len(listed) > LOSSES) if listed else "-"


def ending(report: Report, width: int = console.WIDTH) -> list[str]:
    lines = [*console.pictures(report, width, screen=True), *console.found_lines(report.findings, width), ""]
    for finding in report.findings:
        if output := finding.evidence.get("output"):
            lines += ["its last lines:", *(console.plain(f"      {line}") for line in output), ""]
    return [*lines, _verdict(report)]


def _verdict(report: Report) -> str:
    check = report.checks[0]
    meaning = {
        "pass": "the training goes on as if it had never stopped",
        "warn": "the training goes on; see the warnings",
        "fail": f"the training does not go on as if it had never stopped: {count(len(report.findings), 'finding')}",
        "error": "it is unknown whether the training goes on",
    }[report.verdict]
    if check.status == "skip":
        meaning += ", as far as it was seen"
    more = f"; {check.summary}" if check.summary else ""
    return f"verdict: {report.verdict.upper()} ({meaning}{more}), exit code {report.exit_code}, {report.seconds:.1f} s"
