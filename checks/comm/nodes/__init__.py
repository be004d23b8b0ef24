"""Nodes: after a finding, whether a node is slow by itself, and which of its GPUs is.

Each node all-reduces alone, all nodes at once; then in rounds its ranks send to each other in pairs, both ways. A node
is compared with nodes that have as many ranks, and a pair of ranks with the same pair on those, since GPUs may be
wired unevenly by design. With fewer than three such nodes, pairs are compared with all others, and only much slower
ones are reported. On gloo this times processor and memory. Only what is slow again in a second measurement is blamed
(`confirmed: 2 of 2` in the evidence).
"""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from preflight.check import (
    Action,
    After,
    Code,
    Context,
    Finding,
    Level,
    NotApplicable,
    Plan,
    Run,
    Scope,
    plots,
    ranges,
    words,
)
from preflight.checks.comm.nodes import intra_node
from preflight.checks.comm.nodes.intra_node import ALIKE, Inside
from preflight.checks.comm.shared import confirmation, localize, meetings, transfers
from preflight.checks.comm.shared.confirmation import Looks
from preflight.checks.comm.shared.localize import MUCH_SLOWER, Link
from preflight.checks.comm.shared.readings import nominal
from preflight.checks.comm.shared.transfers import Doubt, Facts

PARTS = (localize, confirmation)
PLAN = Plan(
    Scope.WORLD, Level.STANDARD, deadline_s=60, estimate_s=2.0,
    after={"comm.init": After.NEEDS, **localize.AFTER_SYMPTOMS},
)  # fmt: skip

_LOOK = (
    "On {node}: nvidia-smi nvlink -s, nvidia-smi nvlink -e (errors), nvidia-smi topo -m, nvidia-smi -q -d PERFORMANCE "
    "(throttled), top (other processes)"
)
_SEE = ("gpu.nvlink", "gpu.pcie", "gpu.topology", "gpu.health", "gpu.released", "node.limits", "node.leftovers")
SLOW_NODE = Code(
    "A node is slower by itself than the others.",
    fix=f"{_LOOK}; exclude it until fixed.",
    action=Action.RESTART_JOB,
    see=_SEE,
)
SLOW_GPU = Code(
    "A rank's GPU is slow with all others on its node.",
    fix=f"{_LOOK}; it is the GPU of local rank {{local_rank}}.",
    action=Action.RESTART_JOB,
    see=_SEE,
)
SLOW_PAIR = Code(
    "Two GPUs of a node are slow with each other.",
    fix=f"{_LOOK}; nvidia-smi topo -p2p r.",
    action=Action.RESTART_JOB,
    see=_SEE,
)
SLOWER_OF_TWO = Code(
    "One of two nodes is slower, even by itself.",
    fix="Compare them: nvidia-smi topo -m, nvidia-smi nvlink -s, lscpu, and top for other processes.",
    action=Action.NONE,
    see=_SEE,
)
_LOOK_AT_CPU = "On {node}: top (other processes, steal time), nproc, free -m, dmesg; exclude it until fixed."
BUDGET_S = 1.5
MOST_PAIRS = 5
"""Up to this many get a finding each; more share one."""
DRAWN, MOST_COLUMNS = 4, 16
"""Nodes."""


def measure(ctx: Context) -> Facts:
    groups = meetings.group_by_node(ctx.job, ctx.members)
    if all(len(group) < 2 for group in groups):
        raise NotApplicable("one rank per node: nothing passes within a node")
    mine = next(group for group in groups if ctx.rank in group)
    return transfers.measure(ctx, mine, meetings.steps_within(groups), BUDGET_S, _doubt)


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    looks = Looks(facts, run, _doubt)
    yield from looks.confirmed(_blamed(looks.facts, run))
    yield from looks.only_once()


def _doubt(facts: Mapping[int, Facts], run: Run) -> Doubt:
    slow, _ = _slow_alone(facts, run)
    links = [link for inside in intra_node.by_node(facts, run).values() for link in inside.slow]
    return Doubt(frozenset(links), frozenset(slow).union(*_odd_twos(facts, run)))


