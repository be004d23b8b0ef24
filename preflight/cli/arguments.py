"""All commands and options of the command line."""

import argparse
from typing import NoReturn

from preflight._version import VERSION
from preflight.errors import UsageError

COMMANDS = {
    "run": "run the checks (the default)",
    "rendezvous": "before torchrun: do the nodes meet?",
    "checkpoint": "is a saved checkpoint whole, and does it fit?",
    "resume": "does a stopped training go on as if it had not stopped?",
    "explain": "why did this job fail? its logs, dumps and reports",
    "debug": "run a job with the right logging on, and explain its failure",
    "diff": "what has changed between two runs?",
    "history": "what do the runs of --history say together?",
    "profile": "what the nodes of a sound run have",
    "gate": "hold a job, by its launcher's preflight",
    "hook": "print a scheduler's hook",
    "nodes": "list a report's nodes",
    "pick": "in a Slurm job of more nodes, pick the N best",
    "list": "list the checks",
    "describe": "explain a check or a code",
    "show": "print a saved report again",
    "completion": "print the completion script of a shell",
}
STARTING = ("run", "rendezvous", "checkpoint", "resume", "debug", "gate", "pick")
"""The commands that start processes."""
SHELLS = ("bash", "zsh", "fish")
EXAMPLES = """examples:
  torchrun [...] -m preflight                          (in a job's launcher, on all nodes)
  torchrun [...] -m preflight --all --report DIR       (everything, with a page for a browser in DIR)
  preflight --level quick --only env,gpu               (on one node, in seconds, without torch)
"""


