"""Will a larger batch fit? The peak of memory at some batches, extended to another one by a straight line."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from preflight.check import Code, Context, Finding, Job, Run, count, option, plots, ranges, words
from preflight.checks.train.shared import model_source
from preflight.sdk import cgroups
from preflight.train_smoke.trainer.names import FITTED

if TYPE_CHECKING:
    from preflight.train_smoke.speed.timed_task import TimedTask

BATCH = option(count, None, "rows a rank for which to say whether your model fits; needs --model")
MACHINE, CGROUP = "machine", "cgroup "
FEWEST_ROWS = 4
"""Of the largest batch that is tried: a half and a quarter of it are the others."""
LEAST_MARGIN = 0.1
"""Of the estimate, where its own error is less."""

WONT_FIT = Code(
    "The model will not fit into memory at the batch that was asked for.",
    fix="Use fewer rows a rank and accumulate gradients, or a strategy that fits: see the table of train.speed.",
)


class PeakAt(TypedDict):
    """Bytes of one rank."""

    rows: int
    peak: int


class Fit(TypedDict):
    """Of one strategy on one rank, in bytes."""

    parameters: int
    gradients: int
    optimizer: int
    """Its state."""
    peaks: list[PeakAt]
    """At a quarter, a half and all of the rank's rows."""


class FitFacts(TypedDict):
    rooms: list[tuple[str, int]]
    """(what leaves it, bytes beside what processes have): of the machine and of each cgroup around the rank, which all
    ranks of the node that name the same one share; or of its GPU alone."""
    strategies: dict[str, Fit]


class RankFit(NamedTuple):
    free: int
    """Bytes that are there for this rank: its share of the tightest room."""
    by_cgroup: bool
    """Whether that is what a cgroup leaves: the machine has more."""
    strategies: Mapping[str, Fit]


