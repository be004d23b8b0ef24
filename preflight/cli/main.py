"""The command line. Imports no torch: `list`, `describe` and `--level quick` never need it. What a command needs is
imported with it, so that `list` and `--help` answer at once."""

import argparse
import errno
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from preflight import errors
from preflight.cli import catalog, environment, surroundings
from preflight.cli.arguments import COMMANDS, STARTING, parser
from preflight.errors import CannotWork, UsageError
from preflight.planning import registry

LOCAL_RANK = re.compile(r"--local[-_]rank=\d+")
STDOUT_REFUSES = (errno.EPIPE, errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)


def main(arguments: list[str], translate: Callable[[list[str]], list[str]] = list) -> NoReturn:
    """Runs the command until its exit. `translate` makes arguments of `preflight` from those of another command; its
    UsageError is reported as one of this command."""
    try:
        surroundings.need_a_folder()
        code = _dispatch(translate(_without_local_rank(arguments)))
        sys.stdout.flush()
    except Exception as error:
        code = _end_code(error)
    sys.exit(code)


def _without_local_rank(arguments: list[str]) -> list[str]:
    """DeepSpeed and torch.distributed.launch put it before the words of the user; LOCAL_RANK says it, too."""
    return arguments[bool(arguments) and bool(LOCAL_RANK.fullmatch(arguments[0])) :]


def _end_code(error: Exception) -> int:
    """Says in one sentence on stderr, if possible, why the command ends; returns the exit code."""
    if isinstance(error, OSError) and error.filename is None and error.errno in STDOUT_REFUSES:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            return 0
        error = UsageError(f"stdout: cannot be written ({error.strerror})", everywhere=False)
    if not isinstance(error, UsageError | CannotWork):
        from preflight.results.destinations import Output

        Output().report_fault()
        return 3
    from preflight.engine import shutdown

    if isinstance(error, CannotWork):
        _complain(str(error))
        shutdown.write_verdict(3, f"preflight: ERROR: {error}")
        return 3
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    if rank == "0" or not error.everywhere:
        _complain(f"{'' if rank == '0' else f'rank {rank}: '}{error}")
    shutdown.write_verdict(2, str(error))
    return 2


def _complain(text: str) -> None:
    """One line, as Output().complain prints it, but where sys.stderr leads: for whoever calls main() from Python."""
    from preflight.results.destinations import Output, for_terminal

    text = text.replace("\n", " ")  # of a path
    try:
        if sys.stderr is not sys.__stderr__:
            sys.stderr.write(f"preflight: {for_terminal(text)}\n")
        else:
            Output().complain(text)
    except OSError:
        pass


def _dispatch(arguments: list[str]) -> int:
    named = bool(arguments) and arguments[0] in COMMANDS
    if arguments and not named and not arguments[0].startswith("-"):
        hint = errors.near_misses(arguments[0], COMMANDS)
        raise UsageError(f"{arguments[0]}: there is no such command{hint}")
    words = arguments if named or arguments[:1] in (["-h"], ["--help"], ["--version"]) else ["run", *arguments]
    options, unknown = _parsed(words)
    if unknown:
        raise UsageError(_no_such_option(unknown[0], options.command))
    if options.command in STARTING:
        surroundings.need_what_processes_need()
    options.words = arguments
    commands = {
        "run": _run, "rendezvous": _rendezvous, "checkpoint": _checkpoint, "resume": _resume, "explain": _explain,
        "debug": _debug,
        "gate": _gate, "hook": _hook, "nodes": _nodes, "pick": _pick, "diff": _diff, "history": _history,
        "profile": _profile,
        "list": catalog.list_checks, "describe": catalog.describe_code, "show": _show, "completion": _completion,
    }  # fmt: skip
    return commands[options.command](options)


def _parsed(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """With what the environment says of a run."""
    command = words[0] if words[0] in COMMANDS else None
    names = environment.used(words, os.environ) if command == "run" else {}
    try:
        return parser(command).parse_known_args([*words, *environment.words_of(names, os.environ)])
    except UsageError as error:
        if not names:
            raise
        raise UsageError(f"{error} (the environment has {', '.join(names)})", everywhere=error.everywhere) from None


def _no_such_option(word: str, command: str) -> str:
    flag = word.partition("=")[0]
    others = [other for other in COMMANDS if flag in _flags(other)]
    hint = f"; it is one of {' and '.join(others)}" if others else errors.near_misses(word, _flags(command))
    return f"{word}: {command} has no such option{hint}"


def _flags(command: str) -> list[str]:
    known: Any = parser()._subparsers
    return [flag for flag in known._group_actions[0].choices[command]._option_string_actions if flag.startswith("--")]


def _run(options: argparse.Namespace) -> int:
    from preflight.cli import running

    return running.run(options)


def _show(options: argparse.Namespace) -> int:
    from preflight.cli import showing

    return showing.show(options)


def _rendezvous(options: argparse.Namespace) -> int:
    from preflight.rendezvous import arguments, command

    command.run(arguments.request(options))


def _checkpoint(options: argparse.Namespace) -> int:
    from preflight.checkpoint import arguments, command

    return command.run(arguments.request(options))


def _resume(options: argparse.Namespace) -> int:
    from preflight.resume import arguments, command

    return command.run(arguments.request(options))


def _explain(options: argparse.Namespace) -> int:
    from preflight.explain import command

    return command.run(options)


def _debug(options: argparse.Namespace) -> int:
    from preflight.debug import arguments, command

    return command.run(arguments.request(options))


def _diff(options: argparse.Namespace) -> int:
    from preflight.history import command

    return command.run_diff(options, registry.sources(options.plugin))


def _history(options: argparse.Namespace) -> int:
    from preflight.history import command

    return command.run_history(options)


def _profile(options: argparse.Namespace) -> int:
    from preflight.history import command

    return command.run_profile(options, registry.sources())


def _completion(options: argparse.Namespace) -> int:
    from preflight.cli import completion

    print(completion.script(options.shell))
    return 0


def _gate(options: argparse.Namespace) -> int:
    from preflight.cluster import arguments, gate

    return gate.run(arguments.gate_request(options))


def _hook(options: argparse.Namespace) -> int:
    from preflight.cluster import hook

    return hook.run(options.name)


def _nodes(options: argparse.Namespace) -> int:
    from preflight.cluster import nodes

    return nodes.run(options)


def _pick(options: argparse.Namespace) -> int:
    from preflight.cluster import arguments, pick

    return pick.run(arguments.pick_request(options))
