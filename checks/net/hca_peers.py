"""What a value of one HCA should be, by the others: first by the same HCA on the other nodes, then by its siblings."""

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


def compared(values: Iterable[Value[T]], by_siblings: bool = True) -> Iterator[Odd[T] | Tie[T]]:
    """What all nodes have alike is meant so, whatever siblings have. A tie is told where siblings do not decide."""
    known = list(values)
    siblings = _grouped(known, lambda one: (one.rank, one.kind, one.function))
    in_node = {key: vote((at, one.value) for at, one in enumerate(group)) for key, group in siblings.items()}
    for group in _grouped(known, lambda one: (one.label, one.kind)).values():
        votes = vote((one.rank, one.value) for one in group)
        if len(group) > 1 and votes.decided:
            odd = {rank for rank, _ in votes.odd()}
            as_on = f"as on {votes.share('node')}"
            yield from (Odd(one, votes.usual, as_on, True) for one in group if one.rank in odd)
            continue
        found = list(_odd_siblings(group, in_node)) if by_siblings else []
        yield from found
        if len(group) > 1 and not found:
            yield Tie(group[0], votes)


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
