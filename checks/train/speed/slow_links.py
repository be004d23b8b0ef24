"""Nodes whose link is slow beside the others', where communication takes most of a step.

What is to be expected of a link is what other nodes reach in this run: never a figure from a table, nor what a network
card says of itself (that of a container says 10 Gbit/s).
"""

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from preflight.check import Action, Code, Finding, Run, pairs, ranges, words
from preflight.checks.train.speed import figures
from preflight.checks.train.speed.facts import AllFacts
from preflight.checks.train.speed.node_links import MOST_OF_STEP, times_slower
from preflight.sdk.pairs import Pair

if TYPE_CHECKING:
    from preflight.train_smoke.speed.trace import Exposed

EXPLAINED = 0.5, 3.0
"""So many times the exposed communication the gradients take at the slow link's rate. Where it is more, they go
another way: a ring uses few of the links."""

SLOW_LINK = Code(
    "A node's link is slow, and exposed communication takes most of each step of all ranks.",
    fix="On {node}: ethtool INTERFACE (speed, duplex), ethtool -S INTERFACE (errors, drops), tc -s qdisc, ibstat "
    "(rate); the cable and the switch port. preflight run --only net.mesh,comm.rails tells which way is slow. Leave "
    "the node out until then.",
    action=Action.RESTART_JOB,
    see=("net.mesh", "net.interfaces", "net.rdma", "net.rdma_errors", "comm.rails", "comm.nodes"),
)
SLOW_PATH = Code(
    "Nodes are slow with each other, but not with others, and exposed communication takes most of each step.",
    fix="See the switches, cables and uplinks between them: preflight run --only net.mesh,comm.nodes tells more.",
    action=Action.NONE,
    see=("net.mesh", "net.interfaces", "net.rdma", "net.rdma_errors", "comm.nodes", "comm.pairs"),
)


class NodeLinks(NamedTuple):
    """Of nodes, by their numbers in the job's list: (a, b) is what a sends to b, while b sends as much to a."""

    rates: Mapping[Pair, float]
    """Bytes a second, of the slowest of their ranks."""
    usual: float
    bad: frozenset[Pair]


def compared(facts: AllFacts, run: Run) -> NodeLinks | None:
    """None where nothing was measured. Without what travels within a machine of which there are several: containers
    on one host are joined by its memory, and no network card reaches that."""
    number_of = {rank: number for number, node in enumerate(run.job.nodes) for rank in node.ranks}
    apart = len({own["kernel"] for own in facts.values()}) > 1
    rates: dict[Pair, float] = {}
    best: dict[int, float] = {}
    for rank, own in facts.items():
        for peer, rate in own["links"]:
            pair = number_of[peer], number_of[rank]
            if not (apart and peer in facts and facts[peer]["kernel"] == own["kernel"]):
                rates[pair] = min(rate, rates.get(pair, rate))
    for pair, rate in rates.items():
        best |= {node: max(rate, best.get(node, 0.0)) for node in pair}
    if not rates:
        return None
    # The best of each node: one slow node of three has most of the links.
    usual = statistics.median_low(best.values())
    least = usual / times_slower(run.job.backend)
    return NodeLinks(rates, usual, frozenset(pair for pair, rate in rates.items() if rate < least))


def judge(facts: AllFacts, run: Run, name: str) -> Iterator[Finding]:
    """`name`: of the strategy."""
    links = compared(facts, run)
    exposed = figures.most_exposed(facts, name)
    if links is None or not links.bad or exposed is None or not _explain(links, facts, name, exposed):
        return
    share = exposed["exposed"] / exposed["step"]
    lost = f"{share:.0%} of each step under {name} is exposed communication ({words.duration(exposed['exposed'])})"
    expected = f"expected about {words.rate(links.usual)} as between the others; {lost}"
    common = pairs.common_cause(links.rates.keys(), links.bad)
    named = common.ends if 2 * len(common.ends) < len(run.job.nodes) else {}
    for node in named:
        yield _of_node(node, named[node], links, run, expected, share)
    left = sorted(pair for pair in links.bad if not pairs.is_explained(pair, named))
    if left:
        yield _between(left, links, run, expected, share)


def _explain(links: NodeLinks, facts: AllFacts, name: str, exposed: "Exposed") -> bool:
    """Whether the gradients' bytes take that time at the slow rate: a ring sends each link 2 (n - 1) / n of them."""
    needed = figures.travelling(facts, name) / min(links.rates.values())
    least, most = (times * exposed["exposed"] for times in EXPLAINED)
    return exposed["exposed"] >= MOST_OF_STEP * exposed["step"] and least <= needed <= most


def _of_node(node: int, roles: Collection[int], links: NodeLinks, run: Run, expected: str, share: float) -> Finding:
    tried = [pair for role in roles for pair in links.rates if pair[role] == node]
    its = {pair: links.rates[pair] for pair in tried if pair in links.bad}
    slow, all_ = ({*sum(some, ())} - {node} for some in (its, tried))
    others = [rank for rank in run.members if run.job.node_of(rank) != run.job.nodes[node]]
    does, whom = ("exchanges", "with") if len(roles) > 1 else (("sends", "to"), ("receives", "from"))[min(roles)]
    text = (
        f"it {does} {span(its.values())} {whom} {len(slow):,} of {ranges.count(len(all_), 'other node')}, {expected}; "
        f"{ranges.ranks(others)} {'waits' if len(others) == 1 else 'wait'} for it"
    )
    evidence = {"mb_per_s": _megabytes(its.values()), "usual_mb_per_s": _megabytes([links.usual]), "share": share}
    return SLOW_LINK.warn(text, noticed_by=others, evidence=evidence, node=run.job.nodes[node].node)


def _between(left: Sequence[Pair], links: NodeLinks, run: Run, expected: str, share: float) -> Finding:
    """Nobody can tell which end, or what between them, it is."""
    rates = [links.rates[pair] for pair in left]
    told = words.some((f"{run.job.nodes[a].node} to {run.job.nodes[b].node}" for a, b in left), separator="; ")
    where = {"link": told} if len(left) == 1 else {}
    text = f"{span(rates)} from {told}, {expected}"
    evidence = {"mb_per_s": _megabytes(rates), "usual_mb_per_s": _megabytes([links.usual]), "share": share}
    return SLOW_PATH.warn(text, evidence=evidence, **where)


def span(rates: Collection[float]) -> str:
    """ "7.1 MB/s", "7.1 MB/s to 7.4 MB/s"."""
    return " to ".join(dict.fromkeys(words.rate(rate) for rate in (min(rates), max(rates))))


def _megabytes(rates: Collection[float]) -> float:
    return round(min(rates) / 1e6, 2)
