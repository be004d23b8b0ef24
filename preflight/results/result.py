"""The result of one check, and the verdict of all."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from preflight.core import rank_ranges, words
from preflight.core.finding import Reported
from preflight.core.groups import Group
from preflight.core.job import Job
from preflight.core.outcome import Outcome
from preflight.results.groups import fold

WORST_FIRST = ("fail", "error", "warn", "skip", "pass")
SEVERITIES = ("fail", "error", "warn", "info")
EXIT_CODES = {"pass": 0, "warn": 0, "fail": 1, "error": 3}
USAGE = 2
IN_PART = "in part: "
"""How the reason of a skip begins, if all ranks have measured, but not everything."""
_NOT_REPORTED = {"facts", "measures_no_more"}
_OF_ONE_RANK = {"seconds", "stack", "log_tail", "nccl_log", "ras", *_NOT_REPORTED}
EQUAL_FINDINGS = 100
"""More equal findings of one check than this are merged into one, with their ranks as a range."""


@dataclass(frozen=True)
class Result:
    """One entry of the report's `checks` (docs/report.md)."""

    check: str
    title: str
    facts_version: int = 1
    findings: list[Reported] = field(default_factory=list)
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    summary: str = ""
    skipped: str | None = None
    picture: list[str] = field(default_factory=list)
    """Lines that the check has drawn."""
    plots: list[dict[str, Any]] = field(default_factory=list)
    """What it shows in report.html, as JSON of core/plots.py."""
    began_s: float | None = None
    """Seconds from the run's start to the check's start."""
    aside: bool = False
    """Whether the screen leaves out the picture if the check has passed."""
    groups: tuple[Group, ...] = ()
    """The groups of nodes that the check knows."""

    def asked_for(self) -> "Result":
        """As the user sees it who named the check by its id: all that is drawn is shown."""
        loud = [{**plot, "screen": "always"} if plot.get("screen") == "quiet" else plot for plot in self.plots]
        return replace(self, aside=False, plots=loud)

    @property
    def status(self) -> str:
        """fail, error, warn, skip or pass: the worst that applies. Ranks that skipped make it a skip, even
        if others passed: they were not measured. So does a part that was not measured."""
        severities = {finding.severity for finding in self.findings if finding.counts}
        severity = next((word for word in WORST_FIRST if word in severities), None)
        return severity or ("skip" if self.why_skipped is not None else "pass")

    @property
    def why_skipped(self) -> str | None:
        """Why ranks, or parts of the check, were not measured; None if all were."""
        parts = dict.fromkeys(finding.message for finding in self.findings if finding.not_measured)
        in_part = f"{IN_PART}{words.clauses(parts, 2)}" if parts else None
        return "; ".join(filter(None, (self.skipped, in_part))) if self.skipped or in_part else self.skipped

    @property
    def is_measured(self) -> bool:
        """Whether every rank that was asked has measured, if not every part of the check."""
        return self.skipped is None

    @property
    def applies(self) -> bool:
        """False if every rank said that the thing to check does not exist there."""
        slugs = [outcome.slug for outcome in self.outcomes.values()]
        return bool(self.findings) or not slugs or any(slug != "not_applicable" for slug in slugs)

    @property
    def has_failed_ranks(self) -> bool:
        """Whether a rank hung, crashed, was lost or raised."""
        return not all(outcome.sound for outcome in self.outcomes.values())

    def culprits(self, job: Job) -> set[int]:
        """The ranks that its failures name, by rank or by node; empty if one of them names neither."""
        named: set[int] = set()
        for finding in self.findings:
            where = finding.where
            ranks = {where["rank"]} if "rank" in where else _ranks_of(where.get("node"), job)
            if finding.severity in ("fail", "error") and finding.counts:
                if not ranks:
                    return set()
                named |= ranks
        return named

    def to_json(self, job: Job, groups: Iterable[Group] = ()) -> dict[str, Any]:
        """`groups`: those of all checks."""
        found = merge(fold(self.findings, groups, job), job)
        return {
            "check": self.check,
            "title": self.title,
            "status": self.status,
            "facts_version": self.facts_version,
            "seconds": _seconds(self.outcomes),
            "summary": self.summary,
            "skipped": self.why_skipped,
            **({"picture": self.picture} if self.picture else {}),
            **({"aside": True} if self.picture and self.aside else {}),
            **({"plots": self.plots} if self.plots else {}),
            **({"began_s": round(self.began_s, 3)} if self.began_s is not None else {}),
            "findings": [finding.to_json() for finding in sorted(found, key=badness)],
            "outcomes": _grouped(self.outcomes, job),
        }


