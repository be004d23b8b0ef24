"""The command lines of `preflight gate`, `hook`, `nodes` and `pick`."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from preflight.cluster.hook import HOOKS
from preflight.cluster.host_list import FORMATS
from preflight.errors import UsageError

GATE = """Runs a launcher's preflight, adds --report, and ends with 1 if this run found a failure, with 0 if it found
none. If there is no verdict (preflight is missing, hangs, cannot write its report) it ends with 0, or with 1 if
--closed is given, and says why."""
HOOK = """Prints a hook for a scheduler, with the paths of this machine: save it where the scheduler looks for it."""
NODES = """Prints the nodes of saved reports: bad ones, which a failure names, or good ones, which a job may use."""
ACTIONS = "actions"
"""A format: JSON with the action for each node."""
PICK = """Inside a Slurm job of more than N nodes: runs preflight on all, picks the N best, runs it again on those, and
prints them. Exit codes: 0 picked, 1 too few are sound, 2 usage, 3 no verdict."""
GATE_S, PICK_S = 1000.0, 300.0
"""Above preflight's own deadline, which is 900 s with --all and 120 s at level standard."""


@dataclass(frozen=True)
class GateRequest:
    launcher: tuple[str, ...]
    closed: bool
    """Whether the job is held if there is no verdict."""
    limit_s: float
    folder: str | None
    reason: str
    """The prefix of the line on stdout; "" prints none."""


@dataclass(frozen=True)
class PickRequest:
    nodes: int
    options: tuple[str, ...]
    """Options of preflight run."""
    folder: str | None
    host_file: str | None
    limit_s: float


def add_gate(command: argparse.ArgumentParser, named: Callable[[str], str], seconds: Callable[[str], float]) -> None:
    """`named` refuses an empty text; `seconds` parses a duration."""
    command.description = GATE
    doubt = command.add_mutually_exclusive_group()
    doubt.add_argument("--open", action="store_true", help="without a verdict the job is not held (the default)")
    doubt.add_argument("--closed", action="store_true", help="without a verdict the job is held")
    command.add_argument("--limit", type=seconds, default=GATE_S, metavar="S", help=f"seconds at most ({GATE_S:.0f})")
    command.add_argument(
        "--report", type=named, metavar="DIR", help="for the report, shared by the nodes (preflight-JOB-RESTARTS)"
    )
    command.add_argument(
        "--reason", type=named, metavar="PREFIX", help="one line on stdout: PREFIX and the failure, or ok"
    )
    command.add_argument("launcher", nargs=argparse.REMAINDER, metavar="-- LAUNCHER...", help="with its preflight")


def gate_request(options: argparse.Namespace) -> GateRequest:
    """Raises UsageError."""
    launcher = _after_dashes("gate", options.launcher, "preflight gate -- torchrun --nproc-per-node 8 -m preflight")
    if not launcher:
        raise UsageError("gate: expected a command after --, as in preflight gate -- srun python -m preflight")
    if "--report" in launcher:
        raise UsageError("gate: --report comes after the --, but it is an option of the gate: give it before the --")
    return GateRequest(launcher, options.closed, options.limit, options.report, options.reason or "")


def _after_dashes(command: str, given: list[str], example: str) -> tuple[str, ...]:
    if given and given[0] != "--" and given[0].startswith("-"):
        raise UsageError(f"{command}: {given[0]}: there is no such option; what comes after -- is as in {example}")
    return tuple(given[1:] if given[:1] == ["--"] else given)


def add_hook(command: argparse.ArgumentParser) -> None:
    command.description = HOOK
    command.add_argument("name", choices=sorted(HOOKS), metavar="NAME", help=", ".join(sorted(HOOKS)))


def add_nodes(command: argparse.ArgumentParser) -> None:
    command.description = NODES
    command.add_argument("reports", nargs="+", metavar="REPORT", help="report.json, or a folder of --report")
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("--good", action="store_true", help="in every one of the reports")
    which.add_argument("--bad", action="store_true", help="in any of them")
    command.add_argument("--format", choices=sorted((*FORMATS, ACTIONS)), default="lines", help="output format (lines)")


def add_pick(
    command: argparse.ArgumentParser,
    named: Callable[[str], str],
    seconds: Callable[[str], float],
    number: Callable[[str], int],
) -> None:
    command.description = PICK
    command.add_argument("-N", dest="nodes", type=number, required=True, metavar="N", help="nodes that the job needs")
    command.add_argument("--report", type=named, metavar="DIR", help="for the two reports (preflight-pick-JOB)")
    command.add_argument("--hostfile", type=named, metavar="FILE", help="write the nodes there, one a line with slots")
    command.add_argument(
        "--limit", type=seconds, default=PICK_S, metavar="S", help=f"seconds at most for each run ({PICK_S:.0f})"
    )
    command.add_argument("options", nargs=argparse.REMAINDER, metavar="-- OPTIONS...", help="of preflight run")


def pick_request(options: argparse.Namespace) -> PickRequest:
    """Raises UsageError."""
    given = _after_dashes("pick", options.options, "preflight pick -N 64 -- --level standard")
    return PickRequest(options.nodes, given, options.report, options.hostfile, options.limit)
