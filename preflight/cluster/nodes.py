"""`preflight nodes`: the good or the bad nodes of saved reports."""

import argparse

from preflight.cluster.host_list import FORMATS
from preflight.core.rank_ranges import from_text
from preflight.results import report


def run(options: argparse.Namespace) -> int:
    """Always 0: an empty list is one, too. Raises UsageError for what is no report."""
    ranks: dict[str, int] = {}
    bad, doubtful = set[str](), set[str]()
    for path in options.reports:
        made, _ = report.load(path)
        there = {node["node"]: len(from_text(node["ranks"])) for node in made["job"]["nodes"]}
        ranks |= there
        bad |= set(report.bad_nodes(made))
        doubtful |= there.keys() - set(report.good_nodes(made))
    chosen = [name for name in ranks if (name in bad if options.bad else name not in doubtful)]
    print(FORMATS[options.format](chosen, ranks), end="")
    return 0