def groups_of(results: Iterable[Result]) -> list[Group]:
    """The groups that all checks together know."""
    return [group for result in results for group in result.groups]


def badness(finding: Reported) -> int:
    """Sort key: the worst first."""
    return SEVERITIES.index(finding.severity)


def _ranks_of(node: str | None, job: Job) -> set[int]:
    return {rank for item in job.nodes if node and item.node == node for rank in item.ranks}


def _seconds(outcomes: Mapping[int, Outcome]) -> dict[str, Any]:
    """The median and the slowest rank, in seconds."""
    if not outcomes:
        return {"median": 0.0, "max": 0.0, "rank": None}
    slowest = max(outcomes, key=lambda rank: outcomes[rank].seconds)
    ordered, half = sorted(outcome.seconds for outcome in outcomes.values()), len(outcomes) // 2
    median = (ordered[half] + ordered[~half]) / 2  # to import statistics takes longer than all this
    return {"median": round(median, 4), "max": round(outcomes[slowest].seconds, 4), "rank": slowest}


def _but_for_the_rank(finding: Reported) -> Reported:
    where = {key: value for key, value in finding.where.items() if key not in ("rank", "local_rank", "node")}
    return replace(finding, where=where)


def merge(findings: Iterable[Reported], job: Job, more_than: int = EQUAL_FINDINGS) -> list[Reported]:
    """Merges equal findings of many ranks into one, which has `ranks` ("0-7,9") and `nodes` beside `where`."""
    groups: dict[str, list[Reported]] = {}
    for finding in findings:
        key = json.dumps(_but_for_the_rank(finding).to_json(), sort_keys=True)
        groups.setdefault(key, []).append(finding)
    merged: list[Reported] = []
    for group in groups.values():
        of_ranks = ["rank" in finding.where for finding in group]
        if len(group) > more_than and all(of_ranks):
            merged.append(_of_ranks(group, job))
        elif len(group) > more_than and not any(of_ranks):
            merged += _of_nodes(group)
        else:
            merged += group
    return merged


def _of_ranks(group: list[Reported], job: Job) -> Reported:
    ranks = [finding.where["rank"] for finding in group]
    nodes = list(dict.fromkeys(job.node_of(rank).node for rank in sorted(ranks)))
    node = {"node": nodes[0]} if len(nodes) == 1 and nodes[0] else {}
    common = _but_for_the_rank(group[0])
    return replace(common, where={**common.where, **node}, ranks=rank_ranges.to_text(ranks), nodes=nodes)


def _of_nodes(group: list[Reported]) -> list[Reported]:
    """Merges into one finding for all nodes, if each names a node."""
    nodes = list(dict.fromkeys(finding.where["node"] for finding in group if "node" in finding.where))
    return group if len(nodes) < len(group) else [replace(_but_for_the_rank(group[0]), nodes=nodes)]


def _grouped(outcomes: Mapping[int, Outcome], job: Job) -> list[dict[str, Any]]:
    """The report's outcomes: all but `measured`, except those that were asked for their collectives because others had
    failed. Equal ones are merged; seconds, stack and logs are the first one's."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(outcomes):
        if outcomes[rank].kind != "measured" or outcomes[rank].recorded:
            what = {name: value for name, value in vars(outcomes[rank]).items() if name not in _OF_ONE_RANK}
            groups.setdefault((job.node_of(rank).node, json.dumps(what)), []).append(rank)
    return [
        {
            **{name: value for name, value in vars(outcomes[ranks[0]]).items() if name not in _NOT_REPORTED},
            "ranks": rank_ranges.to_text(ranks),
            "node": node,
            "seconds": round(max(outcomes[rank].seconds for rank in ranks), 4),
            "ras": next((outcomes[rank].ras for rank in ranks if outcomes[rank].ras), None),
        }
        for (node, _), ranks in groups.items()
    ]


def verdict(results: Iterable[Result]) -> str:
    """The worst of fail > error > warn > pass. If nothing was measured, nothing passed: that is an error, too."""
    listed = [*results]
    statuses = {result.status for result in listed}
    worst = next((word for word in ("fail", "error", "warn") if word in statuses), None)
    return worst or ("pass" if any(result.is_measured for result in listed) else "error")


def exit_code(word: str, results: Iterable[Result], *, strict: bool) -> int:
    """0, 1 or 3 (docs/report.md); with `strict` warnings and skips are failures."""
    if strict and EXIT_CODES[word] == 0 and any(result.status in ("warn", "skip") for result in results):
        return 1
    return EXIT_CODES[word]
