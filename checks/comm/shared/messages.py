"""Sentences about slow links between nodes: one for the rail, node, rank or sides that they share, else one per pair of
nodes."""

import itertools
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from preflight.check import Action, Code, Finding, Run, ranges, words
from preflight.checks.comm.shared.localize import Blame, Link
from preflight.sdk.pairs import Wording

MOST_PAIRS = 5
"""Up to this many get a finding each; more share one."""
WORDING = Wording(
    sends="sends slowly to", receives="receives slowly from", both="is slow with", pair="{a} sends slowly to {b}",
    sides="links between {a} and {b} are slow",
)  # fmt: skip
TIME_IT = (
    "To time it: iperf3 -s on {peer}, iperf3 -c {peer} on {node}; with RDMA ib_write_bw -d DEVICE on {peer}, "
    "ib_write_bw -d DEVICE {peer} on {node}."
)

SLOW_NODE = Code(
    "Most of a node's ranks are slow with all other nodes.",
    fix="On {node}: ethtool INTERFACE (speed, duplex), ethtool -S INTERFACE (errors, drops), ibstat (rate), tc -s "
    "qdisc, top (what else runs); exclude it until fixed. " + TIME_IT,
    action=Action.RESTART_JOB,
    see=("net.interfaces", "net.mesh", "net.rdma", "net.rdma_errors", "gpu.pcie", "gpu.health", "node.limits"),
)
SLOW_RANK = Code(
    "One rank's GPU or network card is slow with all others, while its node's other ranks are not.",
    fix="On {node}: nvidia-smi topo -m shows the network card near the GPU of local rank {local_rank}; ibstat, ethtool "
    "INTERFACE (speed), ethtool -S INTERFACE (errors), lspci -vv (LnkSta: its PCIe link). " + TIME_IT,
    action=Action.RESTART_JOB,
    see=("net.interfaces", "net.mesh", "net.rdma", "net.rdma_errors", "gpu.pcie", "gpu.health", "node.limits"),
)
SLOW_RAIL = Code(
    "One rail (the ranks with the same place on their nodes) is slow, while the others are not.",
    fix="Check the switch of rail {local_rank}, which joins the network cards near the GPUs of local rank {local_rank} "
    "(nvidia-smi topo -m): its ports' speed and errors, its uplinks; ibdiagnet on InfiniBand. " + TIME_IT,
    action=Action.NONE,
    see=("net.rdma", "net.rdma_errors"),
)
SLOW_LINK = Code(
    "Two nodes are slow with each other, but not with others.",
    fix="Check the cables and switch ports between {node} and {peer} (ethtool -S INTERFACE, ibdiagnet), and the path "
    "(tracepath {peer} on {node}). " + TIME_IT,
    action=Action.NONE,
    see=("net.interfaces", "net.mesh", "net.rdma", "net.rdma_errors", "gpu.pcie", "gpu.health", "node.limits"),
)
SLOWER_THAN_BASELINE = Code(
    "Links are much slower than in the baseline.",
    fix="All are equally slow: preflight diff BASELINE REPORT names what changed (settings, drivers); look for "
    "other jobs on the same switches; comm.transports has NCCL's transport.",
    action=Action.NONE,
    see=("comm.transports", "net.interfaces", "net.rdma", "net.rdma_errors"),
)


def findings(blame: Blame, run: Run) -> Iterator[Finding]:
    """Findings for what the slow links have in common, except `blame.sides`."""
    messages = LinkMessages(blame, run)
    for rail in blame.rails:
        yield messages.on_rail(rail)
    for node, roles in blame.nodes.items():
        yield messages.on_node(node, roles)
    for rank, roles in blame.ranks.items():
        yield messages.on_rank(rank, roles)
    parts = [[*blame.links]] if len(blame.links) > MOST_PAIRS else _touching(blame.links)
    for pairs in parts:
        yield messages.on_many(pairs) if len(pairs) > 1 else messages.on_pair(pairs[0], blame.links[pairs[0]])


