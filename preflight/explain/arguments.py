"""What `preflight explain` is asked on the command line."""

import argparse
from collections.abc import Callable

DESCRIPTION = """Names the most probable cause of a job's failure, with the line that says so, who is to blame, and
what to do. Exit codes: 0 nothing wrong found, 1 a cause was named, 2 usage, 3 nothing could be read, or not
all that may hold a cause."""


def add_to(command: argparse.ArgumentParser, named: Callable[[str], str]) -> None:
    """Adds the arguments of `preflight explain`. `named`: a type that refuses an empty argument."""
    command.description = DESCRIPTION
    command.add_argument(
        "paths",
        nargs="+",
        type=named,
        metavar="PATH",
        help="logs, folders of them, - for stdin, .gz; NCCL_DEBUG_FILE output, torchrun's log folders and error files, "
        "flight-recorder dumps, reports of preflight",
    )
    command.add_argument("--json", type=named, metavar="FILE", help="write the report (- is stdout)")
    command.add_argument("--markdown", type=named, metavar="FILE", help="write it for a ticket or a chat (- is stdout)")
    command.add_argument("--html", type=named, metavar="FILE", help="write it as a page for a browser")
    command.add_argument("--report", type=named, metavar="DIR", help="write report.json, report.md and report.html")
