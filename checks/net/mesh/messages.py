"""Sentences about bad pairs of nodes: one for the node, switch or sides that they share, else one per pair."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from preflight.check import Code, Finding, Run, Severity, ranges, words
from preflight.checks.net.mesh.pair_tables import Nodes
from preflight.sdk.pairs import Common, Pair, Wording, common_cause, is_explained

MOST_PAIRS = 5
"""Up to this many pairs get a finding each; more share one."""
PARTLY = "as with a bad leg of a bond, an ECMP path, or a rule for some nodes"
LEGS = "If {node} has a bond (cat /proc/net/bonding/*): ethtool -S on each leg, and LACP on the switch. Else: "


@dataclass(frozen=True)
class PairTrouble:
    """A kind of trouble and its words. Nodes are identified by the rank that measured."""

    tried: Collection[Pair]
    bad: Collection[Pair]
    severity: Severity
    code: Callable[[Sequence[Pair]], Code]
    """The code for these bad pairs."""
    how: Callable[[Sequence[Pair]], str]
    """What was measured for them."""
    expected: Callable[[Sequence[Pair]], str]
    wording: Wording
    many: str
    """What happens in many pairs: "connections fail"."""
    evidence: Callable[[Sequence[Pair]], dict[str, Any]]
    """Values for the fix."""
    uplinks: str = ""
    """The fix if the pairs lie between two sides: probably their uplinks are built so, which is only info."""

    def findings(self, run: Run, places: Mapping[int, str], interfaces: Mapping[int, str]) -> Iterator[Finding]:
        """`places`: the switches above each node; `interfaces`: the one each node measured on."""
        cause, behind = common_cause(self.tried, self.bad), nodes_behind(places)
        messages = _Messages(self, run, cause, behind, interfaces, _by_node(self.bad), _by_node(self.tried))
        yield from messages.switches_or_nodes()
        yield from messages.sides_or_pairs()


def evidence_of(nodes: Nodes, more: Mapping[Pair, Any]) -> Callable[[Sequence[Pair]], dict[str, object]]:
    """What gives the evidence of bad pairs, for the fix: that of the first one; the facts have the others' values."""

    def of(bad: Sequence[Pair]) -> dict[str, object]:
        a, b = bad[0]
        shown = {"address": nodes[b]["address"], "interface": nodes[a]["interface"]}
        return shown | ({"measured": more[a, b]} if (a, b) in more else {})

    return of


def _by_node(pairs: Collection[Pair]) -> dict[int, list[Pair]]:
    found: dict[int, list[Pair]] = {}
    for pair in pairs:
        for node in pair:
            found.setdefault(node, []).append(pair)
    return found