def _touching(pairs: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Connected groups of pairs, which share nodes: any of a group's nodes may be the cause."""
    parts: list[list[tuple[int, int]]] = []
    for pair in pairs:
        mine = [part for part in parts if any(set(pair) & set(other) for other in part)]
        parts = [part for part in parts if part not in mine] + [[*itertools.chain(*mine), pair]]
    return parts


class LinkMessages:
    """The messages for one measurement."""

    def __init__(self, blame: Blame, run: Run) -> None:
        self.blame, self.run = blame, run
        self.good = [value for link, value in blame.rates.items() if link not in blame.bad]
        self.width = max(place.rail for place in blame.places.values()) + 1

    def on_rail(self, rail: int) -> Finding:
        mine = [link for link in self.blame.rates if self.blame.places[link[0]].rail == rail]
        slow = [link for link in mine if link in self.blame.bad]
        text = f"rail {rail} (local rank {rail} of all nodes) is slow on {len(slow):,} of {len(mine):,} links"
        return self._found(SLOW_RAIL, f"{text}: {self._rates(slow)}", slow, "on the other rails", local_rank=rail)

    def on_node(self, node: int, roles: Collection[int]) -> Finding:
        name = self.run.job.nodes[node].node
        mine = [link for role in roles for link in self.blame.rates if self.blame.places[link[role]].node == node]
        slow = [link for link in mine if link in self.blame.bad]
        others = {self.blame.places[rank].node for link in slow for rank in link} - {node}
        tried = {self.blame.places[rank].node for link in mine for rank in link} - {node}
        text = f"{WORDING.culprit(name, roles, len(others), len(tried))}{self._rails(slow)}"
        return self._found(SLOW_NODE, f"{text}: {self._ways(slow, node)}", slow, "between the others", node=name)

    def on_rank(self, rank: int, roles: Collection[int]) -> Finding:
        place = self.blame.places[rank]
        name = self.run.job.nodes[place.node].node
        mine = [link for link in self.blame.rates if any(link[role] == rank for role in roles)]
        slow = [link for link in mine if link in self.blame.bad]
        others, tried = ({*sum(links, ())} - {rank} for links in (slow, mine))
        who = f"rank {rank} (local rank {place.rail} of {name})"
        text = f"{WORDING.culprit(who, roles, len(others), len(tried))}: {self._ways(slow, place.node)}"
        where = {**self.run.job.where(rank), "local_rank": place.rail}
        return self._found(SLOW_RANK, text, slow, "on the others", **where)

    def on_pair(self, pair: tuple[int, int], links: Sequence[Link]) -> Finding:
        first, second = (self.run.job.nodes[node].node for node in pair)
        ways = sorted({(self._node(a), self._node(b)) for a, b in links})
        both = len(ways) > 1
        a, b = (first, second) if both else ways[0]
        rails = self._rails(links)
        text = (
            f"{first} and {second} are slow with each other{rails}"
            if both
            else f"{WORDING.pair.format(a=a, b=b)}{rails}"
        )
        where: dict[str, Any] = {"link": f"{a} and {b}" if both else f"{a} to {b}"}
        found = {self.blame.places[a].rail for a, _ in links}
        where |= {"local_rank": min(found)} if self.width > 1 and len(found) == 1 else {}
        rest = "on the others" if len(self.run.job.nodes) > 2 or self.width > 1 else "the other way"
        return self._found(SLOW_LINK, f"{text}: {self._ways(links, pair[0])}", links, rest, **where)

    def on_many(self, pairs: Sequence[tuple[int, int]]) -> Finding:
        links = [link for pair in pairs for link in self.blame.links[pair]]
        ways = dict.fromkeys(f"{self._node(a)} to {self._node(b)}" for a, b in links)
        listed = f"{'as ' * (len(ways) > MOST_PAIRS)}{', '.join([*ways][:MOST_PAIRS])}"
        text = (
            f"{len(links):,} of {ranges.count(len(self.blame.rates), 'link')} are slow ({listed}) {self._rates(links)}"
        )
        details = self._about(links)
        return SLOW_LINK.warn(f"{text}; {self._expected('on the others')}; no single node explains this", **details)

    def on_sides(self, code: Code) -> Finding:
        """Only info: the network may be built that way."""
        side = {node: number for number, nodes in enumerate(self.blame.sides) for node in nodes}
        nodes = [[self.blame.places[rank].node for rank in link] for link in self.blame.bad]
        ends = zip(self.blame.bad, nodes, strict=True)
        slow = sorted(link for link, (a, b) in ends if a in side and b in side and side[a] != side[b])
        text = f"{WORDING.between_sides([*map(self._side, self.blame.sides)])}: {self._rates(slow)}"
        return code.info(f"{text}; {self._expected('within')}", **self._about(slow))

    def _side(self, side: Collection[int]) -> str:
        """ "switch leaf-1 (node-0, node-1)" if these are all its measured nodes."""
        names = [self.run.job.nodes[node].node for node in side]
        used = {self._node(rank) for link in self.blame.rates for rank in link}
        group = next((group.name for group in self.run.groups if used.intersection(group.nodes) == set(names)), "")
        listed = words.some(names, 3, last=", ")
        return f"{group} ({listed})" if group else listed

    def _found(self, code: Code, text: str, slow: Sequence[Link], others: str, **where: Any) -> Finding:
        more = self._about(slow, where.get("node"))
        return code.warn(f"{text}; {self._expected(others)}", **more, **where)

    def _about(self, slow: Sequence[Link], culprit: str | None = None) -> dict[str, Any]:
        """The ranks that notice it, and the values for the fix."""
        evidence = self._evidence(slow)
        names = [evidence["from"], evidence["to"]]
        peer = next((name for name in names[::-1] if name != culprit), names[1])
        node = culprit or names[0]
        victims = {rank for link in slow for rank in link if self._node(rank) != culprit} if culprit else set()
        return {"evidence": {**evidence, "node": node, "peer": peer}, "noticed_by": tuple(sorted(victims))}

    def _evidence(self, slow: Sequence[Link]) -> dict[str, Any]:
        worst = min(slow, key=lambda link: self.blame.rates[link])
        evidence: dict[str, Any] = {"from": self._node(worst[0]), "to": self._node(worst[1]), "ranks": list(worst)}
        return {**evidence, "gb_per_s": _three(self.blame.rates[worst]), "usual_gb_per_s": _three(self._usual())}

    def _node(self, rank: int) -> str:
        return self.run.job.nodes[self.blame.places[rank].node].node

    def _rails(self, links: Iterable[Link]) -> str:
        """ " on local rank 3" if nodes have several."""
        found = {self.blame.places[a].rail for a, _ in links}
        if self.width == 1:
            return ""
        if len(found) == self.width:
            return f" on all {self.width} local ranks"
        return f" on local rank{'' if len(found) == 1 else 's'} {ranges.to_text(found)}"

    def _ways(self, links: Iterable[Link], node: int) -> str:
        """ "at 0.3 GB/s", or for both directions "node-1 sends at 0.3 GB/s and receives at 0.2 GB/s"."""
        listed = list(links)
        out = [link for link in listed if self.blame.places[link[0]].node == node]
        back = [link for link in listed if self.blame.places[link[0]].node != node]
        name = self.run.job.nodes[node].node
        if not out or not back:
            return self._rates(listed)
        return f"{name} sends {self._rates(out)} and receives {self._rates(back)}"

    def _rates(self, links: Iterable[Link]) -> str:
        """ "at 0.31 GB/s", or for several links the slowest and the fastest."""
        values = sorted(self.blame.rates[link] for link in links)
        low, high = words.rate_of_gb(values[0]), words.rate_of_gb(values[-1])
        return f"at {low}" if low == high else f"at {low} to {high}"

    def _usual(self) -> float:
        return statistics.median(self.good) if self.good else self.blame.usual

    def _expected(self, which: str) -> str:
        return f"expected about {words.rate_of_gb(self._usual())}, as {which}"


def _three(value: float) -> float:
    return float(f"{value:.3g}")
