"""Makes findings milder for GPUs that the job does not use: they delay no rank, but the node is not sound."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from preflight.check import Finding, Run, Severity
from preflight.checks.gpu.shared.cards import INVENTORY

Judge = Callable[[Mapping[int, Any], Run], Iterator[Finding]]
MILDER = {Severity.FAIL: Severity.WARN, Severity.WARN: Severity.INFO}


def milder_elsewhere(judge: Judge) -> Judge:
    """A decorator for the `judge` of a check in this family."""

    @functools.wraps(judge)
    def weighed(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
        used = used_gpus(run.facts(INVENTORY), run)
        for finding in judge(facts, run):
            yield finding if _is_of_the_job(finding.where, used) else _milder(finding)

    return weighed


def used_gpus(inventory: Mapping[int, Any], run: Run) -> dict[str, set[str]]:
    """The UUIDs that each node's ranks may use, without nodes where CUDA_VISIBLE_DEVICES is not set or selects MIG
    instances. `inventory`: the facts of gpu.inventory."""
    used: dict[str, set[str]] = {}
    open_nodes = set()
    for rank, measured in inventory.items():
        node = run.job.node_of(rank).node
        used.setdefault(node, set()).update(measured["visible"])
        if measured["wanted"] is None or not _is_sure(measured):
            open_nodes.add(node)
    return {node: gpus for node, gpus in used.items() if node not in open_nodes}


def _is_sure(measured: Mapping[str, Any]) -> bool:
    """Whether we can be sure which GPUs CUDA_VISIBLE_DEVICES selects: CUDA may count another model first, stop at a
    lost GPU, or show MIG instances."""
    models = {handle["name"] for handle in measured["seen"]["gpus"].values()}
    in_order = len(models) < 2 or measured["order"] == "PCI_BUS_ID" or "GPU-" in measured["wanted"]
    read_to_the_end = measured["names_none"] in ("", "-1")
    return in_order and read_to_the_end and not any(uuid.startswith("MIG-") for uuid in measured["visible"])


SILENT = "silent "


def silent(gpu: int) -> str:
    """A stand-in for the UUID of a GPU that did not report it."""
    return f"{SILENT}{gpu}"


def _is_of_the_job(where: Mapping[str, Any], used: Mapping[str, set[str]]) -> bool:
    """Whether a finding concerns the job; true if it names no GPU, since it is about the node or the job."""
    if "gpu" not in where or where.get("node") not in used:
        return True
    names = {where.get("uuid") or silent(where["gpu"]), silent(where["gpu"])}
    return bool(names & used[where["node"]])


def _milder(finding: Finding) -> Finding:
    severity = MILDER.get(finding.severity, finding.severity)
    return replace(finding, severity=severity, message=f"{finding.message} (a GPU that this job does not use)")
