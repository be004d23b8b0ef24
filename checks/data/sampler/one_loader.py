"""One loader as all ranks read it."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from preflight.check import Finding, Run, Severity, Vote, ranges
from preflight.checks.data.shared.readings import Epoch, Facts, Reading, Together

EVALUATION = re.compile(r"(?<![a-z])(val|valid|validation|eval|evaluation|test|dev)(?![a-z])", re.IGNORECASE)
"""Names of loaders that are not trained on. Each rank may read all their samples, and no step waits for others."""

LONGEST = 40
"""The longest list of ranks in a sentence, in characters."""


@dataclass(frozen=True, eq=False)
class Loader:
    """A loader on the ranks that read one dataset together: all, or a `part` of them."""

    name: str
    readings: Mapping[int, Reading]
    """By rank, ascending."""
    together: Mapping[int, Together]
    """Counts of all ranks' samples by epoch, if they were counted."""
    world: int
    """Number of ranks that were asked."""
    sharers: int
    """How many ranks see the same samples on purpose, since they share a model."""
    given: bool
    """Whether it is the user's own."""
    run: Run

    @property
    def replicas(self) -> int:
        """How many ranks should read different samples."""
        return max(1, self.world // self.sharers)

    @property
    def whole_world(self) -> bool:
        """Whether no rank is missing; else nothing is known about samples that no rank reads."""
        sizes = [reading["num_replicas"] or 1 for reading in self.readings.values()]
        return len(sizes) == self.world and max(sizes) <= self.replicas

    @property
    def first(self) -> Reading:
        return next(iter(self.readings.values()))

    @cached_property
    def by_index(self) -> bool:
        return all(reading["known_by"] == "index" for reading in self.readings.values())

    @cached_property
    def comparable(self) -> bool:
        return len({reading["known_by"] for reading in self.readings.values()}) == 1

    @cached_property
    def repeats_by_design(self) -> bool:
        """Whether samples are drawn with replacement, or by each rank separately, so that they come again on others."""
        return any(
            reading["by_design"] in ("repeats", "augments", "endless")
            or (reading["by_design"] == "subset" and reading["sampler"] != "SubsetRandomSampler")
            for reading in self.readings.values()
        )

    @property
    def augments(self) -> bool:
        """Whether ranks should see the same samples, each augmented differently."""
        return all(reading["by_design"] == "augments" for reading in self.readings.values())

    @property
    def of_subsets(self) -> bool:
        """Whether ranks take parts of one dataset by hand. What is in no part is left out on purpose."""
        return any("subset" in reading for reading in self.readings.values())

    @property
    def is_endless(self) -> bool:
        return any(reading["by_design"] == "endless" for reading in self.readings.values())

    @property
    def is_for_evaluation(self) -> bool:
        return bool(EVALUATION.search(self.name))

    @property
    def severity(self) -> Severity:
        """The severity of what makes ranks wait for others, or leaves samples out."""
        return Severity.WARN if self.is_for_evaluation else Severity.FAIL

    @cached_property
    def length(self) -> int | None:
        """len(dataset), if all ranks have the same."""
        lengths = {reading["length"] for reading in self.readings.values()}
        return lengths.pop() if len(lengths) == 1 else None

    def epoch(self, number: int) -> dict[int, Epoch]:
        """The epoch by rank, for ranks that read it."""
        return {
            rank: reading["epochs"][number]
            for rank, reading in self.readings.items()
            if len(reading["epochs"]) > number
        }

    def is_whole(self, number: int) -> bool:
        """Whether every rank read this epoch to the end."""
        epochs = self.epoch(number)
        return len(epochs) == len(self.readings) and all(epoch["whole"] for epoch in epochs.values())

    def heads(self, number: int) -> dict[int, Epoch]:
        """The epoch by rank, for one rank of each group of `sharers`."""
        epochs = self.epoch(number)
        if self.sharers == 1:
            return epochs
        replicas = {rank: self.readings[rank]["replica"] for rank in epochs}
        known = None not in replicas.values()
        first_of: dict[object, int] = {}
        for rank, epoch in epochs.items():
            first_of.setdefault(replicas[rank] if known else epoch["order"], rank)
        return {rank: epochs[rank] for rank in first_of.values()}

    def part(self, ranks: tuple[int, ...]) -> "Loader":
        """The same loader on some of its ranks, which have their own dataset."""
        readings = {rank: self.readings[rank] for rank in ranks}
        return replace(self, readings=readings, together={}, world=len(ranks))

    def says(self, text: str) -> str:
        return f"{self.title}: {text}" if self.title else text

    @property
    def title(self) -> str:
        """ "train", "loader 1"; "" for the only one."""
        return f"loader {self.name}" if self.name.isdecimal() else self.name

    @cached_property
    def place(self) -> dict[str, Any]:
        """File and line of the user's sampler, or of the code that yields the samples."""
        places = {(reading["file"], reading["line"]) for reading in self.readings.values()}
        file, line = places.pop() if len(places) == 1 else (None, None)
        return {"file": file, "line": line}


def differing(
    loader: Loader,
    counted: Vote[int],
    say: Callable[..., Finding],
    fact: str,
    odd: str,
    every: str,
    why: str = "",
    shown: Callable[[int], str] = "{:,}".format,
    **place: Any,
) -> Iterator[Finding]:
    """A finding per rank with an unusual number, or one for both sides if no number is usual. `fact`: its name in the
    evidence. `odd`, `every`: texts for one rank and for all: "batches have {} samples"."""
    if counted.unanimous:
        return
    for rank, number in counted.odd():
        expected = f"expected {shown(counted.usual)} as on {counted.share()}{why}"
        where = {**place, **loader.run.job.where(rank)}
        yield say(loader.says(f"{odd.format(shown(number))}, {expected}"), evidence={fact: number}, **where)
    if not counted.decided:
        yield say(loader.says(f"{every.format(counted.sides())}, expected the same on all ranks{why}"), **place)


def names(facts: Facts) -> tuple[str, ...]:
    return tuple(sorted(reading["name"] for reading in facts["readings"]))


def loaders(facts: Mapping[int, Facts], run: Run, data_parallel: int | None) -> Iterator[Loader]:
    """The loaders in the first rank's order. All ranks have loaders with these names."""
    by_rank = {rank: {reading["name"]: reading for reading in facts[rank]["readings"]} for rank in sorted(facts)}
    world = len(run.members)
    sharers = world // data_parallel if data_parallel and world % data_parallel == 0 else 1
    for name in next(iter(by_rank.values())) if by_rank else ():
        known = [counted for own in facts.values() for counted in own["together"] if counted["name"] == name]
        yield Loader(
            name=name,
            readings={rank: of[name] for rank, of in by_rank.items()},
            together={counted["epoch"]: counted for counted in known},
            world=world,
            sharers=sharers,
            given=any(own["given"] for own in facts.values()),
            run=run,
        )


def listed(ranks: list[int] | tuple[int, ...], world: int) -> str:
    """ "rank 1", "ranks 0-2", "both ranks", "all 4 ranks", "341 ranks (0,3,6,...)"."""
    if len(ranks) == world > 1:
        return "both ranks" if world == 2 else f"all {ranges.count(world, 'rank')}"
    text = ranges.to_text(ranks)
    if len(text) <= LONGEST:
        return ranges.ranks(ranks)
    return f"{ranges.count(len(ranks), 'rank')} ({text[:LONGEST].rpartition(',')[0]},...)"
