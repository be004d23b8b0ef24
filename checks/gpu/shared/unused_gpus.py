"""What is found on GPUs that the job does not use is milder: it holds nobody up, but the node is not sound."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from preflight.check import Finding, Run, Severity
from preflight.checks.gpu.shared.cards import INVENTORY

Judge = Callable[[Mapping[int, Any], Run], Iterator[Finding]]
MILDER = {Severity.FAIL: Severity.WARN, Severity.WARN: Severity.INFO}


def milder_elsewhere(judge: Judge) -> Judge:
    """For the `judge` of a check of this family."""

    @functools.wraps(judge)
    def weighed(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
        used = used_gpus(run.facts(INVENTORY), run)
        for finding in judge(facts, run):
            yield finding if _is_of_the_job(finding.where, used) else _milder(finding)

    return weighed


def used_gpus(inventory: Mapping[int, Any], run: Run) -> dict[str, set[str]]:
    """The UUIDs that the ranks of each node may use; nodes on which CUDA_VISIBLE_DEVICES says nothing, or names slices
    of GPUs, are left out. `inventory`: the facts of gpu.inventory."""
    used: dict[str, set[str]] = {}
    open_nodes = set()
    for rank, measured in inventory.items():
        node = run.job.node_of(rank).node
        used.setdefault(node, set()).update(measured["visible"])
        if measured["wanted"] is None or not _is_sure(measured):
            open_nodes.add(node)
    return {node: gpus for node, gpus in used.items() if node not in open_nodes}


def _is_sure(measured: Mapping[str, Any]) -> bool:
    """Whether the GPUs of CUDA_VISIBLE_DEVICES are those that we take them for: CUDA may count another model first,
    stop at a GPU that is lost, and show instances of one."""
    models = {handle["name"] for handle in measured["seen"]["gpus"].values()}
    in_order = len(models) < 2 or measured["order"] == "PCI_BUS_ID" or "GPU-" in measured["wanted"]
    read_to_the_end = measured["names_none"] in ("", "-1")
    return in_order and read_to_the_end and not any(uuid.startswith("MIG-") for uuid in measured["visible"])


SILENT = "silent "


def silent(gpu: int) -> str:
    """Stands for the UUID of a GPU that did not tell it."""
    return f"{SILENT}{gpu}"


def _is_of_the_job(where: Mapping[str, Any], used: Mapping[str, set[str]]) -> bool:
    """Also what names no GPU: that is about the node, or about the job."""
    if "gpu" not in where or where.get("node") not in used:
        return True
    names = {where.get("uuid") or silent(where["gpu"]), silent(where["gpu"])}
    return bool(names & used[where["node"]])


def _milder(finding: Finding) -> Finding:
    severity = MILDER.get(finding.severity, finding.severity)
    return replace(finding, severity=severity, message=f"{finding.message} (a GPU that this job does not use)")
