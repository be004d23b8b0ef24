"""All commands and options of preflight that take a path, from the parsers, and sound inputs for each."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from preflight.cli import arguments
from tests import running

QUICK = ("--level", "quick", "--only", "env.launch")
NO_PATHS = {
    "ID_OR_FAMILY,..", "DAYS", "URL", "S", "ID.OPTION=VALUE", "HOST:PORT", "N", "R", "CONF", "ID", "PREFIX",
    "CHECK_OR_CODE", "-- COMMAND...", "-- LAUNCHER...", "-- OPTIONS...", "NAME", "COMMAND", "STEP", "WORDS",
}  # fmt: skip
"""Metavars of values that are no path. A new metavar is one until it is here."""
OPERANDS = {
    "checkpoint": ["PATH", "--timeout", "3"], "explain": ["LOG"], "diff": ["REPORT", "REPORT"],
    "history": ["HISTORY"], "profile": ["REPORT"], "nodes": ["--bad", "REPORT"], "describe": ["env.launch"],
    "show": ["REPORT"], "run": list(QUICK), "pick": ["-N", "1", "--", *QUICK], "gate": ["--closed", "--", "true"],
    "debug": ["--", "true"], "resume": ["--", "true", "{dir}"],
}  # fmt: skip
"""What makes a command sound, beside the option in question."""
MORE = {
    ("run", "--post-token"): ["--post", "http://127.0.0.1:9/"], ("run", "--code"): ["--only", "env.software"],
    ("run", "--data"): ["--level", "standard", "--only", "data.sampler", "--deadline", "30"],
    ("run", "--model"): ["--level", "full", "--only", "train.model", "--deadline", "60"],
    ("run", "--checkpoint"): ["--level", "full", "--only", "train.checkpoint", "--deadline", "60"],
    ("show", "--config"): ["--judge"],
}  # fmt: skip


def takes_paths() -> Iterator[tuple[str, str]]:
    """(command, option or name of the operand) of all that take a path."""
    commands = next(a for a in arguments.parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        for action in command._actions:
            is_value = action.nargs != 0 and not action.choices and action.metavar is not None
            if is_value and action.metavar not in NO_PATHS:
                yield name, (action.option_strings or [action.dest])[0]


ALL = sorted(takes_paths())
SLOW = {("run", "--model"), ("run", "--checkpoint"), ("run", "--data")}
"""They start ranks."""


def words_of(command: str, option: str, dead: str, given: Mapping[str, str]) -> list[str]:
    words = [given.get(word, word) for word in OPERANDS.get(command, [])]
    if not option.startswith("-"):
        place = 1 if (command, option) in (("diff", "new"), ("nodes", "reports")) else 0
        return [*words[:place], dead, *words[place + 1 :]]
    value = f"{dead}:made" if option in ("--data", "--model") else dead
    return [option, value, *MORE.get((command, option), []), *words]


def sound(top: Path) -> dict[str, str]:
    """By operand, what is sound: a report, a log, a history, a checkpoint."""
    (top / "job.log").write_text("step 1\n")
    (top / "model.safetensors").write_bytes(
        (head := json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode())
        and len(head).to_bytes(8, "little") + head + bytes(4)
    )
    written = ["--report", str(top / "report"), "--history", str(top / "h.sqlite")]
    run = [sys.executable, "-m", "preflight", *QUICK, *written]
    subprocess.run(run, env=running.environment(), check=True, capture_output=True, timeout=running.HUNG_S)
    return {
        "REPORT": str(top / "report"), "LOG": str(top / "job.log"), "HISTORY": str(top / "h.sqlite"),
        "PATH": str(top / "model.safetensors"),
    }  # fmt: skip


def in_slurm(folder: Path) -> dict[str, str]:
    """A made-up Slurm job of this node, for `pick`."""
    for name, text in {"scontrol": "hostname", "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"'}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": os.uname().nodename}