class Parser(argparse.ArgumentParser):
    """One sentence and exit code 2, instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """Of all commands, or of one: the options of each take the import of its room."""
    top = Parser(
        prog="preflight",
        description="Tells before training starts whether this machine or cluster can run a distributed PyTorch job.",
        epilog="In a job's own launcher: torchrun [...] -m preflight --all. Without a command: run. "
        "Exit codes: 0 no failure, 1 a failure was found, 2 usage, 3 preflight could not finish its own work.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"preflight {VERSION}")
    commands = top.add_subparsers(dest="command", parser_class=Parser, metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        if only in (None, name):
            command = commands.add_parser(
                name,
                help=purpose,
                allow_abbrev=False,
                epilog=EXAMPLES if name == "run" else None,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            _add_options(name, command)
    return top


def _add_options(name: str, command: Parser) -> None:
    if name == "run":
        add_run(command)
    elif name in ("rendezvous", "checkpoint", "resume", "explain", "debug"):
        _add_looking(name, command)
    elif name in ("diff", "history", "profile"):
        _add_comparing(name, command)
    elif name in ("gate", "hook", "nodes", "pick"):
        _add_cluster(name, command)
    elif name == "describe":
        command.add_argument("what", metavar="CHECK_OR_CODE")
    elif name == "show":
        _add_show(command)
    elif name == "completion":
        command.add_argument("shell", choices=SHELLS, help="source <(preflight completion bash)")
    if name in ("diff", "list", "describe", "show"):
        _add_plugins(command)


def _add_looking(name: str, command: Parser) -> None:
    from preflight.checkpoint import arguments as saved
    from preflight.debug import arguments as debugging
    from preflight.explain import arguments as explaining
    from preflight.rendezvous import arguments as meeting
    from preflight.resume import arguments as resuming

    if name == "rendezvous":
        meeting.add_to(command, _seconds)
    elif name == "checkpoint":
        saved.add_to(command, _named, _user_code, _seconds)
    elif name == "resume":
        resuming.add_to(command, _named, _seconds, _number)
    elif name == "explain":
        explaining.add_to(command, _named)
    else:
        debugging.add_to(command, _named, _seconds)


def _add_comparing(name: str, command: Parser) -> None:
    from preflight.history import arguments as comparing

    add = {"diff": comparing.add_diff, "history": comparing.add_history, "profile": comparing.add_profile}
    add[name](command, _named)


def _add_cluster(name: str, command: Parser) -> None:
    from preflight.cluster import arguments as clustering

    if name == "gate":
        clustering.add_gate(command, _named, _seconds)
    elif name == "hook":
        clustering.add_hook(command)
    elif name == "nodes":
        clustering.add_nodes(command)
    else:
        clustering.add_pick(command, _named, _seconds, _number)


def _add_show(shown: Parser) -> None:
    shown.add_argument("report", metavar="REPORT", help="report.json, or the folder that --report wrote")
    shown.add_argument("--judge", action="store_true", help="judge its facts again")
    shown.add_argument("--json", metavar="FILE", help="also write the report (- is stdout)")
    shown.add_argument("--html", type=_named, metavar="FILE", help="also write it as a page for a browser")
    _add_settings(shown)


def add_run(run: argparse.ArgumentParser) -> None:
    """The options of a run, in groups for its help."""
    from preflight.sinks import arguments as delivering

    names = ("what is checked", "your own code", "what is written", "what it is compared with", "how")
    chosen, own, written, against, how = map(run.add_argument_group, names)
    _add_chosen(chosen)
    _add_written(written)
    _add_against(against)
    delivering.add_to(written, _named)
    _add_how(how)
    _add_own(own)
    _add_settings(how)
    _add_plugins(own)


def _add_chosen(chosen: argparse._ActionsContainer) -> None:
    from preflight.check import Level

    chosen.add_argument("--level", choices=[str(level) for level in Level], help="how much to check (standard)")
    chosen.add_argument("--all", action="store_true", help="the same as --level full")
    chosen.add_argument(
        "--only",
        action="append",
        type=_named,
        default=[],
        metavar="ID_OR_FAMILY,..",
        help="these checks, and what they need",
    )
    chosen.add_argument(
        "--skip", action="append", type=_named, default=[], metavar="ID_OR_FAMILY,..", help="not these checks"
    )


def _add_written(written: argparse._ActionsContainer) -> None:
    written.add_argument("--json", type=_named, metavar="FILE", help="write the report (- is stdout)")
    written.add_argument("--facts", action="store_true", help="with the facts in it")
    written.add_argument(
        "--report", type=_named, metavar="DIR", help="write the report, its facts and all other formats"
    )


def _add_against(against: argparse._ActionsContainer) -> None:
    against.add_argument(
        "--baseline", type=_named, metavar="REPORT", help="compare speeds with this report, or auto: with --history"
    )
    against.add_argument("--profile", type=_named, metavar="FILE", help="compare each node with its kind in this file")


def _add_how(how: argparse._ActionsContainer) -> None:
    detail = how.add_mutually_exclusive_group()
    detail.add_argument("-q", "--quiet", action="store_true", help="show only what is no pass, and the verdict")
    detail.add_argument("-v", "--verbose", action="store_true", help="show all findings of a kind, and all tables")
    how.add_argument("--strict", action="store_true", help="warnings and skips are failures, too")
    how.add_argument(
        "--deadline",
        type=_seconds,
        metavar="S",
        help="seconds for the whole run (quick 60, alone on GPUs 120 for their driver; standard 120, full 900)",
    )
    how.add_argument("--backend", choices=["auto", "nccl", "gloo"], help="auto: nccl where torch can use a GPU")


def _add_own(own: argparse._ActionsContainer) -> None:
    own.add_argument(
        "--code", type=_named, metavar="DIR", help="the training code, must be equal on all nodes (else its git commit)"
    )
    own.add_argument(
        "--data", type=_user_code, metavar="MODULE:FUNCTION", help="check your own DataLoader (or FILE.py:FUNCTION)"
    )
    own.add_argument(
        "--model",
        type=_model,
        metavar="MODULE:NAME",
        help="train your own model, too (or FILE.py:NAME, or a config.json of transformers)",
    )
    own.add_argument(
        "--checkpoint",
        type=_named,
        metavar="DIR",
        help="the folder for your checkpoints: saves some there as a test",
    )


def _add_settings(command: argparse._ActionsContainer) -> None:
    command.add_argument("--config", type=_named, metavar="FILE", help="settings and waivers, in TOML (docs/config.md)")
    command.add_argument("--set", action="append", default=[], metavar="ID.OPTION=VALUE", help="an option of a check")


def _add_plugins(command: argparse._ActionsContainer) -> None:
    command.add_argument("--plugin", action="append", default=[], metavar="MODULE_OR_FILE", help="a check of your own")


def _named(text: str) -> str:
    """Refuses an empty text: an unset variable in a script must not silently drop an option."""
    if not text.strip(" ,"):
        raise argparse.ArgumentTypeError("it is empty")
    return text


def _user_code(text: str) -> str:
    from preflight.check import UserCode

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
    from preflight.check import count

    try:
        return count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seconds(text: str) -> float:
    from preflight.planning.plan import LONGEST_S, SHORTEST_S

    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from {SHORTEST_S:.0f} to {LONGEST_S:.0f}")
    return seconds
