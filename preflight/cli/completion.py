"""`preflight completion SHELL`: the script that completes commands, options, checks and codes, by shtab."""

import argparse
import sys
from collections.abc import Iterator, Mapping

from preflight.cli import arguments
from preflight.errors import UsageError
from preflight.planning import registry
from preflight.planning.registry import Source

PATHS = ("FILE", "REPORT", "OLD", "NEW", "PATH", "DIR_OR_FILE", "MODULE_OR_FILE", "MODULE:FUNCTION", "MODULE:NAME")
"""Metavars of values that may be a path."""


def script(shell: str) -> str:
    """The completion script for a shell. Raises UsageError if shtab is not installed."""
    try:
        import shtab
    except ImportError:
        command = f"{sys.executable} -m pip install shtab"
        raise UsageError(f"completion: needs the package shtab, which is not installed: {command}") from None
    top = arguments.parser()
    arguments.add_run(top)  # preflight --level quick is preflight run --level quick
    words = _words(registry.sources())
    for action in _actions(top):
        if action.metavar in words:
            action.choices = words[action.metavar]
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.metavar in PATHS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(top, shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The actions of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


def _words(sources: Mapping[str, Source]) -> dict[object, list[str]]:
    """The words to complete by metavar: checks and families, their codes, and their options."""
    checks = [registry.load(source) for source in sources.values() if source.kind == "builtin"]
    ids = [*sources, *dict.fromkeys(id_.partition(".")[0] for id_ in sources)]
    return {
        "ID_OR_FAMILY,..": ids,
        "CHECK_OR_CODE": [*ids, *(check.code_id(code) for check in checks for code in check.codes.values())],
        "ID.OPTION=VALUE": [f"{check.id}.{name}=" for check in checks for name in check.options],
    }
