"""Arguments of `preflight resume`."""

import argparse
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from preflight.errors import UsageError

FOLDER = "{dir}"
"""In the command: the training's own folder for checkpoints."""
DESCRIPTION = """Does your training go on after a stop as if it had never stopped? Runs your command to a step, stops it
as a scheduler would (SIGTERM, then SIGKILL), resumes it, and compares weights, optimizer, learning rate, data and loss
with a run that never stopped. {dir} in the command becomes a new folder for checkpoints. Exit codes: 0 it goes on,
1 it does not, 2 usage, 3 it could not be judged."""
EXAMPLE = "preflight resume -- torchrun --nproc-per-node 2 train.py --out {dir}"
MOST_STEPS = 10_000


@dataclass(frozen=True)
class ResumeRequest:
    command: tuple[str, ...]
    """FOLDER may stand in its words."""
    resumed_with: tuple[str, ...]
    """Words that the resumed command has beside."""
    stop_at: int | None
    """After which step it is stopped; None: one step after its first checkpoint."""
    steps: int
    """How many are compared after the point of resume."""
    deadline_s: float
    """Seconds for all three trainings."""
    grace_s: float
    """From SIGTERM to SIGKILL."""
    folder: str | None
    json_path: str | None


def add_to(
    command: argparse.ArgumentParser,
    named: Callable[[str], str],
    seconds: Callable[[str], float],
    number: Callable[[str], int],
) -> None:
    """`named` refuses an empty text; `seconds` parses a duration, `number` a count."""
    command.description = DESCRIPTION
    command.add_argument(
        "--at", type=number, metavar="STEP", help="stop it after this step (one after its first checkpoint)"
    )
    command.add_argument("--steps", type=number, default=4, metavar="N", help="compare N steps after it (4)")
    command.add_argument("--resume-with", type=named, metavar="WORDS", help="words for the resumed command alone")
    command.add_argument(
        "--grace", type=seconds, default=30.0, metavar="S", help="seconds from SIGTERM to SIGKILL (30)"
    )
    command.add_argument(
        "--deadline", type=seconds, default=900.0, metavar="S", help="seconds for all three trainings (900)"
    )
    command.add_argument("--json", type=named, metavar="FILE", help="write the report (- is stdout)")
    command.add_argument(
        "--report", type=named, metavar="DIR", help="write the report, output and checkpoints of the trainings"
    )
    command.add_argument(
        "job", nargs=argparse.REMAINDER, metavar="-- COMMAND...", help="the training, as you would start it"
    )


def request(options: argparse.Namespace) -> ResumeRequest:
    """Raises UsageError."""
    words = options.job[1:] if options.job[:1] == ["--"] else options.job
    if not words or not words[0]:
        raise UsageError(f"resume: expected a command after --, as in {EXAMPLE}", everywhere=False)
    if words[0].startswith("-") and options.job[:1] != ["--"]:
        raise UsageError(f"resume: {words[0]}: there is no such option; the job's own come after --", everywhere=False)
    if not any(FOLDER in word for word in words):
        text = f"resume: expected {FOLDER} in the command, where it is given its folder for checkpoints: {EXAMPLE}; "
        text += f"""where it writes into the current folder: sh -c 'cd {FOLDER} && python /path/of/train.py'"""
        raise UsageError(text, everywhere=False)
    try:
        more = tuple(shlex.split(options.resume_with or ""))
    except ValueError as error:
        raise UsageError(f"--resume-with {options.resume_with}: {error}", everywhere=False) from None
    for name, most in (("at", MOST_STEPS), ("steps", MOST_STEPS)):
        if (getattr(options, name) or 0) > most:
            raise UsageError(f"--{name}: expected {most:,} at most", everywhere=False)
    return ResumeRequest(
        command=tuple(words),
        resumed_with=more,
        stop_at=options.at,
        steps=options.steps,
        deadline_s=options.deadline,
        grace_s=options.grace,
        folder=options.report,
        json_path=options.json,
    )
