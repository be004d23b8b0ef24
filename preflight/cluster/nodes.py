"""`preflight nodes`: the good or the bad nodes of saved reports."""

import argparse
import json
from collections.abc import Sequence

from preflight.cluster.arguments import ACTIONS
from preflight.cluster.host_list import FORMATS
from preflight.core.action import Action
from preflight.core.finding import Reported
from preflight.results.report_files import load
from preflight.results.report_nodes import bad_nodes, blamed_nodes, good_nodes, nodes


def run(options: argparse.Namespace) -> int:
    """Returns 0, also for an empty list. Raises UsageError for something that is not a report."""
    ranks: dict[str, int] = {}
    bad, doubtful = set[str](), set[str]()
    found: dict[str, list[Reported]] = {}
    for path in options.reports:
        report, _ = load(path)
        of_report = dict.fromkeys(nodes(report.job), 0)
        of_report |= {node.node: len(node.ranks) for node in report.job.nodes}
        ranks |= of_report
        bad |= set(bad_nodes(report))
        for finding in report.findings:
            for node in blamed_nodes(finding, report.job) if finding.counts else ():
                found.setdefault(node, []).append(finding)
        doubtful |= of_report.keys() - set(good_nodes(report))
    chosen = [name for name in ranks if (name in bad if options.bad else name not in doubtful)]
    if options.format == ACTIONS:
        print(json.dumps({name: _to_do(found.get(name, ())) for name in chosen}))
        return 0
    print(FORMATS[options.format](chosen, ranks), end="")
    return 0


def _to_do(found: Sequence[Reported]) -> dict[str, object]:
    """The most drastic action of a node's failures, or of its warnings if it has no failure, and the codes that ask for
    it. "none" if nothing was found, or an older preflight wrote the report."""
    worst = [finding for finding in found if finding.severity == "fail"] or found
    gravity = [*Action]
    action = max((Action(finding.action or Action.NONE) for finding in worst), key=gravity.index, default=Action.NONE)
    codes = dict.fromkeys(finding.code for finding in worst if finding.action == action)
    return {"action": action, "codes": [*codes]}