@dataclass(frozen=True)
class _Messages:
    trouble: PairTrouble
    run: Run
    cause: Common
    behind: Mapping[frozenset[int], str]
    interfaces: Mapping[int, str]
    bad_of: Mapping[int, Sequence[Pair]]
    tried_of: Mapping[int, Sequence[Pair]]
    """The tested pairs of each node."""

    def switches_or_nodes(self) -> Iterator[Finding]:
        """Blames the switch if all nodes behind it are bad in the same way, else the nodes."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for node, roles in self.cause.ends.items():
            alike.setdefault(roles, []).append(node)
        for roles, nodes in alike.items():
            name = self._switch(nodes)
            for group in [nodes] if name else [[node] for node in nodes]:
                yield self._ends(group, roles, name)

    def sides_or_pairs(self) -> Iterator[Finding]:
        rest = self.cause.rest
        if self.cause.sides:
            yield self._sides(rest)
        elif len(rest) > MOST_PAIRS:
            yield self._many(rest)
        else:
            yield from (self._pair(pair, rest) for pair in rest if pair[::-1] not in rest or pair[0] < pair[1])

    def _switch(self, nodes: Sequence[int]) -> str:
        """The name of the switch that has exactly these nodes behind it, if they are the minority; or ""."""
        few = len(nodes) > 1 and 2 * len(nodes) < len(self.tried_of)
        return self.behind.get(frozenset(nodes), "") if few else ""

    def _ends(self, nodes: Sequence[int], roles: tuple[int, ...], switch: str) -> Finding:
        mine = set(nodes)
        own = dict.fromkeys(nodes, roles)
        pairs = sorted({pair for node in nodes for pair in self.bad_of[node] if is_explained(pair, own)})
        others = sorted({node for pair in pairs for node in pair} - mine)
        of = len({other for node in nodes for pair in self.tried_of[node] for other in pair} - mine)
        tried = [pair for node in nodes for pair in self.tried_of[node] if is_explained(pair, own)]
        few = f" ({self.names(others)})" if len(others) <= 3 else ""
        who = f"{self.names(nodes)}, all behind {switch}," if switch else self.names(nodes)
        both_ways = {pair[::-1] for pair in pairs} == set(pairs)
        text = self.trouble.wording.culprit(who, roles, len(others), of, both_ways)
        text += f"{few}: {self.trouble.how(pairs)}"
        where = {"device": switch} if switch else self._where(nodes[0])
        if len(pairs) < len(tried):
            text += f", in {len(pairs)} of its {len(tried)} ordered pairs ({PARTLY})"
            where["fix"] = LEGS + self.trouble.code(pairs).fix
        return self._found(text, pairs, noticed_by=tuple(others), **where)

    def _where(self, node: int) -> dict[str, object]:
        return {"node": self.name(node), "interface": self.interfaces.get(node) or None}

    def _sides(self, rest: Sequence[Pair]) -> Finding:
        """If nothing passes between two sides, names the one behind a switch if it is smaller; else neither."""
        switch = self._switch(self.cause.sides[0]) if self.trouble.severity is Severity.FAIL else ""
        text = self.trouble.wording.between_sides([self._side(side) for side in self.cause.sides])
        details: dict[str, Any] = {"device": switch or None}
        if self.trouble.uplinks:
            details |= {"severity": Severity.INFO, "fix": self.trouble.uplinks}
        return self._found(f"{text}: {self.trouble.how(rest)}", rest, **details)

    def _side(self, side: Sequence[int]) -> str:
        switch = self.behind.get(frozenset(side))
        return self.names(side) + (f" (behind {switch})" if switch else "")

    def _many(self, rest: Sequence[Pair]) -> Finding:
        examples = ", ".join(self._link(pair) for pair in rest[:3])
        of = f"{len(rest):,} of {ranges.count(len(self.trouble.tried), 'ordered pair')}"
        text = f"{self.trouble.many} in {of}, such as {examples}: {self.trouble.how(rest)}"
        return self._found(f"{text}; no single node explains this", rest)

    def _pair(self, pair: Pair, rest: Collection[Pair]) -> Finding:
        """Either end may be at fault, so neither is named as a node to exclude."""
        ways = [way for way in (pair, pair[::-1]) if way in rest]
        directions = [
            f"{self.trouble.wording.pair.format(a=self.name(a), b=self.name(b))} ({self.trouble.how([(a, b)])})"
            for a, b in ways
        ]
        link = self._link(pair) if len(ways) == 1 else " and ".join(map(self.name, pair))
        return self._found(", and ".join(directions), ways, link=link)

    def _link(self, pair: Pair) -> str:
        return " to ".join(map(self.name, pair))

    def _found(self, text: str, pairs: Sequence[Pair], severity: Severity | None = None, **details: Any) -> Finding:
        code, text = self.trouble.code(pairs), f"{text}; expected {self.trouble.expected(pairs)}"
        a, b = next((pair for pair in pairs if self.trouble.code([pair]) is code), pairs[0])
        evidence = self.trouble.evidence([(a, b)]) | {"from": self.name(a), "to": self.name(b)}
        return code.finding(severity or self.trouble.severity, text, evidence=evidence, **details)

    def name(self, node: int) -> str:
        return self.run.job.node_of(node).node

    def names(self, nodes: Sequence[int], most: int = 4) -> str:
        return words.some(map(self.name, nodes), most, last=", ")


# The switches above the nodes, by Slurm's names


def nodes_behind(places: Mapping[int, str]) -> dict[frozenset[int], str]:
    """{the nodes behind a switch: its name}. `places`: by node, "spine.leaf-1" from the top down, or "". Of switches
    with the same nodes, the lowest one."""
    behind: dict[tuple[int, str], set[int]] = defaultdict(set)
    for node, place in places.items():
        for level, name in enumerate(place.split(".") if place else ()):
            behind[level, name].add(node)
    return {frozenset(nodes): name for (_, name), nodes in sorted(behind.items(), key=lambda item: item[0])}
