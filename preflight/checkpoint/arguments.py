"""Arguments of `preflight checkpoint`."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

DESCRIPTION = """Checks whether a saved checkpoint is complete, readable and finite, and with --model whether it fits.
Unpickles nothing that could run. Exit codes: 0 nothing wrong, 1 something is, 2 usage, 3 it could not be read."""


@dataclass(frozen=True)
class CheckpointRequest:
    path: str
    model: str | None
    """MODULE:FUNCTION."""
    json_path: str | None
    timeout_s: float
    """Seconds for one answer of the file system, and for making the model."""


def add_to(
    command: argparse.ArgumentParser,
    named: Callable[[str], str],
    user_code: Callable[[str], str],
    seconds: Callable[[str], float],
) -> None:
    """`named` refuses an empty text, `user_code` what is not MODULE:FUNCTION; `seconds` parses a duration."""
    command.description = DESCRIPTION
    command.add_argument(
        "path",
        type=named,
        metavar="DIR_OR_FILE",
        help="of torch.distributed.checkpoint, torch.save, safetensors or Hugging Face",
    )
    command.add_argument(
        "--model", type=user_code, metavar="MODULE:FUNCTION", help="does it fit this model? (or FILE.py:FUNCTION)"
    )
    command.add_argument("--json", type=named, metavar="FILE", help="write the report (- is stdout)")
    command.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="S", help="seconds without an answer from the disk (60)"
    )


def request(options: argparse.Namespace) -> CheckpointRequest:
    return CheckpointRequest(options.path, options.model, options.json, options.timeout)
