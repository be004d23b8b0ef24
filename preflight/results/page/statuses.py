"""Nodes by checks: how each check ended on each node; equal nodes share a row."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from preflight.core import node_names, rank_ranges
from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.results import console
from preflight.results.report import STATUSES, CheckEntry, Report

LETTERS = {"fail": "F", "error": "E", "warn": "W", "skip": "S", "none": "–", "pass": "P"}
"""The worst first. "none": not measured; another rank or node may be to blame."""
ORDER = (*STATUSES[:3], "skip", "none", "pass")
MOST_ROWS = 100
"""The most kinds of nodes in the table; the canvas has all nodes."""


@dataclass
class NodeKind:
    """Nodes with the same status in every check."""

    nodes: list[int]
    """Their indices in the job's list."""
    statuses: tuple[str, ...]
    """By check."""
    names: str = ""
    worst: str = "pass"

    @property
    def key(self) -> str:
        return rank_ranges.to_text(self.nodes)


@dataclass
class StatusTable:
    """`of_job`: findings that name no node, by check."""

    checks: list[str]
    of_job: list[str]
    columns: list[list[str]]
    """By check, the status on each node."""
    kinds: list[NodeKind] = field(default_factory=list)

    def letters(self) -> list[str]:
        """For the script: one text per check, with one letter per node."""
        return ["".join(LETTERS[status] for status in column) for column in self.columns]


def build(report: Report) -> StatusTable:
    """The status of each check on each node, and the nodes grouped, the worst first."""
    checks = [check for check in report.checks if check.status != "skip" or check.outcomes or check.findings]
    places = Places(report.job)
    columns = [_column(check, places) for check in checks]
    table = StatusTable([check.check for check in checks], [_of_job(check) for check in checks], columns)
    by_look: dict[tuple[str, ...], list[int]] = {}
    for number, look in enumerate(zip(*columns, strict=True)):
        by_look.setdefault(look, []).append(number)
    names = [node.node for node in report.job.nodes]
    table.kinds = [
        NodeKind(nodes, look, node_names.folded(names[number] for number in nodes), min(look, key=ORDER.index))
        for look, nodes in by_look.items()
    ]
    table.kinds.sort(key=lambda kind: (*(sorted(map(ORDER.index, kind.statuses))[:3]), len(kind.nodes)))
    return table


class Places:
    """The indices of nodes and ranks in the job's list."""

    def __init__(self, job: Job) -> None:
        self.count = len(job.nodes)
        self.of_node = {node.node: number for number, node in enumerate(job.nodes)}
        self._of_rank = {rank: number for number, node in enumerate(job.nodes) for rank in node.ranks}

    def of_ranks(self, text: str) -> set[int]:
        return {self._of_rank[rank] for rank in rank_ranges.from_text(text) if rank in self._of_rank}

    def named(self, finding: Reported) -> set[int]:
        """The nodes that a finding blames; empty if it blames none; both nodes of a pair."""
        where = finding.where
        nodes = [where.get("node"), where.get("peer_node"), *(finding.nodes or ())]
        found = {self.of_node[node] for node in nodes if node in self.of_node}
        ranks = [str(where[key]) for key in ("rank", "peer_rank") if key in where]
        return found.union(*map(self.of_ranks, (*ranks, finding.ranks)))


def _column(check: CheckEntry, places: Places) -> list[str]:
    column = ["pass"] * places.count
    for entry in check.outcomes:
        if entry.outcome.kind != "measured":
            _worsen(column, places.of_ranks(entry.ranks), "skip" if entry.outcome.kind == "skipped" else "none")
    for finding in (*_counting(check), *_not_measured(check)):
        _worsen(column, places.named(finding), _status(finding))
    return column


def _worsen(column: list[str], nodes: Iterable[int], status: str) -> None:
    for number in nodes:
        if ORDER.index(status) < ORDER.index(column[number]):
            column[number] = status


def _counting(check: CheckEntry) -> Iterator[Reported]:
    return (finding for finding in check.findings if finding.counts and finding.severity != "info")


def _not_measured(check: CheckEntry) -> Iterator[Reported]:
    return (finding for finding in check.findings if console.is_skip(finding))


def _status(finding: Reported) -> str:
    return "skip" if console.is_skip(finding) else finding.severity


def _of_job(check: CheckEntry) -> str:
    """The worst of the findings that name no node and no rank."""
    nowhere = {"node", "rank"}
    found = [*_counting(check), *_not_measured(check)]
    loose = [
        _status(finding) for finding in found if not (nowhere & finding.where.keys() or finding.ranks or finding.nodes)
    ]
    return min(loose, key=ORDER.index, default="pass")