def of_ranks(facts: Mapping[int, FitFacts], job: Job) -> dict[int, RankFit]:
    """With what the ranks of a node share."""
    sharing = Counter((job.node_of(rank).node, room) for rank, own in facts.items() for room, _ in own["rooms"])
    found = {}
    for rank, own in facts.items():
        node = job.node_of(rank).node
        free, room = min((left // sharing[node, room], room) for room, left in own["rooms"])
        found[rank] = RankFit(free, room.startswith(CGROUP), own["strategies"])
    return found


class Estimate(NamedTuple):
    """Bytes."""

    peak: float
    activations: float
    """And all else that grows with the batch or is there for a moment only: what the peak has beside the model."""
    error: float
    """The share by which the line misses the batch between."""

    @property
    def least(self) -> float:
        """The peak, if the estimate is too high by its error."""
        return self.peak * (1 - max(self.error, LEAST_MARGIN))


def measure(ctx: Context, task: "TimedTask") -> FitFacts:
    """All members together, with as many rows on each: the most that one has."""
    from preflight.train_smoke.speed.training import TimedTraining, wrap_of
    from preflight.train_smoke.trainer.wrapped import StrategySetting

    setting = StrategySetting(ctx.process_group(), ctx.device, len(ctx.members), ctx.part_of_group)
    most = max(FEWEST_ROWS, task.samples)
    facts = FitFacts(rooms=_rooms(ctx), strategies={})
    for name in FITTED:
        fit = Fit(parameters=0, gradients=0, optimizer=0, peaks=[])
        for rows in (most // 4, most // 2, most):
            _release(ctx)
            with ctx.collective(name, f"{rows} rows"):
                training = TimedTraining(task.of_rows(rows), wrap_of(name), setting)
                training.warm_up(2)
            memory = training.memory()
            fit["parameters"], fit["gradients"], fit["optimizer"] = training.kept()
            fit["peaks"].append(PeakAt(rows=rows, peak=memory["reserved"] or memory["resident"] or 0))
            del training
        facts["strategies"][name] = fit
    return facts


def _rooms(ctx: Context) -> list[tuple[str, int]]:
    from preflight.sdk import memory

    if ctx.device.type == "cuda":
        return [(f"the GPU of rank {ctx.rank}", memory.free_on(ctx.device, model_source.ranks_here(ctx)))]
    return [
        (MACHINE, memory.available()),
        *((CGROUP + place, room.left) for place, room in cgroups.memory_by_place()),
    ]


def _release(ctx: Context) -> None:
    """What the training before has left."""
    import gc

    import torch

    gc.collect()
    if ctx.device.type == "cuda":
        torch.cuda.empty_cache()


def estimate(fit: Fit, rows: int) -> Estimate:
    """By the line through the smallest and the largest batch; where more rows have not taken more, by the largest."""
    first, between, last = fit["peaks"]
    slope = max(0.0, (last["peak"] - first["peak"]) / (last["rows"] - first["rows"]))
    peak = last["peak"] + slope * (rows - last["rows"])
    guessed = last["peak"] + slope * (between["rows"] - last["rows"])
    held = fit["parameters"] + fit["gradients"] + fit["optimizer"]
    return Estimate(peak, max(0.0, peak - held), abs(guessed - between["peak"]) / max(between["peak"], 1))


def needed(facts: Mapping[int, RankFit], name: str, rows: int) -> Estimate:
    """Of the middle rank: all train alike, and a process's own peak is a rough one."""
    every = sorted(estimate(own.strategies[name], rows) for own in facts.values())
    return every[len(every) // 2]


def without_room(facts: Mapping[int, RankFit], rows: int) -> dict[str, list[int]]:
    """By strategy, the ranks on which it does not fit even if the estimate is too high by its error."""
    found = {
        name: [rank for rank, own in facts.items() if needed(facts, name, rows).least > own.free]
        for name in _names(facts)
    }
    return {name: ranks for name, ranks in found.items() if ranks}


def _names(facts: Mapping[int, RankFit]) -> list[str]:
    """In order; JSON has none."""
    return [name for name in FITTED if name in facts[min(facts)].strategies] if facts else []


def judge(facts: Mapping[int, RankFit], run: Run) -> Iterator[Finding]:
    """A warning where some strategy fits."""
    rows = run[BATCH]
    over = without_room(facts, rows) if rows else {}
    if not rows or not over:
        return
    needs = {name: needed(facts, name, rows) for name in over}
    fits = [name for name in _names(facts) if name not in over]
    ranks = sorted({rank for its in over.values() for rank in its})
    free = min(facts[rank].free for rank in ranks)
    peaks = words.some(
        (f"{words.size(peak)} under {name} (to {error:.0%})" for name, (peak, _, error) in needs.items())
    )
    whom = "each rank" if len(ranks) == len(facts) else ranges.ranks(ranks)
    limited = any(facts[rank].by_cgroup for rank in ranks)
    whom += f", by the limit of {'its' if len(ranks) == 1 else 'a'} cgroup" if limited else ""
    hint = f"; {words.some(fits)} would fit" if fits else ""
    text = f"{ranges.count(rows, 'row')} a rank need about {peaks}, and {words.size(free)} are there for {whom}{hint}"
    evidence = {
        "need": {name: int(its.peak) for name, its in needs.items()},
        "free": free,
        "ranks": ranges.to_text(ranks),
    }
    where = run.job.where(ranks[0]) if len(ranks) == 1 < len(facts) else {}
    yield (WONT_FIT.warn if fits else WONT_FIT.fail)(text, evidence=evidence, **where)


def table(facts: Mapping[int, RankFit], rows: int) -> plots.Table:
    """By strategy, of the middle rank."""
    parts = ("parameters", "gradients", "optimizer", "activations")
    heads = ("strategy", *parts, f"peak at {rows:,}", "free", "error")
    return plots.Table("memory of a rank", heads, [_row(facts, name, rows) for name in _names(facts)], screen="always")


def _row(facts: Mapping[int, RankFit], name: str, rows: int) -> tuple[str, ...]:
    found, fit = needed(facts, name, rows), facts[min(facts)].strategies[name]
    free = min(own.free for own in facts.values())
    sizes = (fit["parameters"], fit["gradients"], fit["optimizer"], found.activations, found.peak, free)
    return (name, *map(words.size, sizes), f"{found.error:.0%}")
