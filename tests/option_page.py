"""docs/options.md: all commands and options, out of their parsers. `python -m tests.check_pages` writes it, too."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from preflight.cli import arguments

PATH = Path(__file__).parent.parent / "docs" / "options.md"
ABOUT = """# Commands and options

Generated from the code by `python -m tests.check_pages`; a test keeps it fresh. `preflight COMMAND --help` prints the
same. Options of checks are for `--set`: [each check's page](checks/README.md) lists its own.

**Exit codes**: 0 no failure (warnings and skips allowed), 1 a failure was found, 2 usage, 3 preflight could not finish
its own work. Launchers flatten them: torchrun makes every non-zero one 1, srun takes the highest. Hooks read
`exit_code` in [the report](report.md).

**The screen** is live on a terminal; with `NO_COLOR`, `CI`, or into a file or a pipe it is plain lines. `preflight show
DIR` prints a saved report again.

**Bandwidth** is compared with the other ranks of the run, with an earlier run (`--baseline`: of as many ranks on the
same backend), and with published figures only where these were measured on the same kind of links (NVSwitch, MNNVL,
RDMA with GPUDirect). For sockets and PCIe there are no figures that would fit.

![A run of preflight in a terminal](screen.svg)
"""
PAGES = {
    "run --level": "performance.md", "run --only": "checks/README.md", "run --skip": "checks/README.md",
    "run --json": "report.md", "run --report": "report.md", "run --baseline": "history.md",
    "run --profile": "profile.md", "run --history": "history.md", "run --textfile": "history.md",
    "run --post": "history.md", "run --syslog": "history.md", "run --code": "checks/env.software.md",
    "run --data": "data.md", "run --model": "model.md", "run --checkpoint": "checkpoint.md",
    "run --set": "checks/README.md", "run --plugin": "writing-a-check.md",
    "rendezvous": "rendezvous.md", "checkpoint": "checkpoint-files.md", "resume": "resume.md",
    "explain": "explain.md", "debug": "explain.md#preflight-debug", "diff": "diff.md", "history": "history.md",
    "profile": "profile.md", "gate": "hooks.md#the-gate", "hook": "hooks.md", "nodes": "hooks.md#lists-of-nodes",
    "pick": "hooks.md#n-nodes-out-of-n--k", "list": "checks/README.md", "describe": "checks/README.md",
    "show": "report.md", "completion": "history.md#completion",
}  # fmt: skip
"""Where there is more about a command or an option."""


def text() -> str:
    """The whole page."""
    top = arguments.parser()
    commands = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    lines = [ABOUT]
    for name, command in commands.choices.items():
        lines += _section(name, command)
    return "\n".join(lines)


def _section(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## preflight {name}\n"
    purpose = arguments.COMMANDS[name]
    yield f"{_sentence(command.description or purpose)}{_more(name)}\n"
    rows = [row for action in command._actions for row in _row(name, action)]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n"


def _row(command: str, action: argparse.Action) -> Iterator[str]:
    if action.dest == "help":
        return
    name = (action.option_strings or [""])[0]
    values = [str(choice) for choice in action.choices or ()]
    value = "" if action.nargs == 0 else str(action.metavar or "|".join(values) or action.dest)
    written = f"{name} {value}".strip().replace("|", "\\|")
    meaning = re.sub(r"\(docs/([\w-]+\.md)\)", r"([more](\1))", action.help or "").replace("|", "\\|")
    yield f"| `{written}` | {meaning}{_more(f'{command} {name}')} |"


def _sentence(purpose: str) -> str:
    first = purpose[0].upper() + purpose[1:]
    return first if first.endswith((".", "?")) else f"{first}."


def _more(name: str) -> str:
    page = PAGES.get(name)
    return f" ([more]({page}))" if page else ""
