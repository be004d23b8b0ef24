"""Arguments of `preflight diff`, `preflight history` and `preflight profile`."""

import argparse
from collections.abc import Callable

DIFF = """What has changed between two runs: findings, versions, variables, links, clocks, speeds, nodes. Exit codes: 0
nothing got worse, 1 something did, 2 usage."""
PROFILE = """Prints what the nodes of a sound run have, as TOML: redirect it to a file, remove what may differ, and give
it to runs with --profile FILE. Exit codes: 0, 2 usage."""
HISTORY = """What the runs of --history FILE show together: which nodes fail again and again, what was repaired and came
back, when a figure became worse and what changed then. Exit codes: 0, 2 usage."""


def add_diff(command: argparse.ArgumentParser, named: Callable[[str], str]) -> None:
    """`named` refuses an empty text."""
    command.description = DIFF
    for name, which in (("old", "earlier"), ("new", "later")):
        command.add_argument(
            name, type=named, metavar=name.upper(), help=f"report.json of the {which} run, or the folder of --report"
        )
    command.add_argument("--json", type=named, metavar="FILE", help="write the difference (- is stdout)")
    command.add_argument("--html", type=named, metavar="FILE", help="write it as a page for a browser")


def add_history(command: argparse.ArgumentParser, named: Callable[[str], str]) -> None:
    command.description = HISTORY
    command.add_argument("history", type=named, metavar="FILE", help="what runs with --history FILE have kept")
    command.add_argument("--json", type=named, metavar="FILE", help="write the answers (- is stdout)")
    command.add_argument("--html", type=named, metavar="FILE", help="write them as a page for a browser")


def add_profile(command: argparse.ArgumentParser, named: Callable[[str], str]) -> None:
    command.description = PROFILE
    command.add_argument(
        "report", type=named, metavar="REPORT", help="report.json with its facts, or a folder of --report"
    )
