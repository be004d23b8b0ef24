"""What all or nearly all nodes of a group have, and most others do not, is one finding: "all 32 nodes of rack 7"."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from preflight.core import rank_ranges, words
from preflight.core.finding import Reported
from preflight.core.groups import Group
from preflight.core.job import Job
from preflight.core.vote import grouped

OF_A_NODE = ("node", "rank", "local_rank")
NEARLY = 8
"""One in this many nodes of a group may be without it: what a rack's nodes share may have spared one."""


def fold(findings: Sequence[Reported], groups: Iterable[Group], job: Job) -> list[Reported]:
    """The findings of one check, in their order, merged by group. Larger groups come first, then earlier ones: if all
    racks of a room have a problem, it is the room's. A group that is the whole job explains nothing."""
    known = [group for group in groups if 1 < len(group.nodes) < len(job.nodes)]
    if not known:
        return [*findings]
    known.sort(key=lambda group: -len(group.nodes))
    place = {id(finding): number for number, finding in enumerate(findings)}
    folded = [
        (place[id(members[0])], finding)
        for of_a_kind in grouped(findings, _kind).values()
        for members, finding in _of_a_kind(of_a_kind, known, job)
    ]
    return [finding for _, finding in sorted(folded, key=lambda pair: pair[0])]


def _kind(finding: Reported) -> str:
    """A key for findings that may be merged: it leaves out who, how much and what to do."""
    own = {"message": "", "evidence": {}, "noticed_by": "", "fix": "-", "where": {}}
    return json.dumps([replace(finding, **own).to_json(), "rank" in finding.where])  # type: ignore[arg-type]


def _of_a_kind(
    findings: Sequence[Reported], groups: Sequence[Group], job: Job
) -> list[tuple[list[Reported], Reported]]:
    """Yields (findings, the finding that replaces them)."""
    by_node = grouped((finding for finding in findings if finding.where.get("node")), lambda it: it.where["node"])
    chosen = _chosen(set(by_node), groups)
    left = set(by_node).difference(*(having for _, having in chosen))
    if len(by_node) == len(job.nodes) or len(left) > len(by_node) / 2:
        return [([finding], finding) for finding in findings]
    members = [[finding for node in having for finding in by_node[node]] for _, having in chosen]
    named = {id(finding) for of_group in members for finding in of_group}
    rest = [([finding], finding) for finding in findings if id(finding) not in named]
    alone = not left and len(chosen) == 1
    return [(of, _of_group(of, *group, alone, job)) for of, group in zip(members, chosen, strict=True)] + rest


def _chosen(nodes: set[str], groups: Sequence[Group]) -> list[tuple[Group, list[str]]]:
    """Groups with their nodes that have it. The fewer nodes are without it, the better the group explains it."""
    chosen: list[tuple[Group, list[str]]] = []
    left = set(nodes)
    for group in sorted(groups, key=lambda group: len(set(group.nodes) - nodes) / len(group.nodes)):
        having = [node for node in group.nodes if node in left]
        if len(group.nodes) - len(having) <= len(group.nodes) / NEARLY:
            chosen.append((group, having))
            left -= set(having)
    return chosen


def _who(group: Group, having: Sequence[str]) -> str:
    if without := [node for node in group.nodes if node not in having]:
        count = f"{len(having):,} of {rank_ranges.count(len(group.nodes), 'node')}"
        return f"{count} of {group.name} (all but {words.some(without, 3, last=' and ')})"
    whole = "both nodes" if len(having) == 2 else f"all {rank_ranges.count(len(having), 'node')}"
    return f"{whole} of {group.name} ({words.some(having, 3, last=', ')})"


def _of_group(findings: Sequence[Reported], group: Group, having: Sequence[str], alone: bool, job: Job) -> Reported:
    """`having`: its nodes that have it. `alone`: no other node has it."""
    first = findings[0]
    sentence = f"{_who(group, having)}{', and no other,' * alone} have this"
    common = {key: value for key, value in first.where.items() if all(it.where.get(key) == value for it in findings)}
    inside = {rank for node in job.nodes if node.node in having for rank in node.ranks}
    noticed = {rank for it in findings for rank in rank_ranges.from_text(it.noticed_by)} - inside
    return replace(
        first,
        message=f"{sentence}; on {first.where['node']}: {first.message}",
        where={"group": group.name, **{key: value for key, value in common.items() if key not in OF_A_NODE}},
        noticed_by=rank_ranges.to_text(noticed),
        fix=f"Look first for what the nodes of {group.name} share. {first.fix}",
        ranks=rank_ranges.to_text(it.where["rank"] for it in findings) if "rank" in first.where else "",
        nodes=[node.node for node in job.nodes if node.node in having],
    )
