"""Arguments of `preflight debug`."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from preflight.errors import UsageError

DESCRIPTION = """Runs a job with the right logging on; when it fails or hangs, collects what every rank left, and
explains it. The job's output, signals and exit code pass through (124: it hung)."""


@dataclass(frozen=True)
class DebugRequest:
    command: tuple[str, ...]
    folder: str | None
    hang_after_s: float | None


def add_to(command: argparse.ArgumentParser, named: Callable[[str], str], seconds: Callable[[str], float]) -> None:
    """`named` refuses an empty text; `seconds` parses a duration."""
    command.description = DESCRIPTION
    command.add_argument("--report", type=named, metavar="DIR", help="write the report and what every rank left")
    command.add_argument(
        "--hang-after", type=seconds, metavar="S", help="sample a job that has printed nothing for this long"
    )
    command.add_argument(
        "job", nargs=argparse.REMAINDER, metavar="-- COMMAND...", help="the job, as you would start it"
    )


def request(options: argparse.Namespace) -> DebugRequest:
    """Raises UsageError."""
    words = options.job[1:] if options.job[:1] == ["--"] else options.job
    if not words or not words[0]:
        example = "preflight debug -- torchrun --nproc-per-node 8 train.py"
        raise UsageError(f"debug: expected a command after --, as in {example}", everywhere=False)
    if words[0].startswith("-") and options.job[:1] != ["--"]:
        raise UsageError(f"debug: {words[0]}: there is no such option; the job's own come after --", everywhere=False)
    return DebugRequest(tuple(words), options.report, options.hang_after)
