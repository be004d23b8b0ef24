"""All commands and options of the command line."""

import argparse
from typing import NoReturn

from preflight import __version__
from preflight.check import Level, UserCode, count
from preflight.checkpoint import arguments as saved
from preflight.cluster import arguments as clustering
from preflight.debug import arguments as debugging
from preflight.errors import UsageError
from preflight.explain import arguments as explaining
from preflight.history import arguments as comparing
from preflight.planning.plan import LONGEST_S, SHORTEST_S
from preflight.rendezvous import arguments as meeting
from preflight.sinks import arguments as delivering

COMMANDS = (
    "run", "rendezvous", "checkpoint", "explain", "debug", "gate", "hook", "nodes", "pick", "diff", "history",
    "profile", "list", "describe", "show", "completion",
)  # fmt: skip
STARTING = ("run", "rendezvous", "checkpoint", "debug", "gate", "pick")
"""The commands that start processes."""
SHELLS = ("bash", "zsh", "fish")


class Parser(argparse.ArgumentParser):
    """One sentence and exit code 2, instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="preflight",
        description="Tells before training starts whether this machine or cluster can run a distributed PyTorch job.",
        epilog="In a job's own launcher: torchrun [...] -m preflight --all. Without a command: run. "
        "Exit codes: 0 no failure, 1 a failure was found, 2 usage, 3 preflight could not finish its own work.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"preflight {__version__}")
    commands = top.add_subparsers(dest="command", parser_class=Parser, metavar="COMMAND")
    add_run(commands.add_parser("run", help="run the checks (the default)", allow_abbrev=False))
    meet = commands.add_parser("rendezvous", help="before torchrun: do the nodes meet?", allow_abbrev=False)
    meeting.add_to(meet, _seconds)
    saved.add_to(
        commands.add_parser("checkpoint", help="is a saved checkpoint whole, and does it fit?", allow_abbrev=False),
        _named,
        _user_code,
        _seconds,
    )
    explaining.add_to(
        commands.add_parser("explain", help="why did this job fail? its logs, dumps and reports", allow_abbrev=False),
        _named,
    )
    debugging.add_to(
        commands.add_parser(
            "debug", help="run a job with the right logging on, and explain its failure", allow_abbrev=False
        ),
        _named,
        _seconds,
    )
    compared = commands.add_parser("diff", help="what has changed between two runs?", allow_abbrev=False)
    comparing.add_diff(compared, _named)
    kept = commands.add_parser("history", help="what do the runs of --history show together?", allow_abbrev=False)
    comparing.add_history(kept, _named)
    good = commands.add_parser("profile", help="what the nodes of a sound run have", allow_abbrev=False)
    comparing.add_profile(good, _named)
    _add_cluster(commands)
    listed = commands.add_parser("list", help="list the checks", allow_abbrev=False)
    described = commands.add_parser("describe", help="explain a check or a code", allow_abbrev=False)
    described.add_argument("what", metavar="CHECK_OR_CODE")
    shown = commands.add_parser("show", help="print a saved report again", allow_abbrev=False)
    shown.add_argument("report", metavar="REPORT", help="report.json, or the folder that --report wrote")
    shown.add_argument("--judge", action="store_true", help="judge its facts again")
    shown.add_argument("--json", metavar="FILE", help="also write the report (- is stdout)")
    shown.add_argument("--html", type=_named, metavar="FILE", help="also write it as a page for a browser")
    _add_settings(shown)
    completed = commands.add_parser("completion", help="print the completion script of a shell", allow_abbrev=False)
    completed.add_argument("shell", choices=SHELLS, help="source <(preflight completion bash)")
    for command in (compared, listed, described, shown):
        _add_plugins(command)
    return top


def _add_cluster(commands: "argparse._SubParsersAction[Parser]") -> None:
    gate = commands.add_parser("gate", help="hold a job, by its launcher's preflight", allow_abbrev=False)
    clustering.add_gate(gate, _named, _seconds)
    clustering.add_hook(commands.add_parser("hook", help="print a scheduler's hook", allow_abbrev=False))
    clustering.add_nodes(commands.add_parser("nodes", help="list a report's nodes", allow_abbrev=False))
    pick = commands.add_parser("pick", help="in a Slurm job of more nodes, pick the N best", allow_abbrev=False)
    clustering.add_pick(pick, _named, _seconds, _number)


def add_run(run: argparse.ArgumentParser) -> None:
    """The options of a run."""
    run.add_argument("--level", choices=[str(level) for level in Level], help="how much to check (standard)")
    run.add_argument("--all", action="store_true", help="the same as --level full")
    run.add_argument(
        "--only",
        action="append",
        type=_named,
        default=[],
        metavar="ID_OR_FAMILY,..",
        help="these checks, and what they need",
    )
    run.add_argument(
        "--skip", action="append", type=_named, default=[], metavar="ID_OR_FAMILY,..", help="not these checks"
    )
    run.add_argument("--json", type=_named, metavar="FILE", help="write the report (- is stdout)")
    run.add_argument("--facts", action="store_true", help="with the facts in it")
    run.add_argument("--report", type=_named, metavar="DIR", help="write the report, its facts and all other formats")
    run.add_argument(
        "--baseline", type=_named, metavar="REPORT", help="compare speeds with this report, or auto: with --history"
    )
    run.add_argument("--profile", type=_named, metavar="FILE", help="compare each node with its kind in this file")
    delivering.add_to(run, _named)
    run.add_argument("--strict", action="store_true", help="warnings and skips are failures, too")
    run.add_argument(
        "--deadline",
        type=_seconds,
        metavar="S",
        help="seconds for the whole run (quick 60, alone on GPUs 120 for their driver; standard 120, full 900)",
    )
    run.add_argument("--backend", choices=["auto", "nccl", "gloo"], help="auto: nccl where torch can use a GPU")
    run.add_argument(
        "--code", type=_named, metavar="DIR", help="the training code, must be equal on all nodes (else its git commit)"
    )
    run.add_argument(
        "--data", type=_user_code, metavar="MODULE:FUNCTION", help="check your own DataLoader (or FILE.py:FUNCTION)"
    )
    run.add_argument(
        "--model",
        type=_model,
        metavar="MODULE:NAME",
        help="train your own model, too (or FILE.py:NAME, or a config.json of transformers)",
    )
    run.add_argument(
        "--checkpoint",
        type=_named,
        metavar="DIR",
        help="the folder for your checkpoints: saves some there as a test",
    )
    _add_settings(run)
    _add_plugins(run)


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=_named, metavar="FILE", help="settings and waivers, in TOML (docs/config.md)")
    command.add_argument("--set", action="append", default=[], metavar="ID.OPTION=VALUE", help="an option of a check")


def _add_plugins(command: argparse.ArgumentParser) -> None:
    command.add_argument("--plugin", action="append", default=[], metavar="MODULE_OR_FILE", help="a check of your own")


def _named(text: str) -> str:
    """Refuses an empty text: an unset variable in a script must not silently drop an option."""
    if not text.strip(" ,"):
        raise argparse.ArgumentTypeError("it is empty")
    return text


def _user_code(text: str) -> str:
    try:
        UserCode.parse(_named(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None
    return text


def _model(text: str) -> str:
    """A function, a class or a model; or the configuration of a model."""
    if text.strip().endswith(".json"):
        return text
    try:
        return _user_code(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or a config.json of transformers") from None


def _number(text: str) -> int:
    try:
        return count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from {SHORTEST_S:.0f} to {LONGEST_S:.0f}")
    return seconds
