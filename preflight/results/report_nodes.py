"""The nodes of a report: which a job may use, and which a failure blames."""

from preflight.core import rank_ranges
from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.results.report import Report


def bad_nodes(report: Report) -> list[str]:
    """The nodes that a failure blames, by node or by one of their ranks."""
    failed = (finding for finding in report.findings if finding.severity == "fail" and finding.counts)
    bad = {node for finding in failed for node in blamed_nodes(finding, report.job)}
    return [node for node in nodes(report.job) if node in bad]


def nodes(job: Job) -> list[str]:
    """The nodes of the job, in order, and after them those on which ranks that never came were to run."""
    return [*dict.fromkeys((*(node.node for node in job.nodes), *(node for node, _ in job.missing_on)))]


def good_nodes(report: Report) -> list[str]:
    """The nodes that a job may use: all that no failure or error blames. [] if a failure or error blames no node: it
    may be any."""
    wrong = [finding for finding in report.findings if finding.severity in ("fail", "error") and finding.counts]
    named = [blamed_nodes(finding, report.job) for finding in wrong]
    if report.verdict not in ("pass", "warn") and not (wrong and all(named)):
        return []
    bad = set().union(*named)
    return [node.node for node in report.job.nodes if node.node not in bad]


def blamed_nodes(finding: Reported, job: Job) -> set[str]:
    """The nodes that a finding blames; "" stands for the unknown node of a rank that never came."""
    where = finding.where
    if "node" in where:
        return {where["node"]}
    ranks = {where["rank"]} if "rank" in where else set(rank_ranges.from_text(finding.ranks))
    if not ranks:
        return set(finding.nodes or ())
    places = (*((node.node, node.ranks) for node in job.nodes), *job.missing_on)
    return {node for node, of_node in places if not ranks.isdisjoint(of_node)} or {""}