def _blamed(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    slow, usual = _slow_alone(facts, run)
    links = intra_node.by_node(facts, run)
    finer = {node for node, inside in links.items() if inside.slow and not inside.is_whole}
    for node, value in slow.items():
        if node not in finer:
            text = f"{run.job.nodes[node].node} all-reduces within itself with a busbw of {words.rate_of_gb(value)}"
            text += f", expected about {words.rate_of_gb(usual[node])} like the other nodes"
            yield SLOW_NODE.warn(text, node=run.job.nodes[node].node, fix=_fix(run))
    yield from _differing(facts, finer, run)
    for node, inside in links.items():
        if node in finer:
            yield from _gpus(node, inside, run)
        elif inside.slow and node not in slow and len(links) >= ALIKE:
            name = run.job.nodes[node].node
            text = f"{len(inside.slow)} of {ranges.count(len(inside.rates), 'link')} within {name} are slow"
            yield SLOW_NODE.warn(f"{text}: {_rates([*inside.slow], inside)}", node=name, fix=_fix(run))


def _fix(run: Run) -> str | None:
    """None for the code's own fix; on gloo one without GPUs."""
    return None if run.job.backend == "nccl" else _LOOK_AT_CPU


def _busbw(facts: Mapping[int, Facts], run: Run) -> dict[int, dict[int, float]]:
    """GB/s of 10^9 bytes, by the number of ranks and by node."""
    place_of, found = localize.positions(run.job), defaultdict[int, dict[int, float]](dict)
    ranks_of: dict[int, list[int]] = defaultdict(list)
    for rank in facts:
        ranks_of[place_of[rank].node].append(rank)
    for node, ranks in sorted(ranks_of.items()):
        value = transfers.busbw(facts[ranks[0]], len(ranks))
        if value:
            found[len(ranks)][node] = value
    return found


def _slow_alone(facts: Mapping[int, Facts], run: Run) -> tuple[dict[int, float], dict[int, float]]:
    """(busbw of the slow nodes, the usual busbw for each)."""
    slow: dict[int, float] = {}
    usual: dict[int, float] = {}
    for nodes in _busbw(facts, run).values():
        if len(nodes) >= ALIKE:
            least = localize.slow_below(nodes.values(), run)
            found = {node: value for node, value in nodes.items() if value < least}
            slow |= found
            usual |= dict.fromkeys(found, statistics.median_high(nodes.values()))
    return slow, usual


def _differing(facts: Mapping[int, Facts], finer: Collection[int], run: Run) -> Iterator[Finding]:
    """Names both nodes, unless a finding about a part of one explains it (`finer`)."""
    for nodes in _odd_twos(facts, run):
        if not nodes.keys() & set(finer):
            sides = [f"{words.rate_of_gb(value)} on {run.job.nodes[node].node}" for node, value in nodes.items()]
            yield SLOWER_OF_TWO.warn(
                f"each node's own all-reduce has a busbw of {' and '.join(sides)}, expected the same"
            )


def _odd_twos(facts: Mapping[int, Facts], run: Run) -> Iterator[dict[int, float]]:
    """The busbw of two nodes, if they are the only ones with that number of ranks and one is slow."""
    for nodes in _busbw(facts, run).values():
        if len(nodes) == ALIKE - 1 and min(nodes.values()) * run[MUCH_SLOWER] < max(nodes.values()):
            yield nodes


def _gpus(node: int, inside: Inside, run: Run) -> Iterator[Finding]:
    """What the slow links within a node have in common."""
    named: set[Link] = set()
    for rank, roles in sorted(inside.ranks.items()):
        links = [link for link in inside.slow if any(link[role] == rank for role in roles)]
        others = ranges.count(len({*sum(links, ())} - {rank}), "other rank")
        place = {**run.job.where(rank), "local_rank": localize.positions(run.job)[rank].rail}
        text = f"rank {rank} is slow with {others} on its node: {_rates(links, inside)}"
        yield SLOW_GPU.warn(text, noticed_by=tuple(sorted({*sum(links, ())} - {rank})), fix=_fix(run), **place)
        named |= {link for link in inside.slow if any(link[role] == rank for role in roles)}
    yield from _gpu_pairs(run.job.nodes[node].node, sorted(inside.slow - named), inside, run)


def _gpu_pairs(name: str, slow: Sequence[Link], inside: Inside, run: Run) -> Iterator[Finding]:
    pairs: dict[tuple[int, int], list[Link]] = defaultdict(list)
    for a, b in slow:
        pairs[min(a, b), max(a, b)].append((a, b))
    if len(pairs) > MOST_PAIRS:
        subject = ", ".join(f"{a} and {b}" for a, b in list(pairs)[:3])
        text = f"{len(pairs)} pairs of ranks are slow with each other, such as {subject}: {_rates(slow, inside)}"
        yield SLOW_PAIR.warn(text, node=name, fix=_fix(run))
        return
    for (a, b), links in pairs.items():
        subject = f"ranks {a} and {b} are slow with each other"
        subject = subject if len(links) > 1 else f"rank {links[0][0]} sends slowly to rank {links[0][1]}"
        text = f"{subject}: {_rates(links, inside)}"
        yield SLOW_PAIR.warn(text, node=name, link=f"rank {a} and rank {b}", fix=_fix(run))


def _rates(links: Sequence[Link], inside: Inside) -> str:
    low, high = (words.rate_of_gb(end(inside.rates[link] for link in links)) for end in (min, max))
    usual = words.rate_of_gb(statistics.median(inside.usual[link] for link in links))
    return f"at {low if low == high else f'{low} to {high}'}, expected about {usual} like other such pairs"


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    facts = Looks(facts, run, _doubt).facts
    values = [value for nodes in _busbw(facts, run).values() for value in nodes.values()]
    if not values:
        return "no node was timed"
    size = nominal(max(reading["bytes"] for reading in facts.values()))
    nodes = ranges.count(len(values), "node")
    median, least = words.rate_of_gb(statistics.median(values)), words.rate_of_gb(min(values))
    return f"{nodes} alone, {size}: busbw {median} median, {least} at least"


def plot(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    """Strips of all nodes, and the links within each that has a slow one, else within the first."""
    facts = Looks(facts, run, _doubt).facts
    yield from _alone(facts, run)
    nodes = intra_node.by_node(facts, run)
    odd = [node for node, inside in nodes.items() if inside.slow]
    for node in (odd or list(nodes)[:1])[:DRAWN]:
        yield _links_within(node, nodes[node], run)


def _links_within(node: int, inside: Inside, run: Run) -> plots.Table:
    """Rank by rank. A link is slow compared with the same link on other nodes, so no heat map has a limit for it."""
    ranks = sorted({rank for link in inside.rates for rank in link})[:MOST_COLUMNS]

    def cell(link: Link) -> str:
        return f"{inside.rates[link]:.3g}{'!' * (link in inside.slow)}" if link in inside.rates else "-"

    rows = [(str(a), *(cell((a, b)) for b in ranks)) for a in ranks]
    title = f"{run.job.nodes[node].node}, from the row's rank to the column's, GB/s (! is slow)"
    return plots.Table(title, ("", *map(str, ranks)), rows, screen="always")


def _alone(facts: Mapping[int, Facts], run: Run) -> Iterator[plots.Plot]:
    """A strip for each number of ranks per node: only such nodes are comparable."""
    odd = {*_slow_alone(facts, run)[0]} | {node for nodes in _odd_twos(facts, run) for node in nodes}
    busbw = _busbw(facts, run)
    nodes = sorted(node for by_node in busbw.values() for node in by_node)
    places = [place for place, node in enumerate(nodes) if node in odd]
    strips = [
        plots.Strip(
            f"busbw on {ranges.count(width, 'rank')}",
            "GB/s",
            [by_node.get(node) for node in nodes],
            [place for place in places if nodes[place] in by_node],
        )
        for width, by_node in busbw.items()
    ]
    if strips:
        yield plots.Strips("all-reduce of each node alone", [(run.job.nodes[n].node, "alone") for n in nodes], strips)
