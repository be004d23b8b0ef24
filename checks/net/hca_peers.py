"""What a value of one HCA should be, by the others: first by the same HCA on the other nodes, then by its siblings."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from preflight.check import Vote, vote

T = TypeVar("T")


@dataclass(frozen=True)
class Value(Generic[T]):
    rank: int
    """Of its node."""
    label: str
    """mlx5_0, or mlx5_0:2 where the card has several ports."""
    kind: str
    """Only what is of one kind is compared."""
    function: str
    """The second function of a card is its second port, which often has no cable: no sibling of the first."""
    value: T
    about: Any = None


@dataclass(frozen=True)
class Odd(Generic[T]):
    one: Value[T]
    usual: T
    as_on: str
    """ "as on 7 of 8 nodes"."""
    has_twin: bool
    """Whether another node has the same HCA."""


@dataclass(frozen=True)
class Tie(Generic[T]):
    one: Value[T]
    """Of any node."""
    votes: Vote[T]


def compared(values: Iterable[Value[T]], by_siblings: bool = True, good: T | None = None) -> Iterator[Odd[T] | Tie[T]]:
    """What all nodes have alike is meant so, whatever siblings have. A tie is told where siblings do not decide.
    `good`: a value that is never odd; where some have it, but most have not, that is a tie."""
    known = list(values)
    in_node = _by_siblings(known)
    for group in _grouped(known, lambda one: (one.label, one.kind)).values():
        votes = vote((one.rank, one.value) for one in group)
        if votes.decided and good in votes.ranks_of and votes.usual != good:
            yield Tie(group[0], votes)
            continue
        if len(group) > 1 and votes.decided:
            odd = {rank for rank, _ in votes.odd()}
            as_on = f"as on {votes.share('node')}"
            yield from (Odd(one, votes.usual, as_on, True) for one in group if one.rank in odd)
            continue
        found = list(_odd_siblings(group, in_node)) if by_siblings else []
        found = [odd for odd in found if good is None or odd.one.value != good]
        yield from found
        if len(group) > 1 and not found:
            yield Tie(group[0], votes)


def unlike_siblings(values: Iterable[Value[T]]) -> Iterator[Odd[T]]:
    """Of what all nodes have alike: where it is unlike most siblings in most of them."""
    known = list(values)
    in_node = _by_siblings(known)
    for group in _grouped(known, lambda one: (one.label, one.kind)).values():
        if len(group) > 1 and len({one.value for one in group}) == 1:
            found = list(_odd_siblings(group, in_node))
            if 2 * len(found) > len(group):
                yield from (Odd(one, found[0].usual, found[0].as_on, True) for one in group)


def numbered_otherwise(values: Iterable[Value[T]]) -> set[tuple[int, str, T]]:
    """(rank, kind, value) of which a node has no more than most nodes: in a chassis of another make the same HCAs have
    other numbers."""
    counts: dict[str, dict[int, Counter[T]]] = {}
    for one in values:
        counts.setdefault(one.kind, {}).setdefault(one.rank, Counter())[one.value] += 1
    alike: set[tuple[int, str, T]] = set()
    for kind, by_rank in counts.items():
        votes = vote((rank, frozenset(counter.items())) for rank, counter in by_rank.items())
        usual = dict(votes.usual) if votes.decided else {}
        for rank, counter in by_rank.items():
            alike |= {(rank, kind, value) for value, number in counter.items() if number <= usual.get(value, 0)}
    return alike


def _by_siblings(known: list[Value[T]]) -> dict[Any, Vote[T]]:
    siblings = _grouped(known, lambda one: (one.rank, one.kind, one.function))
    return {key: vote((at, one.value) for at, one in enumerate(group)) for key, group in siblings.items()}


def _odd_siblings(group: list[Value[T]], in_node: dict[Any, Vote[T]]) -> Iterator[Odd[T]]:
    for one in group:
        votes = in_node[one.rank, one.kind, one.function]
        if votes.decided and one.value != votes.usual:
            yield Odd(one, votes.usual, f"as {votes.share('sibling')} in its node", len(group) > 1)


def _grouped(values: list[Value[T]], key: Any) -> dict[Any, list[Value[T]]]:
    groups: dict[Any, list[Value[T]]] = {}
    for one in values:
        groups.setdefault(key(one), []).append(one)
    return groups
