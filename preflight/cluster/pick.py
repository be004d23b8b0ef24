"""`preflight pick`: in a Slurm job with more nodes than the training needs, runs preflight and picks the N best."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from preflight.cluster import gate
from preflight.cluster.arguments import GateRequest, PickRequest
from preflight.cluster.host_list import FORMATS, fold
from preflight.core import rank_ranges, words
from preflight.errors import UsageError
from preflight.results import report_files
from preflight.results.destinations import Output
from preflight.results.report import Report
from preflight.results.report_nodes import bad_nodes, blamed_nodes, good_nodes
from preflight.sdk import paths

SLURM_S = 20.0
"""Time for a command of Slurm that only reads."""


def run(asked: PickRequest) -> int:
    """Returns the exit code. Raises UsageError outside a Slurm job with enough nodes."""
    job = os.environ.get("SLURM_JOB_ID")
    there = _hosts(os.environ.get("SLURM_JOB_NODELIST", "")) if job else []
    if len(there) < asked.nodes:
        what = f"this is a job of {rank_ranges.count(len(there), 'node')}" if job else "this is not a Slurm job"
        text = f"pick -N {asked.nodes}: {what}, expected one of at least {rank_ranges.count(asked.nodes, 'node')}"
        raise UsageError(text, everywhere=False)
    folder = asked.folder or f"preflight-pick-{job}-{os.environ.get('SLURM_RESTART_COUNT', 0)}"
    screen = gate.take_stdout()
    try:
        chosen = _picked(asked, there, folder)
    except gate.SignalCame as why:
        return why.code
    except gate.Undecided as why:
        say(f"{why}, so nothing is picked")
        return 3
    if chosen:
        os.write(screen, FORMATS["slurm"](chosen, {}).encode())
    return 0 if chosen else 1


def say(text: str) -> None:
    Output().complain(f"pick: {text}")


def _picked(asked: PickRequest, there: Sequence[str], folder: str) -> list[str]:
    """The picked nodes; [] if too few are sound. Raises Undecided and SignalCame of gate."""
    report = _look(asked, there, os.path.join(folder, "all"))
    chosen = best(report, asked.nodes, _switches())
    if len(chosen) < asked.nodes:
        _say_too_few(report, asked.nodes)
        return []
    confirmed = _look(asked, chosen, os.path.join(folder, "picked"))
    if len(good_nodes(confirmed)) < asked.nodes:
        say(f"the second run, on {fold(chosen)} alone, found a failure: see its report in {folder}/picked")
        return []
    if asked.host_file:
        ranks = {node.node: len(node.ranks) for node in confirmed.job.nodes}
        path, text = asked.host_file, FORMATS["hostfile"](chosen, ranks)
        paths.ask(f"--hostfile {path}", lambda: report_files.write_asked("--hostfile", path, text, everywhere=False))
    return chosen


def _say_too_few(report: Report, wanted: int) -> None:
    good, bad = good_nodes(report), bad_nodes(report)
    unknown = "" if good or bad else "; a failure names no node, so it may be any"
    named = words.some(bad, 16) or "none is named"
    say(f"{rank_ranges.count(len(good), 'node')} may be used, {wanted:,} are needed; bad nodes: {named}{unknown}")


def best(report: Report, wanted: int, switch_of: Mapping[str, str]) -> list[str]:
    """Nodes without a failure, preferring those with the fewest warnings, then those at the switch that has most of
    them. In the report's order; fewer than `wanted` if no more are sound."""
    warnings = Counter(
        node for finding in report.findings if finding.severity == "warn" and finding.counts
        for node in blamed_nodes(finding, report.job)
    )  # fmt: skip
    good = good_nodes(report)
    chosen: list[str] = []
    for count in sorted({warnings[node] for node in good}):
        equals = [node for node in good if warnings[node] == count]
        size = Counter(switch_of.get(node, "") for node in (*chosen, *equals))
        equals.sort(key=lambda node: (-size[switch_of.get(node, "")], switch_of.get(node, "")))
        chosen += equals[: wanted - len(chosen)]
    return [node for node in good if node in chosen]


def _look(asked: PickRequest, nodes: Sequence[str], folder: str) -> Report:
    """Runs preflight on these nodes. Raises Undecided and SignalCame of gate."""
    per_node = _ranks_per_node()
    launcher = (
        "srun", "--kill-on-bad-exit=0", f"--nodes={len(nodes)}", f"--nodelist={fold(nodes)}",
        f"--ntasks={per_node * len(nodes)}", f"--ntasks-per-node={per_node}",
        sys.executable, "-m", "preflight", *asked.options,
    )  # fmt: skip
    report, _ = gate.verdict(GateRequest(launcher, closed=True, limit_s=asked.limit_s, folder=folder, reason=""))
    assert report is not None, "closed"
    return report


def _ranks_per_node() -> int:
    """As the job requests, else one per GPU, else one."""
    for name in ("SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 1


def _hosts(listed: str) -> list[str]:
    """The names in one of Slurm's host lists."""
    return _slurm_output("scontrol", "show", "hostnames", listed).split()


def _switches() -> dict[str, str]:
    """The lowest switch, or the block of an NVLink domain, of each node; {} if Slurm's topology is flat."""
    found: dict[str, str] = {}
    for line in _slurm_output("scontrol", "show", "topology").splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split())
        if "Nodes" in fields and (fields.get("Level") == "0" or "BlockName" in fields):
            name = fields.get("BlockName") or fields["SwitchName"]
            found |= dict.fromkeys(_hosts(fields["Nodes"]), name)
    return found


def _slurm_output(*command: str) -> str:
    """What a command of Slurm prints; "" if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SLURM_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
