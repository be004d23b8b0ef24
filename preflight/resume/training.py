"""One training under the recorder: starts the user's command, waits until its ranks wait, and ends it."""

import glob
import json
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from preflight.debug import environment
from preflight.debug.job import RunningJob, signals_held
from preflight.resume import steps
from preflight.resume.arguments import FOLDER
from preflight.resume.steps import StepTrace

VARIABLE = "PREFLIGHT_RESUME"
POLL_S = 0.1
OTHERS_S = 10.0
"""For the other ranks, once the first waits: without it in their next collective, some never come as far."""
LAST_LINES = 5


class TrainingInterrupted(Exception):  # noqa: N818 -- as it reads where it is caught
    """A signal came to this process: the training got it, too."""


@dataclass(frozen=True)
class TrainingPlan:
    """What a training is to do."""

    command: Sequence[str]
    folder: str
    """For what its ranks record, and its output."""
    checkpoints: str
    seed: int
    """Of what a script does not seed itself."""
    stop_at: int | None
    """The ranks wait after this step."""
    after_save: bool = False
    """They wait `more` steps after the first checkpoint instead, if that is sooner than `stop_at`."""
    more: int = 0
    grace_s: float = 0.0
    """From SIGTERM to SIGKILL; 0: SIGKILL at once."""


@dataclass(frozen=True)
class TrainingEnd:
    """How a training ended."""

    trace: StepTrace
    seconds: float
    held: bool
    """Its ranks waited where they were asked to, and were ended there."""
    code: int | None
    """The command's exit code, if it ended by itself; the shell's after a stop."""
    out_of_time: bool
    stop_s: float
    """How long it took to end after SIGTERM."""
    last_lines: Sequence[str]
    """Of its stderr."""


def run(asked: TrainingPlan, limit_s: float) -> TrainingEnd:
    """Raises CannotStart, TrainingInterrupted."""
    os.makedirs(asked.folder)
    os.makedirs(asked.checkpoints, exist_ok=True)
    began = time.monotonic()
    with signals_held() as mask:
        job = _started(asked, mask)
    try:
        held = _await_ranks(job, asked.folder, began + limit_s)
        out_of_time = job.code is None and not held
        asked_at = time.monotonic()
        if job.code is None:
            job.end(asked.grace_s if held else 0.0)
        if job.passed:
            raise TrainingInterrupted
        stopped_s = time.monotonic() - asked_at
        trace = steps.read(asked.folder)
        return TrainingEnd(
            trace, time.monotonic() - began, held, job.code, out_of_time, stopped_s, _last_lines(asked.folder)
        )
    finally:
        job.end(0.0)
        job.finish()


def _started(asked: TrainingPlan, mask: Collection[int]) -> RunningJob:
    settings = {
        "folder": asked.folder,
        "seed": asked.seed,
        "stop_at": asked.stop_at,
        "after_save": asked.after_save,
        "more": asked.more,
        "waits_for_term": bool(asked.grace_s),
    }
    paths = [environment.HOOK, *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {
        "PYTHONHASHSEED": str(asked.seed),
        **os.environ,
        VARIABLE: json.dumps(settings),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    words = [word.replace(FOLDER, asked.checkpoints) for word in asked.command]
    return RunningJob(words, environ, os.path.join(asked.folder, "output"), mask, shown=False)


def _await_ranks(job: RunningJob, folder: str, end: float) -> bool:
    """Until all ranks wait, or the job ends, or the time does. Whether ranks wait."""
    first: float | None = None
    while job.code is None and time.monotonic() < end and not job.passed:
        if waiting := _waiting(folder):
            first = first or time.monotonic()
            if len(waiting) >= max(waiting) or time.monotonic() > first + OTHERS_S:
                return True
        job.wait(POLL_S)
    return False


def _waiting(folder: str) -> list[int]:
    """Of each rank that waits, how many there are of them."""
    sizes = []
    for path in glob.glob(os.path.join(glob.escape(folder), "*.held")):
        with open(path) as file:
            sizes.append(int(file.read() or "0"))
    return [size for size in sizes if size]


def _last_lines(folder: str) -> list[str]:
    for name in ("output.err", "output.out"):
        try:
            with open(os.path.join(folder, name), "rb") as file:
                file.seek(max(0, os.path.getsize(file.name) - (1 << 16)))
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            continue
        if lines := [line.rstrip() for line in lines if line.strip()]:
            return lines
    return []
