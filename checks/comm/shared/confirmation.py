"""Combines two measurements of the links: only what was slow in both is blamed. Pure.

With many nodes the second measurement (transfers.py) may leave out some slow links. These follow what was measured
again for the same ranks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from preflight.check import Action, Code, Finding, Run, ranges, words
from preflight.checks.comm.shared.localize import Link, link_rates
from preflight.checks.comm.shared.transfers import Doubt, Doubting, Facts

SLOW_ONCE = Code(
    "Something was slow in the first measurement, but not in the second.",
    fix="Nothing, unless it recurs: it may be other traffic or a busy CPU. If it recurs, see on {hosts} "
    "what else runs (top), and ethtool -S INTERFACE (errors, drops).",
    action=Action.NONE,
)
NO_TIME = "not confirmed: there was no time to measure it again"
ONCE = "not confirmed: it was measured once"
MOST_NAMED = 3


@dataclass(frozen=True)
class Looks:
    """Both measurements of a run."""

    first: Mapping[int, Facts]
    run: Run
    doubt: Doubting

    @cached_property
    def _again(self) -> dict[Link, float]:
        """GB/s of 10^9 bytes."""
        second = {rank: {**of, **again} for rank, of in self.first.items() if (again := of.get("again"))}
        return link_rates(second)  # type: ignore[arg-type]  # mypy makes dicts of it

    @cached_property
    def _was(self) -> Doubt:
        return self.doubt(self.first, self.run)

    @cached_property
    def facts(self) -> Mapping[int, Facts]:
        """The facts to judge: the better of both measurements."""
        if not any(of.get("again") for of in self.first.values()):
            return self.first
        better = {rank: _better(of) for rank, of in self.first.items()}
        gone = self._was.links - self._again.keys() & self._all_of(self._recovered(better))
        return {rank: _without(rank, of, gone) for rank, of in better.items()}

    def _recovered(self, better: Mapping[int, Facts]) -> set[tuple[int, int]]:
        """(rank, as sender or receiver) for which most slow links that were measured again are no longer slow."""
        still, tried = self.doubt(better, self.run).links, self._was.links & self._again.keys()
        asked = Counter((rank, role) for link in tried for role, rank in enumerate(link))
        slow = Counter((rank, role) for link in tried & still for role, rank in enumerate(link))
        return {end for end, count in asked.items() if 2 * slow[end] < count}

    def _all_of(self, ends: set[tuple[int, int]]) -> set[Link]:
        return {link for link in self._was.links if any((rank, role) in ends for role, rank in enumerate(link))}

    def confirmed(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """The findings made from `facts`, each with `confirmed` in its evidence; unconfirmed ones say so."""
        if any(of.get("again") for of in self.first.values()):
            proof, why = "2 of 2", ""
        else:
            proof = "1 of 1"
            why = NO_TIME if any("again" in of for of in self.first.values()) else ONCE
        for finding in findings:
            text = f"{finding.message}; {why}" if why else finding.message
            yield replace(finding, message=text, evidence={**finding.evidence, "confirmed": proof})

    def only_once(self) -> Iterator[Finding]:
        """Info about what the second measurement cleared; blames no rank."""
        if self.facts is self.first:
            return
        now = self.doubt(self.facts, self.run)
        links, parts = sorted(self._was.links - now.links), self._was.parts - now.parts
        if links:
            yield self._slow_once(links)
        elif parts:
            text = f"{len(parts):,} of the parts that all-reduce by themselves took much longer than the others when "
            text += "measured first, but not when measured again: no rank is blamed"
            yield SLOW_ONCE.info(text, evidence={"hosts": "all nodes", "confirmed": "1 of 2"})

    def _slow_once(self, links: list[Link]) -> Finding:
        first, again = link_rates(self.first), self._again
        tried = [link for link in links if link in again] or links
        worst = min(tried, key=first.__getitem__)
        listed = words.some((self._ends(link) for link in links), MOST_NAMED, last=", ")
        was, now = words.rate_of_gb(first[worst]), words.rate_of_gb(again.get(worst, first[worst]))
        text = f"{len(links):,} of {ranges.count(len(first), 'link')} were slow when measured first ({listed}; the "
        text += f"slowest at {was}), but not when measured again ({now}): no rank is blamed"
        hosts = words.some(dict.fromkeys(self.run.job.node_of(rank).node for rank in worst))
        return SLOW_ONCE.info(text, evidence={"hosts": hosts, "ranks": list(worst), "confirmed": "1 of 2"})

    def _ends(self, link: Link) -> str:
        """ "node-1 to node-2"; within a node "rank 3 to rank 4"."""
        nodes = [self.run.job.node_of(rank).node for rank in link]
        return " to ".join(nodes if nodes[0] != nodes[1] else [f"rank {rank}" for rank in link])


def _better(of: Facts) -> Facts:
    again = of.get("again")
    if not again:
        return of
    best = dict(again["links"])
    best |= {sender: min(seconds, best.get(sender, seconds)) for sender, seconds in of["links"]}
    times = [seconds for seconds in (of["reduce_s"], again["reduce_s"]) if seconds]
    return {**of, "links": sorted(best.items()), "reduce_s": min(times, default=None)}


def _without(rank: int, of: Facts, gone: set[Link] | frozenset[Link]) -> Facts:
    return {**of, "links": [(sender, seconds) for sender, seconds in of["links"] if (sender, rank) not in gone]}
