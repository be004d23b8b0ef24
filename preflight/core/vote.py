"""Which ranks differ from the others: they are odd only if more than half of the ranks share one value."""

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
    """The values of one quantity on several ranks. `T` is hashable."""

    ranks_of: Mapping[T, tuple[int, ...]]
    """Each value's ranks, the most common value first."""

    @property
    def unanimous(self) -> bool:
        return len(self.ranks_of) < 2

    @property
    def voters(self) -> int:
        return sum(map(len, self.ranks_of.values()))

    @property
    def decided(self) -> bool:
        """Whether more than half of the ranks share one value, so that the others can be called odd. With one rank
        against one, either may be wrong."""
        return bool(self.ranks_of) and 2 * len(next(iter(self.ranks_of.values()))) > self.voters

    @property
    def usual(self) -> T:
        """The most common value. Raises StopIteration if there are no votes."""
        return next(iter(self.ranks_of))

    def odd(self) -> Iterator[tuple[int, T]]:
        """Yields (rank, value) of each rank without the usual value; nothing if the vote is not decided."""
        if self.decided:
            for value in [value for value in self.ranks_of if value != self.usual]:
                yield from ((rank, value) for rank in self.ranks_of[value])

    def sides(self, most: int = 4) -> str:
        """ "'a' on ranks 0-3, 'b' on ranks 4-7": for a sentence where no rank can be called odd."""
        listed = [f"{_shown(value)} on {rank_ranges.ranks(ranks)}" for value, ranks in self.ranks_of.items()]
        more = [f"{len(listed) - most} other values"] if len(listed) > most else []
        return ", ".join([*listed[:most], *more])

    def share(self, noun: str = "rank") -> str:
        """ "7 of 8 ranks": how many of the voters have the usual value."""
        return f"{len(self.ranks_of[self.usual])} of {rank_ranges.count(self.voters, noun)}"

    def among(self) -> str:
        """ "'a' as on 7 of 8 ranks": what was expected of an odd rank."""
        return f"{_shown(self.usual)} as on {self.share()}"


def vote(values: Mapping[int, T] | Iterable[tuple[int, T]]) -> Vote[T]:
    ranks_of: dict[T, list[int]] = {}
    for rank, value in values.items() if isinstance(values, Mapping) else values:
        ranks_of.setdefault(value, []).append(rank)
    commonest = sorted(ranks_of, key=lambda value: (-len(ranks_of[value]), ranks_of[value][0]))
    return Vote({value: tuple(ranks_of[value]) for value in commonest})


@dataclass(frozen=True)
class Comparison(Generic[Thing, T]):
    """Things that should have the same value, each with its actual value."""

    values: tuple[tuple[Thing, T], ...]

    @cached_property
    def votes(self) -> Vote[T]:
        """The vote, with the thing's index in `values` as the rank."""
        return vote(enumerate(value for _, value in self.values))

    def odd(self) -> Iterator[tuple[Thing, T]]:
        """Yields (thing, value) of each without the usual value; nothing if the vote is not decided."""
        return ((self.values[place][0], value) for place, value in self.votes.odd())


def compare(
    values: Iterable[tuple[Thing, T]], groups: Callable[[Thing], Hashable] = lambda _: None
) -> dict[Any, Comparison[Thing, T]]:
    """Compares the things of each group with each other; `groups` returns the group of a thing."""
    found = grouped(values, lambda pair: groups(pair[0]))
    return {group: Comparison(tuple(members)) for group, members in found.items()}


def grouped(things: Iterable[Thing], key: Callable[[Thing], Group]) -> dict[Group, list[Thing]]:
    """The things by `key`, in their order."""
    found: dict[Group, list[Thing]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return found


def _shown(value: object) -> str:
    return "not set" if value is None else str(value) if isinstance(value, int | float) else repr(value)
