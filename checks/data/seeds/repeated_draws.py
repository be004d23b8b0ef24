"""Which DataLoader workers draw the same random numbers: of one rank, of two ranks, in two epochs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from preflight.checks.data.seeds.rng_draws import MAIN, Draws


class Start(NamedTuple):
    """Of a worker, in an epoch."""

    rank: int
    epoch: int
    worker: int
    data: str
    """A digest of what its rank reads."""


Kind = Literal["workers", "ranks", "epochs"]
WITHIN: dict[Kind, Callable[[Start], object]] = {
    "workers": lambda start: (start.rank, start.epoch),
    "ranks": lambda start: start.epoch,
    "epochs": lambda start: start.rank,
}
"""Among which starts no two should be alike,"""
BETWEEN: dict[Kind, Callable[[Start], object]] = {
    "workers": lambda start: start.worker,
    "ranks": lambda start: start.data,
    "epochs": lambda start: start.epoch,
}
"""where this is not the same: ranks that read the same samples share a model, and should draw the same for them."""


@dataclass(frozen=True)
class Repeat:
    """Starts that are alike and should not be."""

    kind: Kind
    generators: tuple[str, ...]
    ranks: tuple[int, ...]
    starts: int
    """Of workers, in the first rank, in one epoch of all ranks, or in all epochs; and from how many states."""
    states: int
    start: Start
    """An example: it is as the other."""
    other: Start

    @property
    def example(self) -> str:
        """ "worker 1 of rank 0 begins as its worker 0"."""
        start, other = self.start, self.other
        if start.worker == MAIN:
            return f"rank {start.rank} begins as rank {other.rank}"
        begins = f"worker {start.worker} of rank {start.rank} begins"
        if self.kind == "workers":
            return f"{begins} as its worker {other.worker}"
        if self.kind == "ranks":
            return f"{begins} as worker {other.worker} of rank {other.rank}"
        as_who = "it began" if start.worker == other.worker else f"worker {other.worker} began"
        return f"{begins} epoch {start.epoch} as {as_who} epoch {other.epoch}"


def repeats(draws: Mapping[int, Draws], data: Mapping[int, str]) -> Iterator[Repeat]:
    """Of one loader by rank. `data`: by rank a digest of the samples that it reads, where they are known."""
    known: dict[str, dict[Start, str]] = {}
    for rank, its in sorted(draws.items()):
        for look in its["looks"]:
            start = Start(rank, look["epoch"], look["worker"], data.get(rank, f"rank {rank}"))
            for name, state in look["drawn"].items():
                known.setdefault(name, {})[start] = state
    for kind in WITHIN:
        found = {name: repeat for name, states in known.items() if (repeat := _repeat(kind, name, states))}
        yield from _joined(found)


def _repeat(kind: Kind, name: str, states: Mapping[Start, str]) -> Repeat | None:
    within, between = WITHIN[kind], BETWEEN[kind]
    alike: dict[object, list[Start]] = {}
    for start, state in states.items():
        alike.setdefault((state, within(start)), []).append(start)
    groups = [group for group in alike.values() if len({between(start) for start in group}) > 1]
    if not groups:
        return None
    other, *rest = min(groups)
    first = next(start for start in rest if between(start) != between(other))
    ranks = sorted({start.rank for group in groups for start in group})
    near = [start for start in states if within(start) == within(first)]
    if kind == "epochs":
        near = [start for start in states if start.rank in ranks]
    distinct = len({states[start] for start in near})
    return Repeat(kind, (name,), tuple(ranks), len({_own(kind, start) for start in near}), distinct, first, other)


def _own(kind: Kind, start: Start) -> object:
    """What should have a state of its own."""
    return (start.data, start.worker) if kind == "ranks" else start


def _joined(found: Mapping[str, Repeat]) -> Iterator[Repeat]:
    """One for the generators that repeat alike: Python, NumPy and torch are seeded at one place. A generator that the
    dataset holds has a cause of its own."""
    like: dict[object, list[Repeat]] = {}
    for name, repeat in found.items():
        like.setdefault((name if is_own(name) else "", repeat.ranks, repeat.starts, repeat.states), []).append(repeat)
    for first, *others in like.values():
        yield Repeat(**{**vars(first), "generators": (*first.generators, *(other.generators[0] for other in others))})


def is_own(generator: str) -> bool:
    """Whether it is an object that the dataset or the collate function holds, not one of a library."""
    return "." in generator


def listed(names: Sequence[str]) -> str:
    """ "torch, Python and NumPy"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
