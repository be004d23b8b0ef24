"""Which HCAs have an odd value, compared first with the same HCA on other nodes, then with their siblings."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from preflight.check import Comparison, Vote, compare, vote

T = TypeVar("T")


@dataclass(frozen=True)
class Value(Generic[T]):
    rank: int
    """The rank that measured on its node."""
    label: str
    """mlx5_0, or mlx5_0:2 if the card has several ports."""
    kind: str
    """Only values of the same kind are compared."""
    function: str
    """A card's second function is its second port. It often has no cable, so it is not a sibling of the first."""
    value: T
    about: Any = None


@dataclass(frozen=True)
class OddPort(Generic[T]):
    port: Value[T]
    usual: T
    as_on: str
    """ "as on 7 of 8 nodes"."""
    has_twin: bool
    """Whether another node has the same HCA."""


@dataclass(frozen=True)
class Tie(Generic[T]):
    port: Value[T]
    """An example, from any node."""
    votes: Vote[T]


def compare_ports(
    values: Iterable[Value[T]], by_siblings: bool = True, good: T | None = None
) -> Iterator[OddPort[T] | Tie[T]]:
    """What all nodes have in common is intended, whatever the siblings have. Yields a tie if siblings do not decide.
    `good`: a value that is never odd; if a minority has it, that is a tie."""
    known = [(port, port.value) for port in values]
    in_node = compare(known, _siblings)
    for group in compare(known, _same_on_all_nodes).values():
        ports, votes = [port for port, _ in group.values], group.votes
        tie = Tie(ports[0], vote((port.rank, port.value) for port in ports))
        if votes.decided and good in votes.ranks_of and votes.usual != good:
            yield tie
            continue
        if len(ports) > 1 and votes.decided:
            as_on = f"as on {votes.share('node')}"
            yield from (OddPort(port, votes.usual, as_on, True) for port, _ in group.odd())
            continue
        found = list(_odd_siblings(ports, in_node)) if by_siblings else []
        found = [odd for odd in found if good is None or odd.port.value != good]
        yield from found
        if len(ports) > 1 and not found:
            yield tie


def differs_from_siblings(values: Iterable[Value[T]]) -> Iterator[OddPort[T]]:
    """Ports that differ from most of their siblings on most nodes, and have the same value on all."""
    known = [(port, port.value) for port in values]
    in_node = compare(known, _siblings)
    for group in compare(known, _same_on_all_nodes).values():
        if len(group.values) > 1 and group.votes.unanimous:
            ports = [port for port, _ in group.values]
            found = list(_odd_siblings(ports, in_node))
            if 2 * len(found) > len(ports):
                yield from (OddPort(port, found[0].usual, found[0].as_on, True) for port in ports)


def numbered_otherwise(values: Iterable[Value[T]]) -> set[tuple[int, str, T]]:
    """(rank, kind, value) that a node has no more often than most nodes: in a chassis of another make the same HCAs are
    numbered differently."""
    counts: dict[str, dict[int, Counter[T]]] = {}
    for port in values:
        counts.setdefault(port.kind, {}).setdefault(port.rank, Counter())[port.value] += 1
    alike: set[tuple[int, str, T]] = set()
    for kind, by_rank in counts.items():
        votes = vote((rank, frozenset(counter.items())) for rank, counter in by_rank.items())
        usual = dict(votes.usual) if votes.decided else {}
        for rank, counter in by_rank.items():
            alike |= {(rank, kind, value) for value, number in counter.items() if number <= usual.get(value, 0)}
    return alike


def _siblings(port: Value[T]) -> tuple[int, str, str]:
    return port.rank, port.kind, port.function


def _same_on_all_nodes(port: Value[T]) -> tuple[str, str]:
    return port.label, port.kind


def _odd_siblings(ports: Iterable[Value[T]], in_node: Mapping[Any, Comparison[Value[T], T]]) -> Iterator[OddPort[T]]:
    """`ports`: one from each node."""
    listed = list(ports)
    for port in listed:
        votes = in_node[_siblings(port)].votes
        if votes.decided and port.value != votes.usual:
            yield OddPort(port, votes.usual, f"as {votes.share('sibling')} in its node", len(listed) > 1)
