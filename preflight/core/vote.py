"""Who differs from the others: only a value that more than half of the ranks have makes the rest odd."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from preflight.core import rank_ranges

T = TypeVar("T")
Thing = TypeVar("Thing")
Group = TypeVar("Group", bound=Hashable)


@dataclass(frozen=True)
class Vote(Generic[T]):
    """What a number of ranks have of one thing. `T` is hashable."""

    ranks_of: Mapping[T, tuple[int, ...]]
    """Each value's ranks, the commonest value first."""

    @property
    def unanimous(self) -> bool:
        return len(self.ranks_of) < 2

    @property
    def voters(self) -> int:
        return sum(map(len, self.ranks_of.values()))

    @property
    def decided(self) -> bool:
        """Whether one value has more than half of the ranks, so that the others can be called odd. With one rank
        against one it cannot be told which is wrong."""
        return bool(self.ranks_of) and 2 * len(next(iter(self.ranks_of.values()))) > self.voters

    @property
    def usual(self) -> T:
        """The commonest value. Raises StopIteration where there are no votes."""
        return next(iter(self.ranks_of))

    def odd(self) -> Iterator[tuple[int, T]]:
        """(rank, value) of each that has not the usual one; nothing where it is not decided."""
        if self.decided:
            for value in [value for value in self.ranks_of if value != self.usual]:
                yield from ((rank, value) for rank in self.ranks_of[value])

    def sides(self, most: int = 4) -> str:
        """ "'a' on ranks 0-3, 'b' on ranks 4-7": for a sentence where no rank can be called odd."""
        told = [f"{_shown(value)} on {rank_ranges.ranks(ranks)}" for value, ranks in self.ranks_of.items()]
        more = [f"{len(told) - most} other values"] if len(told) > most else []
        return ", ".join([*told[:most], *more])

    def share(self, noun: str = "rank") -> str:
        """ "7 of 8 ranks": who has the usual value, of all that have voted."""
        return f"{len(self.ranks_of[self.usual])} of {rank_ranges.count(self.voters, noun)}"

    def among(self) -> str:
        """ "'a' as on 7 of 8 ranks": what was expected of an odd one."""
        return f"{_shown(self.usual)} as on {self.share()}"


def vote(values: Mapping[int, T] | Iterable[tuple[int, T]]) -> Vote[T]:
    ranks_of: dict[T, list[int]] = {}
    for rank, value in values.items() if isinstance(values, Mapping) else values:
        ranks_of.setdefault(value, []).append(rank)
    commonest = sorted(ranks_of, key=lambda value: (-len(ranks_of[value]), ranks_of[value][0]))
    return Vote({value: tuple(ranks_of[value]) for value in commonest})


@dataclass(frozen=True)
class Comparison(Generic[Thing, T]):
    """Things that should have the same value, each with the one that it has."""

    values: tuple[tuple[Thing, T], ...]

    @cached_property
    def votes(self) -> Vote[T]:
        """By the thing's place in `values`."""
        return vote(enumerate(value for _, value in self.values))

    def odd(self) -> Iterator[tuple[Thing, T]]:
        """Each that has not the usual value; nothing where that is not decided."""
        return ((self.values[place][0], value) for place, value in self.votes.odd())


def compare(
    values: Iterable[tuple[Thing, T]], groups: Callable[[Thing], Hashable] = lambda _: None
) -> dict[Any, Comparison[Thing, T]]:
    """Each thing with those of its group, by the group: `groups` tells to which one a thing belongs."""
    found = grouped(values, lambda pair: groups(pair[0]))
    return {group: Comparison(tuple(members)) for group, members in found.items()}


def grouped(things: Iterable[Thing], key: Callable[[Thing], Group]) -> dict[Group, list[Thing]]:
    """The things by what `key` says of each, in their order."""
    found: dict[Group, list[Thing]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return found


def _shown(value: object) -> str:
    return "not set" if value is None else str(value) if isinstance(value, int | float) else repr(value)
