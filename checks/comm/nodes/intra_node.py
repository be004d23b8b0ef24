"""Which links between a node's ranks are slow compared with the same links on other nodes. Pure."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from preflight.check import Run, pairs
from preflight.checks.comm.shared import localize
from preflight.checks.comm.shared.localize import MUCH_SLOWER, Link, Position
from preflight.checks.comm.shared.transfers import Facts

ALIKE = 3
"""The fewest nodes with as many ranks: of two, either may be the odd one."""


@dataclass(frozen=True)
class Inside:
    """The links within one node."""

    rates: Mapping[Link, float]
    """GB/s of 10^9 bytes."""
    usual: Mapping[Link, float]
    slow: frozenset[Link]

    @cached_property
    def ranks(self) -> dict[int, set[int]]:
        """Ranks that are slow with all others, while the others are not with each other: as SENDS or RECEIVES."""
        return pairs.bad_with_all(self.rates.keys() - self.slow, self.slow)

    @property
    def is_whole(self) -> bool:
        """Whether most of the node's links are slow, and no single rank is the cause."""
        return 2 * len(self.slow) > len(self.rates) and len(self.ranks) != 1


def by_node(facts: Mapping[int, Facts], run: Run) -> dict[int, Inside]:
    """All nodes that have links, by node number."""
    place_of, rates = localize.positions(run.job), localize.link_rates(facts)
    if not rates:
        return {}
    width = Counter(place_of[rank].node for rank in facts)
    kinds = {link: _kind(link, width, place_of) for link in rates}
    alike: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for link, value in rates.items():
        alike[kinds[link]].append(value)
    everyone = statistics.median_high(rates.values())
    medians = {kind: statistics.median_high(same) if len(same) >= ALIKE else everyone for kind, same in alike.items()}
    usual = {link: medians[kind] for link, kind in kinds.items()}
    shares = {link: value / usual[link] for link, value in rates.items()}
    finer = all(len(same) >= ALIKE for same in alike.values())
    least = localize.slow_below(shares.values(), run) if finer else 1 / run[MUCH_SLOWER]
    links: dict[int, list[Link]] = defaultdict(list)
    for link in rates:
        links[place_of[link[0]].node].append(link)
    return {
        node: Inside(
            {link: rates[link] for link in mine},
            {link: usual[link] for link in mine},
            frozenset(link for link in mine if shares[link] < least),
        )
        for node, mine in sorted(links.items())
    }


def _kind(link: Link, width: Mapping[int, int], place_of: Mapping[int, Position]) -> tuple[int, ...]:
    return width[place_of[link[0]].node], place_of[link[0]].rail, place_of[link[1]].rail
